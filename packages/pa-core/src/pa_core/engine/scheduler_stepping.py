"""The scheduler of a run: its creation, and when and with which metric it is stepped."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from torch.optim import Optimizer
from typing_extensions import override

from pa_core.engine.any_trainer import AnyTrainer
from pa_core.engine.best_metric import require_watchable, watched_value
from pa_core.errors import ConfigurationError
from pa_core.steps.input_checks import required_arguments
from pa_core.user_warnings import warn_user

_EPOCH_NAMES = {"epoch", "epochs", "current_epoch", "num_epochs"}
_METRIC_NAMES = {"metric", "metrics"}


@dataclass(frozen=True)
class SchedulerStepping:
    """When a run steps its scheduler, and with which metric.

    Attributes:
        step_scheduler: "update" or "epoch".
        watch_metric: The metric that it is stepped with, after an epoch; None without a metric.
        caller: The name of the call with these arguments; ``"Run"`` has no method to override.

    Raises:
        ConfigurationError: ``step_scheduler`` is unknown.

    Example:
        >>> SchedulerStepping("update", watch_metric="eval_loss_epoch").after
        'epoch'
    """

    step_scheduler: Literal["update", "epoch"] = "update"
    watch_metric: str | None = None
    caller: Literal["train()", "Run"] = "train()"

    def __post_init__(self) -> None:
        given: str = self.step_scheduler
        if given not in ("update", "epoch"):
            raise ConfigurationError(
                f'step_scheduler must be "update" or "epoch", after which a scheduler is stepped, got {given!r}.'
            )

    @cached_property
    def after(self) -> Literal["update", "epoch"]:
        """The period of steps: "update" or "epoch", which a metric requires."""
        return self.step_scheduler if self.watch_metric is None else "epoch"

    @override
    def __str__(self) -> str:
        return f"after each {self.after}" + ("" if self.watch_metric is None else f", with {self.watch_metric}")

    def count(self, updates: int, epochs: int) -> int:
        """Return the number of steps of the scheduler in a number of updates, or of epochs."""
        return updates if self.after == "update" else epochs

    def require_usable(self, scheduler: object, trainer: AnyTrainer, *, is_overridden: bool) -> None:
        """Raise an error for a scheduler that cannot be stepped in this way, before the training.

        Args:
            scheduler: The scheduler of the run, or None.
            trainer: The trainer, which has its loaders.
            is_overridden: Whether a subclass of the trainer overrides ``scheduler_step``.

        Raises:
            ConfigurationError: Its ``step()`` needs other arguments, or there is no scheduler.
        """
        if scheduler is None and self.after == "epoch":
            raise ConfigurationError(
                f"There is no scheduler to step {self}. Pass create_scheduler_fn to {self.caller}, or leave "
                "step_scheduler and watch_metric out."
            )
        if self.watch_metric is not None:
            require_watchable(trainer, self.watch_metric)
        if scheduler is None or (is_overridden and self.after == "update"):
            return
        name, step = type(scheduler).__name__, getattr(scheduler, "step", None)
        if hasattr(scheduler, "step_update") and step is not None and _EPOCH_NAMES & {*_required(step)}:
            ways = {
                "train()": "Use TrainerWithTimmScheduler, and leave step_scheduler and watch_metric out.",
                "Run": "Wrap it in a StatefulSchedulerBase whose step() passes these arguments.",
            }
            raise ConfigurationError(f"{name} needs calls after updates and after epochs. {ways[self.caller]}")
        if is_overridden:
            return
        if step is None:
            raise ConfigurationError(f"{name} has no step(). Derive it from StatefulSchedulerBase.")
        self._require_fitting_arguments(step, f"{name}.step{inspect.signature(step)}")

    def _require_fitting_arguments(self, step: Callable[..., object], shown: str) -> None:
        metric = None if self.watch_metric is None else _metric_of(step)
        if self.watch_metric is not None and metric is None:
            raise ConfigurationError(
                f"{shown} does not accept a metric, but got watch_metric={self.watch_metric!r}. Pass "
                'step_scheduler="epoch" instead to step it after each epoch.'
            )
        needed = [name for name in _required(step) if self.after == "update" or name not in _EPOCH_NAMES]
        if needed in ([], [metric]):
            return
        others = set(needed) - _EPOCH_NAMES
        if not others:
            advice = f'Pass step_scheduler="epoch" to {self.caller}.'
        elif len(others) == 1:
            metric = 'watch_metric="eval_loss_epoch", or watch_metric="train_loss_epoch" without an evaluation,'
            advice = f"Pass {metric} to {self.caller}: it is then stepped with each epoch."
        elif self.caller == "train()":
            advice = "Override scheduler_step() of the trainer, and step it there."
        else:
            advice = (
                "Give its step() defaults, or wrap it in a StatefulSchedulerBase whose step() passes these arguments."
            )
        raise ConfigurationError(f"{shown} cannot be stepped {self}: its step() needs {', '.join(needed)}. {advice}")

    def step(self, scheduler: Any, trainer: AnyTrainer) -> None:
        """Step a scheduler that ``require_usable`` accepted; with a metric, every process must call this.

        With the metric of an evaluation set, it is stepped after the epochs in which that set is evaluated.

        Raises:
            MetricNotFoundError: The metric was not recorded by the end of the first epoch.
        """
        values: dict[str, float] = {}
        if self.watch_metric is not None:
            if not trainer.is_evaluated_in_epoch(self.watch_metric):
                return
            values[str(_metric_of(scheduler.step))] = watched_value(trainer, self.watch_metric)
        if self.after == "epoch":
            values |= dict.fromkeys(_EPOCH_NAMES.intersection(_required(scheduler.step)), trainer.num_epochs_completed)
        if not values:
            scheduler.step()
            return
        call = inspect.signature(scheduler.step).bind_partial()
        call.arguments.update({name: values[name] for name in call.signature.parameters if name in values})
        scheduler.step(*call.args, **call.kwargs)


def _required(step: Callable[..., object]) -> list[str]:
    """Return the required arguments; an empty list if the signature is unknown."""
    return required_arguments(step) if _parameters(step) else []


def _metric_of(step: Callable[..., object]) -> str | None:
    """Return the argument for a metric: by its name, or the first required argument that is not an epoch."""
    named = [name for name in _parameters(step) if name in _METRIC_NAMES]
    named += [name for name in _required(step) if name not in _EPOCH_NAMES]
    return named[0] if named else None


def _parameters(step: Callable[..., object]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(step).parameters)
    except (TypeError, ValueError):
        return {}


def is_created(trainer_class: Any, factory: object, *, is_assigned: bool) -> bool:
    """Whether a run creates its scheduler, and does not keep the existing scheduler.

    Args:
        trainer_class: The class of the trainer.
        factory: The ``create_scheduler_fn`` argument of ``train()``, or None.
        is_assigned: Whether a script has assigned a scheduler to the trainer.
    """
    is_overridden = _is_overridden(trainer_class.create_scheduler)
    needs_factory = not is_overridden or _uses_factory(trainer_class.create_scheduler)
    return factory is not None or not (needs_factory or is_assigned)


def check_kept_scheduler(scheduler: object, optimizer: Optimizer, trainer_class: Any) -> None:
    """Raise an error for a scheduler that cannot be kept, and warn about a method that is not called.

    Args:
        scheduler: The scheduler of the trainer, or None.
        optimizer: The optimizer of the run that begins.
        trainer_class: The class of the trainer.

    Raises:
        ConfigurationError: The scheduler belongs to another optimizer, or to fewer parameter groups.
    """
    if scheduler is not None:
        _check_assigned_scheduler(scheduler, optimizer)
    elif _is_overridden(trainer_class.create_scheduler):
        warn_user(
            f"{trainer_class.__name__}.create_scheduler() uses create_scheduler_fn, which train() did not get: it is "
            "not called, and the run has no scheduler. Pass create_scheduler_fn, or let the method work without it."
        )


def _is_overridden(method: Callable[..., object]) -> bool:
    """Whether a method of a trainer is an override outside of this package."""
    return getattr(method, "__module__", "").partition(".")[0] != "pa_core"


def _uses_factory(create_scheduler: Callable[..., object]) -> bool:
    """Whether an override of ``Trainer.create_scheduler`` needs ``create_scheduler_fn``, itself or through ``super()``.

    The names in its code decide, because a call without a factory may fail in any way.

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
    """Raise an error for a scheduler that does not fit the optimizer.

    Args:
        scheduler: The value of ``trainer.scheduler``, assigned or from an earlier run.
        optimizer: The optimizer of the run that begins.

    Raises:
        ConfigurationError: It belongs to another optimizer, or was created before parameter groups were added.
    """
    name, own = type(scheduler).__name__, getattr(scheduler, "optimizer", None)
    # Accelerate's wrapper has the groups of the wrapped optimizer.
    if own is not None and getattr(own, "param_groups", None) is not optimizer.param_groups:
        raise ConfigurationError(
            f"trainer.scheduler is a {name} of another optimizer, and has no effect on this run. Pass "
            "create_scheduler_fn to train(), or set trainer.scheduler = None to train without a scheduler."
        )
    rates = getattr(scheduler, "base_lrs", None)
    if isinstance(rates, Sized) and len(rates) != len(optimizer.param_groups):
        raise ConfigurationError(
            f"trainer.scheduler is a {name} with {len(rates)} group(s), and the optimizer now has "
            f"{len(optimizer.param_groups)} group(s). Pass create_scheduler_fn to train(), which creates the scheduler "
            "when the groups exist."
        )


def check_length_of_schedule(scheduler: object, num_steps: int, *, is_resumed: bool) -> None:
    """Raise an error for a schedule that would fail at its end, before the end of the run.

    Args:
        scheduler: The scheduler of the run, with the state that the run begins with.
        num_steps: The number of steps of the scheduler that are left in the run.
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
            "Create it for the whole run, for example with total_steps=TrainerPlaceholderValues.NUM_EPOCHS * "
            "TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH."
        )
        if done:
            advice = "Pass a create_scheduler_fn that creates a new scheduler."
        if is_resumed:
            advice = 'Train for as many updates as before, or begin a new schedule: resume_allow=("scheduler",).'
        raise ConfigurationError(
            f"The schedule is shorter than the run, and ends with an error: a OneCycleLR of {total} updates has made "
            f"{done} of them, and the run has {num_steps} left. {advice}"
        )
