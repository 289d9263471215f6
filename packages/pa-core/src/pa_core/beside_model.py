"""The modules that a trainer has besides its model: which they are, and that none of them is trained unsynchronised."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import cast

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pa_core.errors import UnsupportedConfigurationError
from pa_core.module_tensors import parameters_of_module
from pa_core.optimizer_parameters import parameters_of
from pa_core.sharded_tensors import is_sharded_module

__all__ = ["items_of", "named_modules_of", "require_one_trained_module"]


def named_modules_of(attributes: Mapping[str, object]) -> Iterator[tuple[str, nn.Module]]:
    """Yield each module among attributes, by itself or as an item of a container, and what it is called there.

    Args:
        attributes: The attributes of an object; what its properties would return is not among them.

    Example:
        >>> layer = nn.Linear(1, 1)
        >>> [name for name, _ in named_modules_of({"teacher": layer, "heads": [layer], "by_name": {"a": layer}})]
        ['teacher', 'heads[0]', "by_name['a']"]
    """
    for name, item in items_of(attributes):
        if isinstance(item, nn.Module):
            yield name, item


def require_one_trained_module(
    attributes: Mapping[str, object], model: nn.Module, added: Collection[nn.Module] = ()
) -> None:
    """Raise an error for further modules trained on several processes, whose gradients are not exchanged.

    Modules that are wrapped in ``DistributedDataParallel`` already are fine, and so are modules without trainable
    parameters. So are modules that no optimizer of the trainer holds and that are in eval mode, such as a teacher, or
    an average of the model: a copy of it, perhaps within a module that keeps it.

    Args:
        attributes: The attributes of the trainer, where other modules and optimizers are looked for.
        model: The model, which the trainer wraps.
        added: The modules that were given to ``add_module``, whose gradients the trainer averages.

    Raises:
        UnsupportedConfigurationError: There is such a module, or an optimizer of its parameters.
    """
    synchronised = {id(parameter) for module in (model, *added) for parameter in parameters_of_module(module)}
    found = [one for one in items_of(attributes) if isinstance(one[1], nn.Module | Optimizer | Tensor)]
    for _, item in found:
        if isinstance(item, nn.Module):
            wrapped = [part for part in item.modules() if isinstance(part, DistributedDataParallel)]
            synchronised |= {id(parameter) for part in wrapped for parameter in parameters_of_module(part)}
    optimized = {id(one) for _, item in found if isinstance(item, Optimizer) for one in _trainable_parameters(item)}
    for _, item in found:
        if isinstance(item, nn.Module):
            untrained = [part for part in item.modules() if not part.training or _is_copy(part, model)]
            synchronised |= {id(one) for part in untrained for one in parameters_of_module(part)} - optimized
    for name, item in found:
        own = [one for one in _trainable_parameters(item) if id(one) not in synchronised]
        if own:
            raise _not_synchronised(name, item, own, model)


def _is_copy(module: nn.Module, model: nn.Module) -> bool:
    """Whether a module is what averages of a model are: of its class, with parameters of the same names and shapes."""
    if module is model:
        return True
    if type(module) is not type(model):
        return False
    shapes, of_model = (
        {name: parameter.shape for name, parameter in one.named_parameters()} for one in (module, model)
    )
    return shapes == of_model


def items_of(attributes: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield attributes and what stands in those that are containers; optimizers last, as a module says more.

    Args:
        attributes: The attributes of an object.
    """
    items = [
        item for name, attribute in attributes.items() for item in ((name, attribute), *_items_in(name, attribute))
    ]
    return iter(sorted(items, key=lambda item: isinstance(item[1], Optimizer)))


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
    if isinstance(item, nn.Module):
        do = (
            f"Pass it and its optimizer to trainer.add_module({_short(name)!r}, ...) before train(); or, to leave it "
            f"untrained, call self.{name}.requires_grad_(False)."
        )
    elif isinstance(item, Optimizer) and is_sharded_module(model):
        do = "Create it after the calls of fully_shard, which puts new parameters in the place of those before."
    else:
        do = "Make what it trains a part of the model, or of a module that is given to trainer.add_module()."
    return UnsupportedConfigurationError(
        "The gradients of this are not exchanged between the processes: it would drift apart.",
        given=f"self.{name}, of type {type(item).__name__}, with {number} that the model does not have",
        do=do,
    )


def _short(name: str) -> str:
    """The name of an attribute, without what leads to an item of it."""
    return name.partition("[")[0]
