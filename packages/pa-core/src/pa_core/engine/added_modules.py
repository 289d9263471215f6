"""The modules that scripts add to a trainer: trained with the model by the same loss, or frozen."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pa_core._tensors import is_sharded_module, parameters_of, parameters_of_module, unwrap_model
from pa_core.distributed import broadcast_weights
from pa_core.engine.modes import put_into_training
from pa_core.errors import ConfigurationError, UnsupportedConfigurationError
from pa_core.steps.compatibility import require_whole_model
from pa_core.steps.input_checks import (
    check_kind_of_module,
    check_kind_of_optimizer,
    check_scheduler_factory,
    require_step_without_closure,
)
from pa_core.steps.placeholders import create_scheduler
from pa_core.types import SchedulerFactory, SchedulerLike

_RESERVED = ("loss_func", "model", "optimizer", "scheduler")
"""The names of the trainer's own objects in training states."""


@dataclass
class AddedModule:
    """An added module with its optimizer and its scheduler.

    Attributes:
        module: The user's module.
        optimizer: Its own optimizer; None if the optimizer of the trainer has its parameters, or no optimizer does.
        create_scheduler_fn: A function that creates the scheduler of its optimizer.
        called: The module that a step calls; during a run, the module in the precision of the run.
    """

    module: nn.Module
    optimizer: Optimizer | None = None
    create_scheduler_fn: SchedulerFactory[SchedulerLike] | None = None
    called: nn.Module | None = None


