"""Checks of users' arguments, which raise an error if training cannot work or would have no effect."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import nn
from torch.optim import Optimizer

from pa_core._tensors import parameters_of
from pa_core.errors import ArgumentTypeError, ConfigurationError


def check_trainer_arguments(model: object, loss_func: object, optimizer: object) -> None:
    """Raise an error for a class instead of its instance, a name instead of the object, and swapped arguments.

    Args:
        model: The model of the trainer.
        loss_func: Its loss function, or None.
        optimizer: Its optimizer, or None.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
    """
    check_kind_of_module(model, "model")
    if _is_optimizer(loss_func):
        raise ArgumentTypeError(
            "The loss function is an optimizer.",
            given=f"loss_func={_short(loss_func)}, optimizer={_short(optimizer)}",
            do="Swap the two arguments, or pass them by name: Trainer(model, loss_func=..., optimizer=...).",
        )
    if loss_func is not None:
        _reject_class(loss_func, "loss_func", "loss function", "")
    if loss_func is not None and not callable(loss_func):
        is_name = isinstance(loss_func, str)
        raise ArgumentTypeError(
            f"The loss function {'is a string' if is_name else 'cannot be called'}.",
            given=f"loss_func={loss_func!r}" if is_name else f"a loss_func of type {type(loss_func).__name__}",
            do="Pass the function that the name stands for, such as loss_func=torch.nn.CrossEntropyLoss()."
            if is_name
            else "Pass the function itself, not its result.",
        )
    if optimizer is not None:
        check_kind_of_optimizer(optimizer)


def check_reproducible(reproducible: object) -> None:
    """Raise an error for an unknown value of ``reproducible``.

    Args:
        reproducible: The argument.

    Raises:
        ConfigurationError: The value is unknown.
    """
    if reproducible not in (None, "any_processes"):
        raise ConfigurationError(f'reproducible must be "any_processes" or None, got {reproducible!r}.')


def check_precision_and_device(mixed_precision: object, cpu: object) -> None:
    """Raise an error for an unknown mixed precision, and a ``cpu`` that is not a bool.

    Args:
        mixed_precision: The argument of the trainer, or None.
        cpu: The argument of the trainer, or None.

    Raises:
        ConfigurationError: The precision is unknown.
        ArgumentTypeError: ``cpu`` is neither a bool nor None.
    """
    if mixed_precision is not None and mixed_precision not in ("no", "bf16", "fp16"):
        raise ConfigurationError(
            "mixed_precision must be 'no' (for float32), 'bf16', 'fp16', or None for the precision of the launcher, "
            f"got {mixed_precision!r}."
        )
    if cpu is not None and not isinstance(cpu, bool):
        raise ArgumentTypeError(
            f"cpu must be True, or None for the device that the script was launched on, got {cpu!r}."
        )


def reject_nested_run(name: str, running: str | None) -> None:
    """Raise an error if another run of the same trainer is in progress, which a new one would overwrite.

    Args:
        name: The method that was called: ``"train"``, ``"evaluate"`` or ``"predict"``.
        running: The method in progress, or None.

    Raises:
        ConfigurationError: Another run is in progress.
    """
    if running is None:
        return
    do = f"Call {name}() after {running}() has returned."
    if running == "predict":
        do = "Call close() on the iterator of predict(), or iterate to its end before."
    elif running == "train" and name == "evaluate":
        do = (
            "Call trainer.run_evaluation_epoch(is_intermediate=True) to evaluate the evaluation dataset at this point. "
            "Give other datasets to train() by name, for example eval_dataset={'val': ..., 'test': ...}."
        )
    raise ConfigurationError(
        "A trainer has a single run at a time.",
        given=f"{name}() within {running}()",
        do=f"{do} Give each thread its own trainer and model.",
    )


def check_optimizer(model: nn.Module, optimizer: Optimizer | None) -> None:
    """Raise an error for an optimizer that would train nothing, because it belongs to another model.

    Args:
        model: The model to train.
        optimizer: The optimizer of the trainer.

    Raises:
        ConfigurationError: There is no optimizer, or it holds none of the model's parameters.
    """
    if optimizer is None:
        raise ConfigurationError(
            "There is no optimizer to train with.",
            given="optimizer=None",
            do="Pass an optimizer, for example torch.optim.SGD(model.parameters(), lr=0.1).",
        )
    of_model = {id(parameter) for parameter in model.parameters()}
    of_optimizer = [id(parameter) for parameter in parameters_of(optimizer)]
    if not of_model:
        raise ConfigurationError(
            "The model has no parameters, so that nothing would be trained.",
            given=f"{type(model).__name__} without parameters",
            do="Register the parts of the model with it: as attributes, or in nn.ModuleList instead of a list.",
        )
    if of_model.isdisjoint(of_optimizer):
        raise ConfigurationError(
            "The optimizer holds none of the model's parameters, so that nothing would be trained.",
            given=f"{type(optimizer).__name__} with {len(of_optimizer)} other parameters",
            do="Create the optimizer from model.parameters(), after replacing parts of the model.",
        )


def require_step_without_closure(optimizer: Optimizer) -> None:
    """Raise an error for an optimizer whose ``step`` needs a closure, which the default step does not pass.

    Args:
        optimizer: The optimizer.

    Raises:
        ConfigurationError: Its ``step`` needs an argument.
    """
    # A scheduler of torch replaces the method with a function that has the signature of the unbound method.
    if any(name != "self" for name in required_arguments(optimizer.step)):
        name = type(optimizer).__name__
        raise ConfigurationError(
            "The optimizer computes losses by itself, which a step after the backward pass cannot do.",
            given=f"{name}, whose step(closure) needs its argument",
            do="Train with a subclass of Trainer whose optimizer_step() calls self.optimizer.step(closure): closure() "
            "clears the gradients, calculates the loss of the batch, calls loss.backward() and returns the loss.",
        )


def check_optimizer_factory(factory: object, optimizer: object) -> None:
    """Raise an error if an optimizer was passed instead of a function that creates it, or if both were passed.

    Args:
        factory: The ``create_optimizer_fn`` argument.
        optimizer: The ``optimizer`` argument.

    Raises:
        ArgumentTypeError: ``factory`` is not a function.
        ConfigurationError: Both are passed.
    """
    if factory is None:
        return
    if _is_optimizer(factory) or not callable(factory):
        raise ArgumentTypeError(
            "create_optimizer_fn is not a function of the model.",
            given=f"create_optimizer_fn={_short(factory)}",
            do="Pass lambda model: torch.optim.AdamW(model.parameters()), or an optimizer as optimizer.",
        )
    if optimizer is not None:
        raise ConfigurationError(
            "Both optimizer and create_optimizer_fn are passed. Pass optimizer=None, or leave create_optimizer_fn out."
        )


def check_scheduler_factory(factory: object) -> None:
    """Raise an error for a scheduler instead of its factory; a scheduler may be callable, but not with an optimizer.

    Args:
        factory: The ``create_scheduler_fn`` argument.

    Raises:
        ArgumentTypeError: ``factory`` is not a factory.
    """
    if not callable(factory) or (hasattr(factory, "load_state_dict") and not isinstance(factory, type)):
        name = type(factory).__name__
        raise ArgumentTypeError(
            "create_scheduler_fn is not a function.",
            given=f"an instance of {name}",
            do=f"Pass functools.partial({name}, ...) or lambda optimizer: {name}(optimizer, ...).",
        )


def check_scheduler(scheduler: object, optimizer: Optimizer) -> None:
    """Raise an error if the result of a factory would change no learning rate of the run.

    A factory without a return statement returns None; timm's ``create_scheduler_v2`` returns a tuple.

    Args:
        scheduler: The result of the factory.
        optimizer: The argument of the factory.

    Raises:
        ArgumentTypeError: ``scheduler`` is None or a tuple.
        ConfigurationError: It belongs to an optimizer with other parameters.
    """
    if scheduler is None or isinstance(scheduler, tuple):
        returned = "None" if scheduler is None else "a tuple"
        raise ArgumentTypeError(
            f"create_scheduler_fn returned {returned}. Return only the scheduler, for example with lambda optimizer: "
            "create(optimizer)[0], or leave create_scheduler_fn out."
        )
    other: object = getattr(scheduler, "optimizer", None)
    if not isinstance(other, Optimizer):
        return
    if {id(parameter) for parameter in parameters_of(optimizer)}.isdisjoint(
        id(parameter) for parameter in parameters_of(other)
    ):
        raise ConfigurationError(
            "create_scheduler_fn created a scheduler of another optimizer, which has no effect on this run.",
            given=f"{type(scheduler).__name__} of an optimizer with other parameters",
            do=f"Pass lambda optimizer: {type(scheduler).__name__}(optimizer, ...).",
        )


def require_evaluation_data(data: object) -> None:
    """Raise an error for ``evaluate()`` without data to evaluate.

    Args:
        data: The data that was passed, or the data of the previous run.

    Raises:
        ConfigurationError: There is no data.
    """
    if data is None:
        raise ConfigurationError(
            "evaluate() has no dataset, and the trainer has no evaluation dataset from train(). Call evaluate(dataset)."
        )


def check_sanity_evaluation(num_batches: int, eval_dataset: object) -> None:
    """Raise an error for a sanity evaluation without a dataset.

    Args:
        num_batches: The number of batches to evaluate before the first epoch.
        eval_dataset: The argument of ``train()``.

    Raises:
        ConfigurationError: There is no evaluation dataset.
    """
    if num_batches and eval_dataset is None:
        raise ConfigurationError(
            f"sanity_eval_steps={num_batches} has nothing to evaluate. Pass eval_dataset, or leave sanity_eval_steps "
            "out."
        )


def require_evaluation_loader(loader: object) -> None:
    """Raise an error for a run that evaluates within its epochs without an evaluation dataset.

    Args:
        loader: The loader, None in a run that does not evaluate.

    Raises:
        ConfigurationError: There is no loader.
    """
    if loader is None:
        raise ConfigurationError(
            "The run has no evaluation dataset to evaluate. Pass eval_dataset, or remove the callback that evaluates."
        )


def check_kind_of_module(module: object, argument: str) -> None:
    """Raise an error unless an argument is a module.

    Args:
        module: The value of the argument.
        argument: The name of the argument: "model", or "module".

    Raises:
        ArgumentTypeError: The value is a class or not a module.
    """
    if isinstance(module, nn.Module):
        return
    _reject_class(module, argument, argument, "...")
    raise ArgumentTypeError(f"The {argument} must be a torch.nn.Module, got one of type {type(module).__name__}.")


def check_kind_of_optimizer(optimizer: object) -> None:
    """Raise an error unless a value is an optimizer.

    Raises:
        ArgumentTypeError: The value is a class or not an optimizer.
    """
    if isinstance(optimizer, Optimizer):
        return
    _reject_class(optimizer, "optimizer", "optimizer", "model.parameters(), lr=...")
    # Optimizers of other libraries need not derive from torch's class.
    if not all(hasattr(optimizer, name) for name in ("param_groups", "step", "zero_grad")):
        is_name = isinstance(optimizer, str)
        raise ArgumentTypeError(
            "The optimizer is not an optimizer.",
            given=f"optimizer={optimizer!r}" if is_name else f"an optimizer of type {type(optimizer).__name__}",
            do="Pass an optimizer of the model's parameters, for example "
            "optimizer=torch.optim.SGD(model.parameters(), lr=0.1).",
        )


def required_arguments(function: Callable[..., object]) -> list[str]:
    """Return the names of the required arguments.

    Raises:
        TypeError: The signature is unknown.
        ValueError: The signature is unknown.

    Example:
        >>> required_arguments(lambda metric, epoch=None, *others, **more: None)
        ['metric']
    """
    parameters = inspect.signature(function).parameters.values()
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in variable
    ]


def _is_optimizer(value: object) -> bool:
    return isinstance(value, Optimizer) or (isinstance(value, type) and issubclass(value, Optimizer))


def _reject_class(value: object, argument: str, noun: str, arguments: str) -> None:
    if isinstance(value, type):
        name = _qualified(value)
        raise ArgumentTypeError(
            f"The {noun} is a class.", given=f"{argument}={name}", do=f"Create it: {argument}={name}({arguments})."
        )


def _short(value: object) -> str:
    if value is None or isinstance(value, type):
        return value.__name__ if value else "None"
    return f"{type(value).__name__}(...)"


def _qualified(kind: type) -> str:
    """Return the name of a class in scripts: names of torch's classes begin with nn or torch.optim."""
    if getattr(nn, kind.__name__, None) is kind:
        return f"nn.{kind.__name__}"
    return f"torch.optim.{kind.__name__}" if kind.__module__.startswith("torch.optim") else kind.__name__
