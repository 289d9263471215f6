"""Checks of the parts that a trial wraps, with errors for parts that cannot work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from pa_trial._torch import is_sharded_module
from pa_trial.errors import ArgumentTypeError, InvalidExperimentException
from pa_trial.user_warnings import warn_user

_SHOWN = 4


def require_model(model: object) -> None:
    """Raise an error for anything that is not a whole module.

    Raises:
        ArgumentTypeError: The argument is not a module.
        InvalidExperimentException: Its parameters are split over the processes.
    """
    if not isinstance(model, nn.Module):
        problem = f"Only modules can be wrapped as models, got {_describe(model)} in wrap_model()."
        raise ArgumentTypeError(problem, do="Create the module first: context.wrap_model(MyModel()).")
    if is_sharded_module(model):
        raise InvalidExperimentException(
            "Sharded models are not supported in a trial.",
            given=f"{type(model).__name__}, whose parameters fully_shard has split over the processes",
            do="Wrap the whole model. For a model larger than a device, use pa_core.Trainer or pa_core.Run.",
        )


def require_optimizer(optimizer: object) -> None:
    """Raise an error for anything that is not an optimizer.

    Raises:
        ArgumentTypeError: The argument is not an optimizer.
    """
    if not isinstance(optimizer, Optimizer):
        problem = f"Only optimizers can be wrapped as optimizers, got {_describe(optimizer)} in wrap_optimizer()."
        raise ArgumentTypeError(problem, do="Create it first: context.wrap_optimizer(SGD(model.parameters(), lr=0.1)).")


def require_some(models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
    """Raise an error for training without a model or an optimizer.

    Raises:
        InvalidExperimentException: No model or no optimizer is wrapped.
    """
    for parts, kind in ((models, "model"), (optimizers, "optimizer")):
        if not parts:
            raise InvalidExperimentException(
                f"The trial has no wrapped {kind}.",
                do=f"In __init__ of the trial, wrap it: self.{kind} = context.wrap_{kind}({kind}).",
            )


def require_initialized(model: nn.Module) -> None:
    """Raise an error for lazy modules that have seen no batch, because processes cannot exchange missing parameters.

    Raises:
        InvalidExperimentException: A parameter or a buffer has no shape.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    lazy = [name for name, tensor in tensors.items() if is_lazy(tensor)]
    if lazy:
        raise InvalidExperimentException(
            "A model has parameters without a shape, which several processes cannot share.",
            given=f"{', '.join(lazy[:_SHOWN])} of a lazy module",
            do="Call the model once with a batch of zeros before context.wrap_model().",
        )


def check_parameters(optimizer: Optimizer, models: Iterable[nn.Module], num_processes: int) -> None:
    """Warn about parameters of an optimizer that are in no model, and therefore in no checkpoint.

    Raises:
        InvalidExperimentException: There are such parameters, and several processes.
    """
    known = {id(parameter) for model in models for parameter in model.parameters()}
    foreign = [parameter for parameter in parameters_of(optimizer) if id(parameter) not in known]
    if foreign and num_processes > 1:
        raise apart_from_others(foreign)
    if foreign:
        warn_user(
            f"An optimizer updates parameters that no wrapped model has: {_describe_shapes(foreign)}. Checkpoints do "
            "not contain them, so a resumed training starts them from scratch. Wrap the module that has them with "
            "context.wrap_model()."
        )


def apart_from_others(foreign: Sequence[Tensor]) -> InvalidExperimentException:
    """Return the error for a parameter that each of several processes would train on its own."""
    return InvalidExperimentException(
        "An optimizer updates parameters that no wrapped model has: each process would train its own.",
        given=f"{_describe_shapes(foreign)}, and several processes",
        do="Wrap the module that has them with context.wrap_model() in __init__ of the trial.",
    )


def _describe(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"an object of type {type(value).__name__}"


def _describe_shapes(tensors: Sequence[Tensor]) -> str:
    shown = ", ".join(str(tuple(tensor.shape)) for tensor in tensors[:_SHOWN])
    more = f" and {len(tensors) - _SHOWN} more" if len(tensors) > _SHOWN else ""
    return f"of shape {shown}{more}"


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Iterate over the parameters that an optimizer updates, in the order of its groups."""
    for group in optimizer.param_groups:
        yield from group["params"]
