"""Checks of what users pass to a trainer, which raise an error if it cannot work or would train nothing."""

from __future__ import annotations

import inspect
from typing import TypeVar, cast

from torch import nn
from torch.optim import Optimizer

from pa_core.errors import ArgumentTypeError, ConfigurationError
from pa_core.optimizer_parameters import parameters_of

__all__ = [
    "check_kind_of_module",
    "check_kind_of_optimizer",
    "check_optimizer",
    "check_optimizer_factory",
    "check_optimizer_of_scheduler",
    "check_precision_and_device",
    "check_scheduler",
    "check_scheduler_factory",
    "check_trainer_arguments",
    "refuse_run_within_run",
    "require_evaluation_data",
    "require_evaluation_loader",
    "require_step_without_closure",
]

_LoaderT = TypeVar("_LoaderT")

_PRECISIONS = ("no", "bf16", "fp16")
_MEANT = {
    "fp32": "no", "float32": "no", "torch.float32": "no", "none": "no", "false": "no",
    "bfloat16": "bf16", "torch.bfloat16": "bf16",
    "float16": "fp16", "half": "fp16", "torch.float16": "fp16",
}  # fmt: skip
"""Other names of the precisions."""


def check_trainer_arguments(model: object, loss_func: object, optimizer: object) -> None:
    """Raise an error for a class instead of its instance, a name instead of the object, and swapped arguments.

    Args:
        model: The model of the trainer.
        loss_func: Its loss function, or None.
        optimizer: Its optimizer, or None.

    Raises:
        ArgumentTypeError: One of them is something else.
    """
    check_kind_of_module(model, "model")
    if _is_optimizer(loss_func):
        raise _swapped(loss_func, optimizer)
    if loss_func is not None:
        _check_kind_of_loss_function(loss_func)
    if optimizer is not None:
        check_kind_of_optimizer(optimizer)


def check_precision_and_device(mixed_precision: object, cpu: object) -> None:
    """Raise an error for an unknown mixed precision, and a ``cpu`` that is not a bool.

    Args:
        mixed_precision: The argument of the trainer, or None.
        cpu: The argument of the trainer, or None.

    Raises:
        ConfigurationError: The precision is none that a trainer knows.
        ArgumentTypeError: ``cpu`` is neither a bool nor None.
    """
    if mixed_precision is not None and mixed_precision not in _PRECISIONS:
        raise ConfigurationError(
            "This is not a mixed precision that a run computes in.",
            given=f"mixed_precision={mixed_precision!r}",
            expected="'no', 'bf16' or 'fp16'; or None for what the script was launched with",
            do=_precision_advice(str(mixed_precision).lower()),
        )
    if cpu is not None and not isinstance(cpu, bool):
        raise ArgumentTypeError(
            f"cpu must be True, or None for the device that the script was launched on, got {cpu!r}."
        )


def refuse_run_within_run(name: str, running: str | None) -> None:
    """Raise an error if another run of the same trainer is in progress, which a new one would overwrite.

    Args:
        name: The method that was called: ``"train"``, ``"evaluate"`` or ``"predict"``.
        running: The method that is in progress, None if there is none.

    Raises:
        ConfigurationError: There is one.
    """
    if running is None:
        return
    if running == "predict":
        raise ConfigurationError(
            "A trainer has one run at a time, and the iterator of a prediction is still open.",
            given=f"{name}() before the last batch of predict() was taken",
            do="Call close() on what predict() returned, if the rest is not needed.",
        )
    if name == "predict":
        do = f"Call predict() after {running}() has returned."
    elif name == "train":
        do = f"Call train() after {running}() has returned, or train with a separate trainer."
    elif running == "train":
        do = (
            "Call trainer.run_evaluation_epoch(is_intermediate=True) to evaluate the evaluation dataset at this point. "
            "Give other datasets to train() by name, such as eval_dataset={'val': ..., 'test': ...}."
        )
    else:
        do = "Call evaluate() again after it has returned."
    raise ConfigurationError(
        "A trainer has one run at a time.",
        given=f"{name}() within {running}(), called in a callback, a hook or a step",
        do=do,
    )


