"""What a trainer is given, refused where it would train nothing, or not what was meant."""

from __future__ import annotations

from typing import cast

from torch import nn
from torch.optim import Optimizer

from pa_core.errors import ConfigurationError

__all__ = [
    "check_optimizer",
    "check_scheduler",
    "check_scheduler_factory",
    "refuse_run_within_run",
]


def refuse_run_within_run(name: str, running: str | None) -> None:
    """Refuse to begin a run while another one of the same trainer is under way, which it would overwrite.

    Args:
        name: The method that was called: ``"train"`` or ``"evaluate"``.
        running: The method that is under way, None if there is none.

    Raises:
        ConfigurationError: There is one.
    """
    if running is None:
        return
    if name == "train":
        do = f"Call train() after {running}() has returned, or train with a trainer of its own."
    elif running == "train":
        do = (
            "Call trainer.run_evaluation_epoch(is_intermediate=True) to evaluate the evaluation dataset at this point. "
            "Evaluate other datasets after train() has returned."
        )
    else:
        do = "Call evaluate() again after it has returned."
    raise ConfigurationError(
        "A trainer has one run at a time.",
        given=f"{name}() within {running}(), called in a callback, a hook or a step",
        expected=f"no run within a run, whose progress and loaders {name}() would replace",
        do=do,
    )


def check_optimizer(model: nn.Module, optimizer: Optimizer | None) -> None:
    """Refuse an optimizer that would train nothing, silently: one of another model.

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
            expected="an optimizer of the model's parameters",
            do="Pass one to the trainer, for example torch.optim.SGD(model.parameters(), lr=0.1).",
        )
    of_model = {id(parameter) for parameter in model.parameters()}
    of_optimizer = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if not of_model:
        raise ConfigurationError(
            "The model has no parameters, so that nothing would be trained.",
            given=f"{type(model).__name__} without parameters",
            expected="a model with parameters",
            do="Register the parts of the model with it: as attributes, or in nn.ModuleList instead of a list.",
        )
    if not of_optimizer:
        raise ConfigurationError(
            "The optimizer has no parameters, so that nothing would be trained.",
            given=f"{type(optimizer).__name__} of no parameters",
            expected=f"parameters of {type(model).__name__}",
            do="Create the optimizer from model.parameters().",
        )
    if of_model.isdisjoint(of_optimizer):
        raise ConfigurationError(
            "The optimizer holds none of the model's parameters, so that nothing would be trained.",
            given=f"{type(optimizer).__name__} of {len(of_optimizer)} other parameters",
            expected=f"parameters of {type(model).__name__}",
            do="Create the optimizer from the parameters of the model that is trained: after replacing parts of the "
            "model, not before.",
        )


def check_scheduler_factory(factory: object) -> None:
    """Refuse a scheduler in the place of its factory, which may even be callable, but not with an optimizer.

    Args:
        factory: What was given as ``create_scheduler_fn``.

    Raises:
        TypeError: It is not a factory.
    """
    if not callable(factory) or (hasattr(factory, "load_state_dict") and not isinstance(factory, type)):
        name = type(factory).__name__
        raise TypeError(
            f"Given as create_scheduler_fn: an instance of {name}. Expected: a function that takes the "
            f"optimizer and returns a scheduler. Pass functools.partial({name}, ...) or "
            f"lambda optimizer: {name}(optimizer, ...)."
        )


def check_scheduler(scheduler: object) -> None:
    """Refuse what a factory made that is no scheduler.

    Without a return statement it is None, with which a run would train at a constant rate, silently; some return the
    scheduler and something more, as timm's ``create_scheduler_v2`` does.

    Args:
        scheduler: What the factory returned.

    Raises:
        TypeError: It is None or a tuple.
    """
    if scheduler is None:
        raise TypeError(
            "Given as create_scheduler_fn: a function that returned None. Expected: the scheduler that it "
            "made. Add the return statement, or leave create_scheduler_fn out to train without a scheduler."
        )
    if isinstance(scheduler, tuple):
        kinds = ", ".join(type(item).__name__ for item in cast("tuple[object, ...]", scheduler))
        raise TypeError(
            f"Given as create_scheduler_fn: a function that returned a tuple of {kinds}. Expected: the scheduler "
            "alone. Return that item, for example with lambda optimizer: create(optimizer)[0]."
        )
