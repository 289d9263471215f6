"""Freezes a model from the input up to some depth, and unfreezes it again, by layer groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]  # their common base
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from pa_finetuning.given_groups import LayerGroupLike, modules_of_groups
from pa_finetuning.group_options import divide_groups, options_in_timm_groups, options_without_decay
from pa_finetuning.lasting_eval_mode import hold_in_eval_mode, release_mode
from pa_finetuning.layer_groups import Layer, LayerGroup, LayerGroups, owned_parameters
from pa_finetuning.learning_rates import LearningRates, falling_rates, rates_by_group
from pa_finetuning.parameters import can_have_gradients, held_by, is_frozen

__all__ = ["Layer", "LayerGroup", "ModelFreezer"]


class ModelFreezer:
    """Freezes and unfreezes parts of a model, for fine-tuning in stages.

    Use it in any PyTorch loop to train only the last layers of a pretrained model, to unfreeze further layers later,
    and to give each part its own learning rate. To unfreeze one part in each epoch automatically, pass the freezer to
    ``GradualUnfreezing``.

    A *layer group* is a direct child of the model: a layer, or a block of layers. A *layer* is a module without modules
    inside it. Layer groups are addressed by their index, in the order in which they were assigned to the model;
    negative indexes count from the end. For a model that keeps all its layers in a single child, as BERT does, pass
    ``layer_groups``. A subclass may override ``get_layer_groups``, and all methods and ``GradualUnfreezing`` then use
    the groups that it returns.

    Parameters that belong to the model itself, and not to one of its children, belong to the first group, because such
    parameters (for example position embeddings and class tokens) are usually part of the input. All other parameters
    have to be in a group. A model that contains no modules is a single group. If several groups share a parameter, the
    last call for any of these groups decides whether the parameter is frozen. A method that returns each parameter only
    once returns such a parameter with the first of its groups.

    Creating a freezer makes every parameter trainable. A frozen parameter has no gradient, so an optimizer does not
    change it, even with momentum or weight decay. Freeze before the model is wrapped for distributed training, and wrap
    it again after a change, because ``DistributedDataParallel`` does not notice the change.

    Args:
        model: The model, without wrappers. If it is compiled, the original module is used.
        freeze_batch_norms: Whether ``freeze`` also applies to batch norm layers. With the default, False, these layers
            keep learning, because their statistics have to fit the new data.
        layer_groups: Custom layer groups, from the input to the output. Each group is a module or parameter of the
            model, its dotted name such as ``"bert.encoder.layer.0"``, or a list of several of these. By default (None),
            each direct child of the model is a group.

    Attributes:
        model: The module that is divided into layer groups.
        freeze_batch_norms: Whether ``freeze`` applies to batch norm layers, as given.

    Raises:
        ValueError: The model has no parameters; or the layer groups overlap, leave parameters out, or name a part that
            the model does not have.
        TypeError: The model is wrapped for distributed training, or a layer group is neither a name nor a part of the
            model.

    Example:
        >>> import torch
        >>> from pa_finetuning import ModelFreezer
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
        >>> freezer = ModelFreezer(model)
        >>> freezer.freeze()
        >>> len(freezer.get_trainable_parameters())
        2
        >>> optimizer = torch.optim.SGD(freezer.get_trainable_parameters(), lr=0.1)
        >>> for parameter_group in freezer.unfreeze().values():
        ...     optimizer.add_param_group(parameter_group)
        >>> [len(group["params"]) for group in optimizer.param_groups]
        [2, 2]

        With custom groups:

        >>> encoder = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3))
        >>> model = torch.nn.ModuleDict({"encoder": encoder, "head": torch.nn.Linear(3, 2)})
        >>> freezer = ModelFreezer(model, layer_groups=["encoder.0", ["encoder.1", "head"]])
        >>> freezer.freeze()
        >>> [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
        ['encoder.0.weight', 'encoder.0.bias']
    """

    def __init__(
        self,
        model: nn.Module,
        freeze_batch_norms: bool = False,
        layer_groups: Sequence[LayerGroupLike] | None = None,
    ) -> None:
        self.model: nn.Module = _without_wrappers(model)
        self.freeze_batch_norms: bool = freeze_batch_norms
        self._given_groups: list[nn.Module] | None = None
        if layer_groups is not None:
            self._given_groups = modules_of_groups(self.model, layer_groups)
            LayerGroups(self.model, self._given_groups)
        for module in self.model.modules():
            release_mode(module)
        for parameter in self.model.parameters():
            parameter.requires_grad_(can_have_gradients(parameter))

    def get_layer_groups(self) -> list[LayerGroup]:
        """Return the layer groups in order: the given groups, or the direct children of the model.

        You call it to see which index belongs to which module, and which groups are frozen. The other methods call it,
        too, so a subclass may override it to define layer groups. They read only the module of each record, so the
        override may return modules instead of records. All parameters must be in a group, and no two groups may
        overlap.

        Returns:
            A ``LayerGroup`` for each group, from the input to the output, with ``layer_group_idx``, ``module`` and
            ``is_frozen``.

        Example:
            >>> import torch
            >>> from pa_finetuning import ModelFreezer
            >>> freezer = ModelFreezer(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)))
            >>> freezer.freeze()
            >>> [(group.layer_group_idx, group.is_frozen) for group in freezer.get_layer_groups()]
            [((0, -2), True), ((1, -1), False)]
        """
        modules = self._given_groups or list(self.model.children()) or [self.model]
        groups = LayerGroups(self.model, modules)
        return [
            LayerGroup(groups.as_pair(index), module, self._is_frozen(module, groups.parameters[index]))
            for index, module in enumerate(modules)
        ]

    def get_layers(self) -> list[Layer]:
        """Return the modules that have no modules inside them, from all depths, in order.

        You call it to check which layers are frozen. ``get_layer_groups`` returns the larger parts that are frozen as a
        whole.

        Returns:
            A ``Layer`` for each module, with ``layer_group_idx``, ``module`` and ``is_frozen``.

        Example:
            >>> import torch
            >>> from pa_finetuning import ModelFreezer
            >>> block = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
            >>> freezer = ModelFreezer(torch.nn.Sequential(block, torch.nn.Linear(3, 2)))
            >>> freezer.freeze()
            >>> [(type(layer.module).__name__, layer.is_frozen) for layer in freezer.get_layers()]
            [('Linear', True), ('ReLU', False), ('Linear', False)]
        """
        groups = self._groups()
        index_of = {module: groups.as_pair(index) for module, index in groups.index_by_module().items()}
        layers = [module for module in self.model.modules() if not any(module.children())]
        return [Layer(index_of.get(layer), layer, _only_frozen(layer.parameters(recurse=False))) for layer in layers]

    def get_trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are not frozen, for the constructor of an optimizer.

        You call it after ``freeze``, if all of these parameters have the same learning rate and you will not unfreeze
        others later. If you will, and use a scheduler, create the optimizer from
        ``get_parameter_groups(..., include_frozen=True)`` instead, so that the scheduler knows all parameters.

        Returns:
            The parameters in the order of ``model.parameters()``, each once. The list is empty if all are frozen.

        Example:
            >>> import torch
            >>> from pa_finetuning import ModelFreezer
            >>> freezer = ModelFreezer(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)))
            >>> freezer.freeze()
            >>> optimizer = torch.optim.SGD(freezer.get_trainable_parameters(), lr=0.1)
            >>> [tuple(parameter.shape) for parameter in freezer.get_trainable_parameters()]
            [(2, 3), (2,)]
        """
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def freeze(self, from_index: int = 0, to_index: int = -2, set_modules_as_eval: bool = False) -> None:
        """Freeze layer groups; by default, all except the last, which is the head of most models.

        You call it before you create the optimizer and before the model is wrapped for distributed training. The
        parameters of the groups get ``requires_grad=False`` and lose their gradients. Groups outside the range stay as
        they are.

        Args:
            from_index: The index of a layer group at one end of the range to freeze. The default, 0, is the first.
            to_index: The index of the layer group at the other end, which is also frozen. The default, -2, is the group
                before the last.
            set_modules_as_eval: Whether the frozen modules stay in eval mode from now on, so that their dropout has no
                effect and frozen batch norm layers do not update their statistics. ``model.train()`` does not change
                that; ``unfreeze`` does. The default is False, so the modules follow ``model.train()`` as usual.

        Raises:
            IndexError: There is no layer group at an index, such as -2 in a model with a single group; nothing was
                frozen.
            TypeError: An index is not an integer; nothing was frozen.

        Example:
            >>> from torch import nn
            >>> from pa_finetuning import ModelFreezer
            >>> model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 2))
            >>> freezer = ModelFreezer(model)
            >>> freezer.freeze(to_index=0)  # only the first
            >>> [group.is_frozen for group in freezer.get_layer_groups()]
            [True, False, False]
        """
        groups = self._groups()
        for index in groups.indexes_between(from_index, to_index):
            if set_modules_as_eval:
                for module in groups.modules[index].modules():
                    if not self._is_exempt(module):
                        hold_in_eval_mode(module)
            stay_trainable = self._exempt_parameters(groups.modules[index])
            for parameter in groups.parameters[index]:
                if parameter not in stay_trainable:
                    parameter.requires_grad_(False)
                    parameter.grad = None

    def unfreeze(
        self, from_index: int = -1, to_index: int = 0, set_modules_as_training: bool = True
    ) -> dict[int, dict[str, list[nn.Parameter]]]:
        """Unfreeze layer groups; by default, all of them.

        You call it between two stages of training. You may pass the two ends of the range in either order. By default,
        the range begins at the last group, because fine-tuning unfreezes from the output to the input. For example,
        ``unfreeze(to_index=-2)`` unfreezes the last two groups, and ``unfreeze(from_index=-2)`` unfreezes all groups
        except the last.

        Args:
            from_index: The index of a layer group at one end of the range to unfreeze. The default, -1, is the last.
            to_index: The index of the layer group at the other end, which is also unfrozen. The default, 0, is the
                first.
            set_modules_as_training: Whether the modules are put into training mode, and follow ``model.train()`` again.
                The default is True, since trained layers usually use dropout and update their batch norm statistics. If
                False, modules that ``freeze`` put into eval mode stay there.

        Returns:
            A dictionary that maps the index (from the start) of each layer group that had frozen parameters to
            ``{"params": [...]}``, with the parameters that were frozen until now. Pass such a value to
            ``optimizer.add_param_group`` if the optimizer does not have them yet. No parameter appears twice. The
            dictionary is empty if nothing was frozen.

        Raises:
            IndexError: There is no layer group at an index; nothing was unfrozen.
            TypeError: An index is not an integer; nothing was unfrozen.

        Example:
            >>> import torch
            >>> from torch import nn
            >>> from pa_finetuning import ModelFreezer
            >>> model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 2))
            >>> freezer = ModelFreezer(model)
            >>> freezer.freeze()
            >>> optimizer = torch.optim.SGD(freezer.get_trainable_parameters(), lr=0.1)
            >>> unfrozen = freezer.unfreeze(to_index=-2)  # the last two; the last was trainable already
            >>> {index: len(group["params"]) for index, group in unfrozen.items()}
            {1: 2}
            >>> optimizer.add_param_group({**unfrozen[1], "lr": 0.01})
        """
        unfrozen: dict[int, dict[str, list[nn.Parameter]]] = {}
        groups = self._groups()
        for index in groups.indexes_between(from_index, to_index):
            if set_modules_as_training:
                group = groups.modules[index]
                for module in group.modules():
                    release_mode(module)
                group.train()
            frozen = list(filter(is_frozen, groups.parameters[index]))
            for parameter in frozen:
                parameter.requires_grad_(True)
            if frozen:
                unfrozen[index] = {"params": frozen}
        return unfrozen

    def get_learning_rates(self, lr: float, factor: float = 1 / 2.6) -> list[float]:
        """Return a learning rate for each layer group, smaller by a factor with each step from the output to the input.

        You call it to compute rates for ``get_parameter_groups`` or ``add_frozen_parameters``. Layers near the input
        are the most general and have to change least. Layer groups without parameters do not count as a step. Nothing
        is changed.

        Args:
            lr: The rate of the last layer group that has parameters; a number above 0.
            factor: The rate of a layer group divided by the rate of the group after it; a number above 0. The default,
                1 / 2.6, is the factor of ULMFiT (arXiv 1801.06146, section 3.2). 1 gives all groups the same rate.

        Returns:
            A rate for each layer group, from the input to the output.

        Raises:
            ValueError: The rate or the factor is not positive and finite.
            TypeError: The rate or the factor is not a number.

        Example:
            >>> from torch import nn
            >>> from pa_finetuning import ModelFreezer
            >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 2))
            >>> ModelFreezer(model).get_learning_rates(0.1, factor=0.5)
            [0.025, 0.025, 0.05, 0.1]
        """
        owned = owned_parameters(self._groups().parameters)
        distances = [sum(map(bool, owned[index + 1 :])) for index in range(len(owned))]
        return falling_rates(lr, factor, distances)

    def get_parameter_groups(
        self,
        learning_rates: LearningRates,
        include_frozen: bool = False,
        *,
        decay_norms_and_biases: bool = True,
        timm_groups: Iterable[Mapping[str, Any]] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the parameters by layer group, each group with its learning rate, for the constructor of an optimizer.

        You call it once, before you create the optimizer. Include the frozen parameters if you will unfreeze some
        later. The optimizer does not change a frozen parameter and keeps no state for it, and the scheduler knows all
        groups from the start. If the optimizer exists already, use ``add_frozen_parameters``.

        Args:
            learning_rates: A rate for all layer groups, a list with a rate for each group (as ``get_learning_rates``
                returns it), or a mapping from indexes to rates.
            include_frozen: Whether frozen parameters are included. The default is False, for parameters that stay
                frozen.
            decay_norms_and_biases: Whether the weight decay of the optimizer acts on all parameters. The default is
                True, as in torch's optimizers. If False, norms, biases, and other vectors and scalars are in separate
                groups with ``weight_decay=0``.
            timm_groups: The return value of timm's ``param_groups_layer_decay(model)``: the rate of each parameter is
                multiplied by its ``lr_scale`` (which torch's optimizers and schedulers ignore), and its weight decay is
                copied. The default, None, changes nothing.

        Returns:
            ``{"params": [...], "lr": rate}`` for each layer group with such parameters, in order. If parameters of a
            layer group differ in rate or weight decay, there are several dictionaries for this group. No parameter
            appears twice.

        Raises:
            ValueError: There is no such parameter, a layer group with such parameters has no rate, the number of rates
                is not the number of layer groups, or a parameter is not in ``timm_groups``.
            IndexError: A rate is given for a layer group that does not exist.
            TypeError: A rate is not a number, or an index is not an integer.

        Example:
            >>> import torch
            >>> from torch import nn
            >>> from pa_finetuning import ModelFreezer
            >>> model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
            >>> freezer = ModelFreezer(model)
            >>> freezer.freeze()
            >>> parameter_groups = freezer.get_parameter_groups([0.01, 0.1], include_frozen=True)
            >>> optimizer = torch.optim.AdamW(parameter_groups, weight_decay=0.05)
            >>> [(group["lr"], len(group["params"])) for group in optimizer.param_groups]
            [(0.01, 2), (0.1, 2)]
        """
        groups = self._groups()
        parameters = {
            index: [p for p in group if p.requires_grad or (include_frozen and is_frozen(p))]
            for index, group in enumerate(owned_parameters(groups.parameters))
        }
        if not any(parameters.values()):
            raise ValueError(
                f"There is no parameter to make groups of: all of {type(self.model).__name__} is frozen. Unfreeze a "
                "layer group first, or pass include_frozen=True."
            )
        with_rates = self._with_rates(groups, parameters, learning_rates)
        options: list[dict[nn.Parameter, dict[str, Any]]] = []
        if timm_groups is not None:
            options.append(options_in_timm_groups(self.model, timm_groups, chain(*parameters.values())))
        if not decay_norms_and_biases:
            options.append(options_without_decay(self.model))
        return divide_groups(with_rates, options)

    def add_frozen_parameters(
        self, optimizer: Optimizer, learning_rates: LearningRates, from_index: int = -1, to_index: int = 0
    ) -> None:
        """Add the frozen parameters to an optimizer that was made without them, with a group for each layer group.

        You call it before you create a scheduler for the optimizer, because torch's schedulers do not accept further
        groups, and before you unfreeze the parameters. The optimizer does not change the parameters until they are
        unfrozen, and keeps its state for the other parameters. If you create the optimizer yourself,
        ``get_parameter_groups(..., include_frozen=True)`` is simpler.

        Args:
            optimizer: An optimizer that holds none of the frozen parameters.
            learning_rates: A rate for all layer groups, a list with a rate for each group (as ``get_learning_rates``
                returns it), or a mapping from indexes to rates.
            from_index: The index of a layer group at one end of the range whose frozen parameters are added. The
                default, -1, is the last.
            to_index: The index of the layer group at the other end, which is included. The default, 0, is the first, so
                by default all frozen parameters are added.

        Raises:
            ValueError: No parameter is frozen, the optimizer already holds some of these parameters, or a layer group
                with frozen parameters has no rate; nothing was added.
            IndexError: There is no layer group at an index; nothing was added.
            TypeError: A rate is not a number, or an index is not an integer; nothing was added.

        Example:
            >>> import torch
            >>> from torch import nn
            >>> from pa_finetuning import ModelFreezer
            >>> model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
            >>> freezer = ModelFreezer(model)
            >>> freezer.freeze()
            >>> optimizer = torch.optim.SGD(freezer.get_trainable_parameters(), lr=0.1)
            >>> freezer.add_frozen_parameters(optimizer, freezer.get_learning_rates(0.1, factor=0.5))
            >>> [group["lr"] for group in optimizer.param_groups]
            [0.1, 0.05]
        """
        groups = self._groups()
        indexes = groups.indexes_between(from_index, to_index)
        owned = owned_parameters(groups.parameters[index] for index in indexes)
        parameters = {index: list(filter(is_frozen, group)) for index, group in zip(indexes, owned, strict=True)}
        if not any(parameters.values()):
            raise ValueError(
                f"There is nothing to add to the optimizer: no parameter of layer groups {list(indexes)} of "
                f"{type(self.model).__name__} is frozen. Freeze some first; trainable parameters are given to the "
                "optimizer when it is made."
            )
        held = held_by(optimizer)
        doubled = [index for index, group in parameters.items() if not held.isdisjoint(group)]
        if doubled:
            raise ValueError(
                f"Given: {type(optimizer).__name__} that already holds frozen parameters of layer groups {doubled}. "
                "Expected: an optimizer without them, or the learning rates given here would have no effect. Make "
                "it of get_trainable_parameters(); or make it of get_parameter_groups(learning_rates, "
                "include_frozen=True), and add nothing."
            )
        for parameter_group in self._with_rates(groups, parameters, learning_rates):
            optimizer.add_param_group(self._named_as_in(optimizer, parameter_group))

    def _groups(self) -> LayerGroups:
        return LayerGroups(self.model, self.get_layer_groups())

    def _with_rates(
        self, groups: LayerGroups, parameters: dict[int, list[nn.Parameter]], learning_rates: LearningRates
    ) -> list[dict[str, Any]]:
        rates = rates_by_group(groups, learning_rates)
        without_rate = [index for index, group in parameters.items() if group and index not in rates]
        if without_rate:
            raise ValueError(
                f"Given: learning rates for layer groups {sorted(rates)}. Expected: a rate for each layer group with "
                f"parameters to train; {without_rate} lack a rate. Add rates to the mapping, or freeze these "
                "groups and leave them out."
            )
        return [{"params": group, "lr": rates[index]} for index, group in parameters.items() if group]

    def _named_as_in(self, optimizer: Optimizer, parameter_group: dict[str, Any]) -> dict[str, Any]:
        """Give a group names if the optimizer has them; an optimizer with names accepts no groups without."""
        if not any("param_names" in group for group in optimizer.param_groups):
            return parameter_group
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        return {**parameter_group, "params": [(names[parameter], parameter) for parameter in parameter_group["params"]]}

    def _is_frozen(self, module: nn.Module, parameters: Iterable[nn.Parameter]) -> bool:
        exempt = self._exempt_parameters(module)
        return _only_frozen(parameter for parameter in parameters if is_frozen(parameter) or parameter not in exempt)

    def _exempt_parameters(self, group: nn.Module) -> set[nn.Parameter]:
        exempt = filter(self._is_exempt, group.modules())
        return {parameter for module in exempt for parameter in module.parameters(recurse=False)}

    def _is_exempt(self, module: nn.Module) -> bool:
        return isinstance(module, _BatchNorm) and not self.freeze_batch_norms


def _only_frozen(parameters: Iterable[nn.Parameter]) -> bool:
    frozen = [is_frozen(parameter) for parameter in parameters if can_have_gradients(parameter)]
    return bool(frozen) and all(frozen)


def _without_wrappers(model: nn.Module) -> nn.Module:
    model = dict(model.named_children()).get("_orig_mod", model)
    wrapper = type(model)
    if issubclass(wrapper, (DataParallel, DistributedDataParallel)):
        raise TypeError(
            f"Given: a model in {wrapper.__name__}. Expected: the model itself. Pass the module that was wrapped, "
            "freeze it, and wrap it afterwards: the wrapper does not notice when parameters are frozen later."
        )
    if not any(True for _ in model.parameters()):
        raise ValueError(
            f"Given: {type(model).__name__} without parameters. Expected: a model with parameters. Build its "
            "layers first."
        )
    return model