def check_optimizer(model: nn.Module, optimizer: Optimizer | None) -> None:
    """Raise an error for an optimizer that would train nothing, silently: one of another model.

    Args:
        model: The model that is to be trained.
        optimizer: What was given to the trainer.

    Raises:
        ConfigurationError: There is no optimizer, or it holds none of the model's parameters.
    """
    if optimizer is None:
        raise ConfigurationError(
            "There is no optimizer to train with.",
            given="optimizer=None",
            do="Pass one, for example torch.optim.SGD(model.parameters(), lr=0.1).",
        )
    of_model = {id(parameter) for parameter in model.parameters()}
    of_optimizer = [id(parameter) for parameter in parameters_of(optimizer)]
    if not of_model:
        raise ConfigurationError(
            "The model has no parameters, so that nothing would be trained.",
            given=f"{type(model).__name__} without parameters",
            do="Register the parts of the model with it: as attributes, or in nn.ModuleList instead of a list.",
        )
    if not of_optimizer:
        raise ConfigurationError(
            "The optimizer has no parameters, so that nothing would be trained.",
            given=f"{type(optimizer).__name__} of no parameters",
            do="Create the optimizer from model.parameters().",
        )
    if of_model.isdisjoint(of_optimizer):
        raise ConfigurationError(
            "The optimizer holds none of the model's parameters, so that nothing would be trained.",
            given=f"{type(optimizer).__name__} of {len(of_optimizer)} other parameters",
            do="Create the optimizer from the parameters of the model that is trained: after replacing parts of the "
            "model, not before.",
        )


def require_step_without_closure(optimizer: Optimizer) -> None:
    """Raise an error for an optimizer that computes losses by itself where nothing gives it a function for that.

    Args:
        optimizer: The optimizer.

    Raises:
        ConfigurationError: Its ``step`` needs an argument.
    """
    # A scheduler of torch replaces the method by a function that has the signature of the unbound one.
    parameters = [one for name, one in inspect.signature(optimizer.step).parameters.items() if name != "self"]
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    if any(one.default is inspect.Parameter.empty and one.kind not in variable for one in parameters):
        name = type(optimizer).__name__
        raise ConfigurationError(
            "The optimizer computes losses by itself, which a step after the backward pass cannot do.",
            given=f"{name}, whose step(closure) needs its argument",
            do="Train with a subclass of Trainer whose optimizer_step() calls self.optimizer.step(closure): closure() "
            "clears the gradients, calculates the loss of the batch, calls loss.backward() and returns the loss.",
        )


def check_optimizer_factory(factory: object, optimizer: object) -> None:
    """Raise an error for an optimizer in the place of a function that makes one, and both of them.

    Args:
        factory: What was given as ``create_optimizer_fn``, or None.
        optimizer: What was given as ``optimizer``, or None.

    Raises:
        ArgumentTypeError: It is not a function.
        ConfigurationError: There is an optimizer already.
    """
    if factory is None:
        return
    if _is_optimizer(factory) or not callable(factory):
        name = (factory if isinstance(factory, type) else type(factory)).__name__
        raise ArgumentTypeError(
            "create_optimizer_fn is not a function of the model.",
            given=f"the class {name}" if isinstance(factory, type) else f"an instance of {name}",
            do=f"Pass lambda model: {name}(model.parameters(), ...), or the optimizer as optimizer."
            if _is_optimizer(factory)
            else "Pass lambda model: torch.optim.AdamW(model.parameters()), or an optimizer as optimizer.",
        )
    if optimizer is not None:
        raise ConfigurationError(
            "There are an optimizer and create_optimizer_fn, which makes one. Pass optimizer=None, or leave "
            "create_optimizer_fn out."
        )