class AddedModules:
    """The modules of ``add_module``, by name.

    Attributes:
        optimizers: The optimizers that belong to a single module, by its name.
        schedulers: The schedulers of these optimizers in the current or last run, by name.

    Example:
        >>> from torch.optim import SGD
        >>> model, critic = nn.Linear(1, 1), nn.Linear(1, 1)
        >>> own, of_critic = (SGD(module.parameters(), lr=0.1) for module in (model, critic))
        >>> added = AddedModules()
        >>> added.add("critic", AddedModule(critic, of_critic), model, own)
        >>> list(added.called()), list(added.optimizers)
        (['critic'], ['critic'])
    """

    def __init__(self) -> None:
        self.optimizers: dict[str, Optimizer] = {}
        self.schedulers: dict[str, SchedulerLike] = {}
        self._by_name: dict[str, AddedModule] = {}
        self._is_prepared = False

    def add(self, name: str, added: AddedModule, model: nn.Module, optimizer: Optimizer | None) -> None:
        """Add a module; an error leaves the modules unchanged.

        Args:
            name: The name of the module.
            added: The module.
            model: The model of the trainer.
            optimizer: The optimizer of the trainer.

        Raises:
            ConfigurationError: The name is taken, the module cannot be trained with others, or a run is in progress.
            ArgumentTypeError: An argument has the wrong type, for example a class instead of an instance.
        """
        if self._is_prepared:
            raise ConfigurationError(
                f"add_module({name!r}, ...) in a callback, a hook or a step is too late. Call it after the trainer is "
                "created."
            )
        _check_name(name, self._by_name)
        check_kind_of_module(added.module, "module")
        require_whole_model(added.module)
        if added.optimizer is not None:
            check_kind_of_optimizer(added.optimizer)
            require_step_without_closure(added.optimizer)
        _check_scheduler_factory(name, added)
        _check_parameters(name, added, self._parameters_beside(name, model), optimizer)
        self._by_name[name] = added
        if added.optimizer is not None:
            self.optimizers[name] = added.optimizer

    def require_usable(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        """Raise an error if a script has since replaced the model or the optimizer.

        Raises:
            ConfigurationError: A module cannot be trained with the others.
        """
        for name, added in self._by_name.items():
            _check_parameters(name, added, self._parameters_beside(name, model), optimizer)

    def _parameters_beside(self, name: str, model: nn.Module) -> dict[int, str]:
        """Return the other owner of each parameter, by the id of the parameter."""
        others = {f"the module {other!r}": added.module for other, added in self._by_name.items() if other != name}
        return {
            id(parameter): owner
            for owner, module in {**others, "the model": model}.items()
            for parameter in module.parameters()
        }

    def called(self) -> dict[str, nn.Module]:
        """Return the modules that a step calls, by name."""
        return {name: added.called or added.module for name, added in self._by_name.items()}

    def trained(self, optimizer: Optimizer | None) -> dict[str, nn.Module]:
        """Return the modules that are trained, by their own or the trainer's optimizer, without wrappers."""
        if not self._by_name:
            return {}
        ours = _ids_of_parameters(optimizer)
        return {
            name: unwrap_model(added.module, keep_torch_compile=False)
            for name, added in self._by_name.items()
            if added.optimizer is not None or any(id(parameter) in ours for parameter in added.module.parameters())
        }

    def untrained(self, optimizer: Optimizer | None) -> dict[str, nn.Module]:
        """Return the modules that no optimizer trains, for example a teacher, without wrappers."""
        trained = self.trained(optimizer)
        return {
            name: unwrap_model(added.module, keep_torch_compile=False)
            for name, added in self._by_name.items()
            if name not in trained
        }

    def create_schedulers(self, values: Mapping[str, float]) -> None:
        """Create the schedulers of a run.

        Args:
            values: The values of placeholders.

        Raises:
            TypeError: A factory returned no scheduler.
        """
        for name, optimizer in self.optimizers.items():
            factory = self._by_name[name].create_scheduler_fn
            if factory is not None:
                self.schedulers[name] = create_scheduler(factory, optimizer, values)

    def prepare(
        self, place: Callable[[nn.Module, bool], nn.Module], optimizer: Optimizer | None, *, for_training: bool
    ) -> None:
        """Place all modules on the device, in the precision of the run; untrained modules are put into eval mode.

        Args:
            place: Called with a module and whether it is trained; returns the module that a step calls.
            optimizer: The optimizer of the trainer.
            for_training: Whether the run trains.
        """
        trained = self.trained(optimizer)
        self._is_prepared = True
        for name, added in self._by_name.items():
            added.called = place(added.module, for_training and name in trained)
            if name not in trained:
                added.module.eval()
                if for_training:
                    broadcast_weights(unwrap_model(added.module, keep_torch_compile=False))

    def restore(self) -> None:
        """Restore the modules after a run, and clear the gradients of a run that stopped."""
        self._is_prepared = False
        for added in self._by_name.values():
            added.called = None
            added.module.zero_grad()
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()

    def train(self, optimizer: Optimizer | None) -> None:
        """Put the trained modules into training mode, like the model."""
        for module in self.trained(optimizer).values():
            put_into_training(module)

    def eval(self) -> None:
        """Put all modules into eval mode."""
        for added in self._by_name.values():
            added.module.eval()


def _ids_of_parameters(optimizer: Optimizer | None) -> set[int]:
    return set() if optimizer is None else {id(parameter) for parameter in parameters_of(optimizer)}


def _check_name(name: str, taken: Mapping[str, AddedModule]) -> None:
    if not name.isidentifier() or name in _RESERVED:
        raise ConfigurationError(
            f"A module cannot have the name {name!r}. Choose letters, digits and underscores, like 'critic', except "
            f"{', '.join(_RESERVED)}."
        )
    if name in taken:
        raise ConfigurationError(
            f"A module has this name already: {name!r}, a {type(taken[name].module).__name__}. Choose another name."
        )


def _check_scheduler_factory(name: str, added: AddedModule) -> None:
    if added.create_scheduler_fn is None:
        return
    check_scheduler_factory(added.create_scheduler_fn)
    if added.optimizer is None:
        raise ConfigurationError(
            f"The module {name!r} has no optimizer for create_scheduler_fn. Pass the optimizer of the module too."
        )


def _check_parameters(name: str, added: AddedModule, beside: Mapping[int, str], of_trainer: Optimizer | None) -> None:
    """Raise an error for parameters with two optimizers, and trainable parameters without an optimizer."""
    own = {id(parameter) for parameter in added.module.parameters()}
    shared = next((beside[parameter] for parameter in own if parameter in beside), None)
    if shared is not None:
        raise ConfigurationError(
            f"The module {name!r} has parameters that {shared} has too.",
            given=f"{type(added.module).__name__}, which shares parameters with {shared}",
            do="Leave it out: it is already trained as a part of the model."
            if shared == "the model"
            else "Add a single module that contains both.",
        )
    ours = _ids_of_parameters(of_trainer)
    if added.optimizer is not None:
        _check_optimizer(name, added.optimizer, own, ours)
    elif of_trainer is not None and added.module.training and own.isdisjoint(ours):
        _reject_untrained(name, added.module)


def _check_optimizer(name: str, optimizer: Optimizer, own: set[int], ours: set[int]) -> None:
    kind, held = type(optimizer).__name__, _ids_of_parameters(optimizer)
    if held & ours:
        raise ConfigurationError(
            f"Two optimizers would train the module {name!r}.",
            given=f"{kind} with {len(held & ours)} parameters that the trainer's optimizer has too",
            do="Leave optimizer out, or create the trainer's optimizer only from the parameters of the model.",
        )
    if not held or held - own:
        foreign = f"{len(held - own)} other parameters" if held else "no parameters"
        raise ConfigurationError(
            f"The optimizer does not belong to the module {name!r}.",
            given=f"{kind} with {foreign}",
            do="Create the optimizer from the parameters of the added module.",
        )


def _reject_untrained(name: str, module: nn.Module) -> None:
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if trainable:
        raise ConfigurationError(
            f"No optimizer would train the module {name!r}.",
            given=f"{type(module).__name__} with {len(trainable)} trainable parameters, in training mode",
            do="Pass its optimizer, or call requires_grad_(False) on it.",
        )


def trained_loss(loss_func: object, optimizer: Optimizer | None, model: nn.Module) -> dict[str, nn.Module]:
    """Return the loss function, by its name, if the trainer's optimizer updates its weights; empty otherwise.

    Args:
        loss_func: The loss function.
        optimizer: The optimizer of the trainer.
        model: The model, whose parameters a loss function may also hold.
    """
    if not isinstance(loss_func, nn.Module):
        return {}
    own = set(map(id, parameters_of_module(loss_func))) - set(map(id, parameters_of_module(model)))
    return {"loss_func": loss_func} if own and own & _ids_of_parameters(optimizer) else {}


def require_one_trained_module(
    attributes: Mapping[str, object], model: nn.Module, added: Collection[nn.Module] = ()
) -> None:
    """Raise an error for further modules trained on several processes, whose gradients are not exchanged.

    Modules in ``DistributedDataParallel`` are allowed, and so are modules without trainable parameters, and modules in
    eval mode without an optimizer of the trainer, for example a teacher or a copy of the model with averaged weights.

    Args:
        attributes: The attributes of the trainer, which are searched for modules and optimizers.
        model: The model, which the trainer trains.
        added: The modules of ``add_module``, whose gradients the trainer averages.

    Raises:
        UnsupportedConfigurationError: There is such a module, or an optimizer of its parameters.
    """
    synchronised = {id(parameter) for module in (model, *added) for parameter in parameters_of_module(module)}
    found = [named for named in items_of(attributes) if isinstance(named[1], nn.Module | Optimizer | Tensor)]
    if all(id(parameter) in synchronised for _, item in found for parameter in _trainable_parameters(item)):
        return  # as in most runs; the search below takes longer
    for _, item in found:
        if isinstance(item, nn.Module):
            wrapped = [part for part in item.modules() if isinstance(part, DistributedDataParallel)]
            synchronised |= {id(parameter) for part in wrapped for parameter in parameters_of_module(part)}
    optimized = {
        id(parameter) for _, item in found if isinstance(item, Optimizer) for parameter in _trainable_parameters(item)
    }
    for _, item in found:
        if isinstance(item, nn.Module):
            untrained = [part for part in item.modules() if not part.training or _is_copy(part, model)]
            synchronised |= {
                id(parameter) for part in untrained for parameter in parameters_of_module(part)
            } - optimized
    for name, item in found:
        own = [parameter for parameter in _trainable_parameters(item) if id(parameter) not in synchronised]
        if own:
            raise _not_synchronised(name, item, own, model)


def _is_copy(module: nn.Module, model: nn.Module) -> bool:
    """Whether a module may be an average of a model: the same class, with the same names and shapes of parameters."""
    if module is model:
        return True
    if type(module) is not type(model):
        return False
    shapes, of_model = (
        {name: parameter.shape for name, parameter in network.named_parameters()} for network in (module, model)
    )
    return shapes == of_model


def items_of(attributes: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return attributes and the items of attributes that are containers, with optimizers last.

    Args:
        attributes: The attributes of an object, without its properties.

    Example:
        >>> layer = nn.Linear(1, 1)
        >>> [name for name, item in items_of({"teacher": layer, "by_name": {"a": layer}}) if item is layer]
        ['teacher', "by_name['a']"]
    """
    items = [
        item for name, attribute in attributes.items() for item in ((name, attribute), *_items_in(name, attribute))
    ]
    return sorted(items, key=lambda item: isinstance(item[1], Optimizer))


def _items_in(name: str, attribute: object) -> Iterable[tuple[str, object]]:
    if isinstance(attribute, dict):
        items = cast("dict[object, object]", attribute).items()
        return [(f"{name}[{key!r}]", value) for key, value in items]
    if isinstance(attribute, list | tuple | set | frozenset | deque):
        values = cast("Iterable[object]", attribute)
        return [(f"{name}[{number}]", value) for number, value in enumerate(values)]
    return ()


def _trainable_parameters(item: object) -> list[Tensor]:
    parameters: Iterable[Tensor] = ()
    if isinstance(item, nn.Parameter):
        parameters = (item,)
    elif isinstance(item, Optimizer):
        parameters = parameters_of(item)
    elif isinstance(item, nn.Module):
        parameters = parameters_of_module(item)
    return [parameter for parameter in parameters if parameter.requires_grad]


def _not_synchronised(name: str, item: object, own: list[Tensor], model: nn.Module) -> UnsupportedConfigurationError:
    number = f"{len(own)} trainable parameter{'' if len(own) == 1 else 's'}"
    if name == "loss_func":
        do = (
            "Pass its parameters to the optimizer of the trainer; or, to leave it untrained, call "
            "loss_func.requires_grad_(False)."
        )
    elif isinstance(item, nn.Module):
        do = (
            f"Pass it and its optimizer to trainer.add_module({_short(name)!r}, ...) before train(); or, to leave it "
            f"untrained, call self.{name}.requires_grad_(False)."
        )
    elif isinstance(item, Optimizer) and is_sharded_module(model):
        do = "Create it after the calls of fully_shard, which replaces the parameters."
    else:
        do = "Make its parameters a part of the model, or of a module of trainer.add_module()."
    return UnsupportedConfigurationError(
        "The gradients of an attribute are not exchanged between the processes: its weights would drift apart.",
        given=f"self.{name}, of type {type(item).__name__}, with {number} that the model does not have",
        do=do,
    )


def _short(name: str) -> str:
    """Return the last part of the name of an attribute or an item."""
    return name.partition("[")[0]
