"""The scheduler of a run without a factory: assigned, kept from the run before, or made by an override."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sized
from typing import Any

from torch.optim import Optimizer

from pa_core.errors import ConfigurationError
from pa_core.user_warnings import warn_user


def is_created(trainer_class: Any, factory: object, *, is_assigned: bool) -> bool:
    """Whether a run creates its scheduler, and does not keep the one that is there.

    Args:
        trainer_class: The class of the trainer.
        factory: What ``train()`` was given as ``create_scheduler_fn``, if anything.
        is_assigned: Whether a script has assigned a scheduler to the trainer.
    """
    is_overridden = _is_overridden(trainer_class.create_scheduler)
    needs_factory = not is_overridden or _uses_factory(trainer_class.create_scheduler)
    return factory is not None or not (needs_factory or is_assigned)


def check_kept_scheduler(scheduler: object, optimizer: Optimizer, trainer_class: Any) -> None:
    """Raise an error for a scheduler that cannot be kept, and warn where a method that would create one is not called.

    Args:
        scheduler: The scheduler of the trainer, None without one.
        optimizer: The optimizer of the run that begins.
        trainer_class: The class of the trainer.

    Raises:
        ConfigurationError: The scheduler belongs to another optimizer, or to fewer parameter groups.
    """
    if scheduler is not None:
        _check_assigned_scheduler(scheduler, optimizer)
    elif _is_overridden(trainer_class.create_scheduler):
        warn_user(
            f"{trainer_class.__name__}.create_scheduler() uses create_scheduler_fn, which train() was not given: it is "
            "not called, and the run has no scheduler. Pass create_scheduler_fn, or let the method do without."
        )


def _is_overridden(method: Callable[..., object]) -> bool:
    """Whether a method of a trainer is an override of the user's, not of a trainer of this package."""
    return getattr(method, "__module__", "").partition(".")[0] != "pa_core"


def _uses_factory(create_scheduler: Callable[..., object]) -> bool:
    """Whether an override of ``Trainer.create_scheduler`` needs ``create_scheduler_fn``, itself or through ``super()``.

    Only the names that its code mentions tell: calling it without a factory may fail in any way.

    Example:
        >>> from pa_core import Trainer
        >>> class Own(Trainer):
        ...     def create_scheduler(self):
        ...         return self.create_scheduler_fn(self.optimizer)
        >>> _uses_factory(Own.create_scheduler)
        True
    """
    code = getattr(inspect.unwrap(create_scheduler), "__code__", None)
    return code is not None and not {"create_scheduler", "create_scheduler_fn"}.isdisjoint(code.co_names)


def _check_assigned_scheduler(scheduler: object, optimizer: Optimizer) -> None:
    """Raise an error for a scheduler that was not made for the optimizer as it is.

    Args:
        scheduler: What was assigned to ``trainer.scheduler``, or is there from an earlier run.
        optimizer: The optimizer of the run that begins.

    Raises:
        ConfigurationError: It belongs to another optimizer, or was made before parameter groups were added.
    """
    name, own = type(scheduler).__name__, getattr(scheduler, "optimizer", None)
    # Accelerate's wrapper of an optimizer has the groups of what it wraps.
    if own is not None and getattr(own, "param_groups", None) is not optimizer.param_groups:
        raise ConfigurationError(
            f"trainer.scheduler is a {name} of another optimizer, and would change nothing of this run. Pass "
            "create_scheduler_fn to train(), or set trainer.scheduler = None to train without one."
        )
    rates = getattr(scheduler, "base_lrs", None)
    if isinstance(rates, Sized) and len(rates) != len(optimizer.param_groups):
        raise ConfigurationError(
            f"trainer.scheduler is a {name} of {len(rates)} group(s), and the optimizer now has "
            f"{len(optimizer.param_groups)} group(s). Pass create_scheduler_fn to train(), which makes the scheduler "
            "when the groups are there."
        )


def check_length_of_schedule(scheduler: object, num_steps: int, *, is_resumed: bool) -> None:
    """Raise an error for a schedule that raises an error at its end, which the run is going to pass.

    Args:
        scheduler: The scheduler of the run, with the state that the run begins with.
        num_steps: How often the run will step it.
        is_resumed: Whether its state was restored from a training state.

    Raises:
        ConfigurationError: It is a ``OneCycleLR`` with fewer steps left.
    """
    from torch.optim.lr_scheduler import OneCycleLR

    if not isinstance(scheduler, OneCycleLR):
        return
    total, done = int(scheduler.total_steps), int(scheduler.last_epoch)
    if num_steps > total - done:
        advice = (
            "Make it for the whole run, for example with total_steps=TrainerPlaceholderValues.NUM_EPOCHS * "
            "TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH."
        )
        if done:
            advice = "Pass a create_scheduler_fn that makes a new one."
        if is_resumed:
            advice = 'Train for as many updates as before, or begin a new schedule: resume_allow=("scheduler",).'
        raise ConfigurationError(
            f"The schedule is shorter than the run, and ends with an error: a OneCycleLR of {total} updates, {done} of "
            f"which are done, and the run has {num_steps} left. {advice}"
        )