def check_scheduler_factory(factory: object) -> None:
    """Raise an error for a scheduler instead of its factory; it may be callable, but not with an optimizer.

    Args:
        factory: What was given as ``create_scheduler_fn``.

    Raises:
        ArgumentTypeError: It is not a factory.
    """
    if not callable(factory) or (hasattr(factory, "load_state_dict") and not isinstance(factory, type)):
        name = type(factory).__name__
        raise ArgumentTypeError(
            "create_scheduler_fn is not a function.",
            given=f"an instance of {name}",
            do=f"Pass functools.partial({name}, ...) or lambda optimizer: {name}(optimizer, ...).",
        )


def check_scheduler(scheduler: object) -> None:
    """Raise an error for anything that a factory returned if it is not a scheduler.

    Without a return statement it is None, with which a run would train at a constant rate, silently; some return the
    scheduler and something more, as timm's ``create_scheduler_v2`` does.

    Args:
        scheduler: What the factory returned.

    Raises:
        ArgumentTypeError: It is None or a tuple.
    """
    if scheduler is None:
        raise ArgumentTypeError(
            "create_scheduler_fn returned None. Add the return statement, or leave create_scheduler_fn out to train "
            "without a scheduler."
        )
    if isinstance(scheduler, tuple):
        kinds = ", ".join(type(item).__name__ for item in cast("tuple[object, ...]", scheduler))
        raise ArgumentTypeError(
            f"create_scheduler_fn returned a tuple of {kinds}, which is more than the scheduler. Return that item, for "
            "example with lambda optimizer: create(optimizer)[0]."
        )


def check_optimizer_of_scheduler(scheduler: object, optimizer: Optimizer) -> None:
    """Raise an error for a scheduler that a factory made for another optimizer, whose rates it would change.

    Args:
        scheduler: What the factory returned.
        optimizer: What the factory was called with.

    Raises:
        ConfigurationError: The scheduler has an optimizer, and that one has none of the same parameters.
    """
    other: object = getattr(scheduler, "optimizer", None)
    if other is optimizer or not isinstance(other, Optimizer):
        return
    if {id(one) for one in parameters_of(optimizer)}.isdisjoint(id(one) for one in parameters_of(other)):
        raise ConfigurationError(
            "create_scheduler_fn made a scheduler of another optimizer, which would change nothing of this run.",
            given=f"{type(scheduler).__name__} of an optimizer with other parameters",
            do=f"Pass lambda optimizer: {type(scheduler).__name__}(optimizer, ...).",
        )


def require_evaluation_data(data: object) -> None:
    """Raise an error for ``evaluate()`` without data to evaluate.

    Args:
        data: What was passed, or is there from the run before.

    Raises:
        ConfigurationError: There is nothing.
    """
    if data is None:
        raise ConfigurationError(
            "evaluate() has no dataset, and the trainer has no evaluation dataset from train(). Call evaluate(dataset)."
        )


def check_sanity_evaluation(num_batches: int, eval_dataset: object) -> None:
    """Raise an error for a sanity evaluation of nothing.

    Args:
        num_batches: How many batches are to be evaluated before the first epoch.
        eval_dataset: What was passed to ``train()``.

    Raises:
        ConfigurationError: There is no evaluation dataset.
    """
    if num_batches and eval_dataset is None:
        raise ConfigurationError(
            f"sanity_eval_steps={num_batches} has nothing to evaluate. Pass eval_dataset, or leave sanity_eval_steps "
            "out."
        )


def require_evaluation_loader(loader: _LoaderT | None) -> _LoaderT:
    """Return the evaluation loader of a run that evaluates within its epochs.

    Args:
        loader: The loader, None in a run that does not evaluate.

    Raises:
        ConfigurationError: There is none.
    """
    if loader is None:
        raise ConfigurationError(
            "The run has no evaluation dataset to evaluate. Pass one, or remove the callback that evaluates."
        )
    return loader


def _precision_advice(name: str) -> str:
    if name == "fp8":
        return "Use mixed_precision='bf16': in fp8, layers would have to be converted, which is not done here."
    meant = name if name in _PRECISIONS else _MEANT.get(name)
    return "Pass one of these strings." if meant is None else f"Pass mixed_precision={meant!r}."


