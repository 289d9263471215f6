"""What may be wrapped, and when: the errors of trials that request what cannot work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from pa_core import ArgumentTypeError
from pa_core.parts import is_sharded_module, parameters_of, warn_user
from pa_trial.errors import InternalException, InvalidExperimentException

__all__ = [
    "apart_from_others",
    "check_backward_passes",
    "describe_model",
    "foreign_parameters",
    "gradients_not_exchanged",
    "loaded_to_be_looked_at",
    "manual_zeroing",
    "not_wrapped",
    "require_initialized",
    "require_model",
    "require_optimizer",
    "require_some",
    "scaler_too_late",
    "second_scaler",
    "unscaled_too_early",
    "warn_of_compression",
    "warn_of_foreign_parameters",
    "warn_of_unwrapped_optimizer",
    "wrapped_in_training",
]

_SHOWN = 4


def require_model(model: object) -> None:
    """Raise an error for anything that is not a whole module.

    Raises:
        ArgumentTypeError: It is not a module.
        InvalidExperimentException: Its parameters are split over the processes.
    """
    if isinstance(model, nn.Module):
        if is_sharded_module(model):
            raise _is_sharded(model)
        return
    raise ArgumentTypeError(
        "Only modules can be wrapped as models.",
        given=f"{_describe(model)} in wrap_model()",
        expected="an instance of torch.nn.Module",
        do="Create the module first: context.wrap_model(MyModel()).",
    )


def _is_sharded(model: nn.Module) -> InvalidExperimentException:
    return InvalidExperimentException(
        "Sharded models are not supported in a trial.",
        given=f"{type(model).__name__}, whose parameters fully_shard has split over the processes",
        expected="a model that was not sharded",
        do="Wrap the whole model; to train one that is larger than a device, use pa_core.Trainer or pa_core.Run.",
    )


def require_optimizer(optimizer: object) -> None:
    """Raise an error for anything that is not an optimizer.

    Raises:
        ArgumentTypeError: It is not.
    """
    if isinstance(optimizer, Optimizer):
        return
    raise ArgumentTypeError(
        "Only optimizers can be wrapped as optimizers.",
        given=f"{_describe(optimizer)} in wrap_optimizer()",
        expected="an instance of torch.optim.Optimizer",
        do="Create the optimizer first: context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1)).",
    )


def check_backward_passes(number: int) -> None:
    """Raise an error for a number of backward passes that cannot be.

    Raises:
        InvalidExperimentException: It is less than 1.
    """
    if number < 1:
        raise InvalidExperimentException(
            "An optimizer needs at least one backward pass for each step.",
            given=f"backward_passes_per_step={number}",
            expected="an integer of at least 1",
            do="Leave the argument out: any number of backward passes per step works.",
        )


def warn_of_compression() -> None:
    """Warn about ``fp16_compression``."""
    warn_user("fp16_compression=True has no effect: gradients are exchanged in their own dtype. Leave it out.")


def require_some(models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
    """Raise an error for training without a model or an optimizer.

    Raises:
        InvalidExperimentException: One of them is missing.
    """
    for parts, kind in ((models, "model"), (optimizers, "optimizer")):
        if not parts:
            raise InvalidExperimentException(
                f"The trial has no wrapped {kind}.",
                given=f"no call of context.wrap_{kind}()",
                expected="at least one wrapped model and one wrapped optimizer",
                do=f"In __init__ of the trial, wrap it: self.{kind} = context.wrap_{kind}({kind}).",
            )


def loaded_to_be_looked_at() -> InvalidExperimentException:
    """Return the error of whoever trains with a context that leaves models where they are."""
    return InvalidExperimentException(
        "A trial that was loaded from a checkpoint cannot be trained.",
        given="fit() with the context that load_trial_from_checkpoint_path made",
        expected="the context of init(), with which a trial of the same class is made",
        do="Make the trial within init(), and pass latest_checkpoint= or warm_start= to fit().",
    )


def require_initialized(model: nn.Module) -> None:
    """Raise an error for lazy modules that have seen no batch: processes cannot exchange what is not there yet.

    Raises:
        InvalidExperimentException: A parameter or a buffer has no shape.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    lazy = [name for name, tensor in tensors.items() if is_lazy(tensor)]
    if lazy:
        raise InvalidExperimentException(
            "A model has parameters without a shape, which several processes cannot share.",
            given=f"{', '.join(lazy[:_SHOWN])} of a lazy module",
            expected="a model that has seen a batch",
            do="Call the model once with a batch of zeros before context.wrap_model().",
        )


def describe_model(model: nn.Module, number: int) -> Mapping[str, str]:
    """Return the properties of a model that have to be the same on all processes.

    Args:
        model: The model.
        number: How many models were wrapped before.
    """
    return {
        f"model {number}, {kind} {name}": f"{tuple(tensor.shape)} of {tensor.dtype}"
        for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers()))
        for name, tensor in tensors
    }


