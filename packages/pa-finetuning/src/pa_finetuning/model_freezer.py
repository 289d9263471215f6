"""Freezing a model from the input up to some depth, and unfreezing it again, by layer groups."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]  # their common base

from pa_finetuning.lasting_eval_mode import hold_in_eval_mode, release_mode

__all__ = ["ModelFreezer"]


class ModelFreezer:
    """Freezes and unfreezes parts of a model, for fine-tuning in stages.

    A *layer group* is a direct child of the model: a layer, or a block of layers. A *layer* is a module
    without modules inside it. Layer groups are addressed by their index, in the order in which they were
    assigned to the model; negative indexes count from the end.

    Parameters that sit on the model itself, beside its layer groups, belong to the first group: position
    embeddings and class tokens are part of the input. A model that has no modules in it is one group. A
    parameter that several groups share follows the last call on any of them.

    Making a freezer makes every parameter trainable. A frozen parameter has no gradient, so that an optimizer
    leaves it alone, whatever its momentum or weight decay. Freeze before the model is wrapped for distributed
    training, and wrap it again after a change: ``DistributedDataParallel`` does not notice one.

    Args:
        model: The model, without wrappers.
        freeze_batch_norms: Whether ``freeze`` applies to batch norm layers too. By default they go on learning,
            as their statistics have to fit the new data.

    Example:
        >>> import torch
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
    """

    def __init__(self, model: nn.Module, freeze_batch_norms: bool = False) -> None:
        self.model = model
        self.freeze_batch_norms = freeze_batch_norms
        for module in model.modules():
            release_mode(module)
        for parameter in model.parameters():
            parameter.requires_grad_(_can_have_gradients(parameter))

    def get_layer_groups(self) -> list[nn.Module]:
        """Return the direct children of the model, in order; a model without any is its own only group."""
        return list(self.model.children()) or [self.model]

    def get_layers(self) -> list[nn.Module]:
        """Return the modules that have no modules inside them, from all depths, in order."""
        return [module for module in self.model.modules() if not any(module.children())]

    def get_trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are not frozen."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def freeze(self, from_index: int = 0, to_index: int = -2, set_modules_as_eval: bool = False) -> None:
        """Freeze layer groups; by default, all but the last one.

        Args:
            from_index: The index of a layer group at one end of the range to freeze.
            to_index: The index of the layer group at its other end, which is frozen too.
            set_modules_as_eval: Whether the modules that are frozen are in eval mode from now on, so that
                they neither drop out nor, if frozen, update batch norm statistics. ``model.train()`` does not
                change that; ``unfreeze`` does.

        Raises:
            IndexError: There is no layer group at one of the indexes; nothing was frozen.
        """
        for index in self._indexes_between(from_index, to_index):
            stay_trainable = set[nn.Parameter]()
            for module in self.get_layer_groups()[index].modules():
                if self._is_exempt(module):
                    stay_trainable.update(module.parameters(recurse=False))
                elif set_modules_as_eval:
                    hold_in_eval_mode(module)
            for parameter in self._parameters_of_group(index):
                if parameter not in stay_trainable:
                    parameter.requires_grad_(False)
                    parameter.grad = None

    def unfreeze(
        self, from_index: int = -1, to_index: int = 0, set_modules_as_training: bool = True
    ) -> dict[int, dict[str, list[nn.Parameter]]]:
        """Unfreeze layer groups; by default, all of them.

        Args:
            from_index: The index of a layer group at one end of the range to unfreeze.
            to_index: The index of the layer group at its other end, which is unfrozen too.
            set_modules_as_training: Whether the modules are put into training mode, and follow
                ``model.train()`` again. If False, those that ``freeze`` put into eval mode stay there.

        Returns:
            For each layer group that had frozen parameters, by its index from the start, ``{"params": [...]}``
            with the parameters that were frozen until now: what ``optimizer.add_param_group`` takes if the
            optimizer does not have them yet. No parameter appears twice.

        Raises:
            IndexError: There is no layer group at one of the indexes; nothing was unfrozen.
        """
        unfrozen: dict[int, dict[str, list[nn.Parameter]]] = {}
        for index in self._indexes_between(from_index, to_index):
            if set_modules_as_training:
                group = self.get_layer_groups()[index]
                for module in group.modules():
                    release_mode(module)
                group.train()
            frozen = [p for p in self._parameters_of_group(index) if _can_have_gradients(p) and not p.requires_grad]
            for parameter in frozen:
                parameter.requires_grad_(True)
            if frozen:
                unfrozen[index] = {"params": frozen}
        return unfrozen

    def _indexes_between(self, one: int, other: int) -> range:
        num_groups = len(self.get_layer_groups())
        for index in (one, other):
            if not -num_groups <= index < num_groups:
                raise IndexError(
                    f"There is no layer group {index}: {type(self.model).__name__} has {num_groups}. "
                    f"Expected: an index from {-num_groups} to {num_groups - 1}; see get_layer_groups()."
                )
        first, last = sorted((one % num_groups, other % num_groups))
        return range(first, last + 1)

    def _parameters_of_group(self, index: int) -> list[nn.Parameter]:
        on_the_model_itself = list(self.model.parameters(recurse=False)) if index == 0 else []
        # A dict keeps the order and drops what is there twice.
        return list(dict.fromkeys([*on_the_model_itself, *self.get_layer_groups()[index].parameters()]))

    def _is_exempt(self, module: nn.Module) -> bool:
        return isinstance(module, _BatchNorm) and not self.freeze_batch_norms


def _can_have_gradients(parameter: nn.Parameter) -> bool:
    return parameter.is_floating_point() or parameter.is_complex()