def check_kind_of_module(module: object, argument: str) -> None:
    """Raise an error for anything but a module.

    Args:
        module: What was given.
        argument: What the argument is called: "model", or "module".

    Raises:
        ArgumentTypeError: It is a class, or something else.
    """
    if isinstance(module, nn.Module):
        return
    if isinstance(module, type):
        raise ArgumentTypeError(
            f"The {argument} is a class.",
            given=f"{argument}={module.__name__}",
            do=f"Create the {argument} first, with the arguments that it needs: {argument}={module.__name__}(...).",
        )
    raise ArgumentTypeError(
        f"The {argument} is not a torch.nn.Module.",
        given=f"a {argument} of type {type(module).__name__}",
        do="Pass the module that is to be trained as the first argument."
        if argument == "model"
        else "Pass the module itself.",
    )


def _check_kind_of_loss_function(loss_func: object) -> None:
    if isinstance(loss_func, type):
        raise ArgumentTypeError(
            "The loss function is a class.",
            given=f"loss_func={_qualified(loss_func)}",
            do=f"Add the parentheses that create it: loss_func={_qualified(loss_func)}().",
        )
    if isinstance(loss_func, str):
        named = _loss_named(loss_func)
        raise ArgumentTypeError(
            "The loss function is a string.",
            given=f"loss_func={loss_func!r}",
            do=f"Pass loss_func=torch.nn.{named}()." if named else "Pass the function that the name stands for.",
        )
    if not callable(loss_func):
        raise ArgumentTypeError(
            "The loss function cannot be called.",
            given=f"a loss_func of type {type(loss_func).__name__}",
            do="Pass the function itself, not what it returned.",
        )


def _loss_named(name: str) -> str | None:
    """The class of torch that a name such as ``"mse"`` or ``"cross_entropy"`` stands for."""
    wanted = _letters(name)
    return next((one for one in dir(nn) if one.endswith("Loss") and _letters(one) == wanted), None)


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower())).removesuffix("loss")


def check_kind_of_optimizer(optimizer: object) -> None:
    """Raise an error for anything but an optimizer.

    Raises:
        ArgumentTypeError: It is a class, or something else.
    """
    if isinstance(optimizer, Optimizer):
        return
    if isinstance(optimizer, type):
        raise ArgumentTypeError(
            "The optimizer is a class.",
            given=f"optimizer={_qualified(optimizer)}",
            do=f"Create it: optimizer={_qualified(optimizer)}(model.parameters(), lr=...).",
        )
    # Optimizers of other libraries need not derive from torch's.
    if not all(hasattr(optimizer, name) for name in ("param_groups", "step", "zero_grad")):
        raise ArgumentTypeError(
            "The optimizer is not an optimizer.",
            given=f"optimizer={optimizer!r}"
            if isinstance(optimizer, str)
            else f"an optimizer of type {type(optimizer).__name__}",
            do="Pass an optimizer of the model's parameters, for example "
            "optimizer=torch.optim.SGD(model.parameters(), lr=0.1).",
        )


def _is_optimizer(value: object) -> bool:
    return isinstance(value, Optimizer) or (isinstance(value, type) and issubclass(value, Optimizer))


def _swapped(loss_func: object, optimizer: object) -> ArgumentTypeError:
    return ArgumentTypeError(
        "The loss function is an optimizer.",
        given=f"loss_func={_short(loss_func)}, optimizer={_short(optimizer)}",
        do="Swap the two arguments, or pass them by name: Trainer(model, loss_func=..., optimizer=...).",
    )


def _short(value: object) -> str:
    if value is None or isinstance(value, type):
        return value.__name__ if value else "None"
    return f"{type(value).__name__}(...)"


def _qualified(kind: type) -> str:
    """The name under which scripts know a class: names of torch's classes begin with nn or torch.optim."""
    if getattr(nn, kind.__name__, None) is kind:
        return f"nn.{kind.__name__}"
    return f"torch.optim.{kind.__name__}" if kind.__module__.startswith("torch.optim") else kind.__name__