def foreign_parameters(optimizer: Optimizer, models: Iterable[nn.Module]) -> list[Tensor]:
    """Return the parameters of an optimizer that no model has."""
    known = {id(parameter) for model in models for parameter in model.parameters()}
    return [parameter for parameter in parameters_of(optimizer) if id(parameter) not in known]


def warn_of_foreign_parameters(foreign: Sequence[Tensor]) -> None:
    """Warn about parameters that no checkpoint would have."""
    warn_user(
        f"An optimizer updates parameters that no wrapped model has: {_describe_shapes(foreign)}. Checkpoints do not "
        "contain them, so a resumed training starts them from scratch. Wrap the module that has them with "
        "context.wrap_model()."
    )


def warn_of_unwrapped_optimizer(optimizer: Optimizer) -> None:
    """Warn about an optimizer whose state no checkpoint would have."""
    warn_user(
        f"step_optimizer() steps an optimizer that is not wrapped: {type(optimizer).__name__}. Checkpoints do not "
        "contain its state, so a resumed training starts it from scratch. Wrap it with context.wrap_optimizer()."
    )


def apart_from_others(foreign: Sequence[Tensor]) -> InvalidExperimentException:
    """Return the error of several processes that would train a parameter apart from each other."""
    return InvalidExperimentException(
        "An optimizer updates parameters that no wrapped model has: each process would train its own.",
        given=f"{_describe_shapes(foreign)}, and several processes",
        expected="parameters of wrapped models",
        do="Wrap the module that has them with context.wrap_model() in __init__ of the trial.",
    )


def gradients_not_exchanged() -> InvalidExperimentException:
    """Return the error of an optimizer that is stepped with gradients of this process alone."""
    return InvalidExperimentException(
        "An optimizer was stepped with the gradients of one process alone, so the processes would diverge.",
        given="optimizer.step() after a backward pass whose gradients were not exchanged",
        expected="context.backward(loss), and context.step_optimizer(optimizer)",
        do="Call these instead of loss.backward() and optimizer.step(). With aggregated gradients, they also wait for "
        "the end of a group.",
    )


def unscaled_too_early() -> InvalidExperimentException:
    """Return the error of gradients that were unscaled by each process on its own."""
    return InvalidExperimentException(
        "Gradients were unscaled before they were exchanged, so the processes may not agree on whether to step.",
        given="scaler.unscale_(optimizer) after a backward pass without context.backward()",
        expected="context.backward(scaler.scale(loss)) before it",
        do="Pass the scaled loss to context.backward().",
    )


def manual_zeroing(aggregation_frequency: int) -> InvalidExperimentException:
    """Return the error of a trial that aggregates gradients and zeroes them itself."""
    return InvalidExperimentException(
        "With aggregated gradients, the step has to zero them.",
        given=f"auto_zero_grads=False with aggregation_frequency={aggregation_frequency}",
        expected="auto_zero_grads=True",
        do="Leave auto_zero_grads out.",
    )


def not_wrapped(given: str) -> InvalidExperimentException:
    """Return the error of a scheduler whose optimizer is not wrapped.

    Args:
        given: What its optimizer is.
    """
    return InvalidExperimentException(
        "The optimizer of the scheduler is not wrapped.",
        given=given,
        expected="a scheduler of an optimizer that wrap_optimizer() returned",
        do="Wrap the optimizer first, then create the scheduler with it.",
    )


def scaler_too_late() -> InvalidExperimentException:
    """Return the error of a scaler that comes after the models."""
    return InvalidExperimentException(
        "Mixed precision must be set up before the first model is wrapped.",
        given="wrap_scaler() or use_amp() after wrap_model()",
        expected="the other order",
        do="Move the call up, before the first context.wrap_model().",
    )


def second_scaler() -> InvalidExperimentException:
    """Return the error of a second scaler."""
    return InvalidExperimentException(
        "A trial has one scaler.",
        given="a second call of wrap_scaler() or use_amp()",
        expected="one of the two, once",
        do="Remove one of the calls. One scaler serves all optimizers.",
    )


def wrapped_in_training(what: str) -> InternalException:
    """Return the error of something that is wrapped in the course of training.

    Args:
        what: What is wrapped.
    """
    return InternalException(
        f"A {what} cannot be wrapped during training.",
        given=f"wrap_{what}() after fit() has begun",
        expected=f"all calls of wrap_{what}() before fit()",
        do="Move the call to __init__ of the trial.",
    )


def _describe(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"an object of type {type(value).__name__}"


def _describe_shapes(tensors: Sequence[Tensor]) -> str:
    shown = ", ".join(str(tuple(tensor.shape)) for tensor in tensors[:_SHOWN])
    more = f" and {len(tensors) - _SHOWN} more" if len(tensors) > _SHOWN else ""
    return f"of shape {shown}{more}"
