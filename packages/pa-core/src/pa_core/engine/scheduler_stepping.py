"""The scheduler of a run: where it comes from, when it is stepped, and with what."""

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
    """How a run steps its scheduler.

    Attributes:
        step_scheduler: After which of the two it is stepped.
        watch_metric: The metric that it is stepped with, which is there after an epoch; None for none.
        asked_of: What takes these two as arguments; ``"Run"`` has no method to override.

    Raises:
        ConfigurationError: ``step_scheduler`` is neither of the two.

    Example:
        >>> SchedulerStepping("update", watch_metric="eval_loss_epoch").after
        'epoch'
    """

    step_scheduler: Literal["update", "epoch"] = "update"
    watch_metric: str | None = None
    asked_of: Literal["train()", "Run"] = "train()"

    def __post_init__(self) -> None:
        given: str = self.step_scheduler
        if given not in ("update", "epoch"):
            raise ConfigurationError(
                f'step_scheduler must be "update" or "epoch", after which a scheduler is stepped, got {given!r}.'
            )

    @cached_property
    def after(self) -> Literal["update", "epoch"]:
        """After what the scheduler is stepped; a metric is there after an epoch."""
        return self.step_scheduler if self.watch_metric is None else "epoch"

    @override
    def __str__(self) -> str:
        return f"after each {self.after}" + ("" if self.watch_metric is None else f", with {self.watch_metric}")

    def count(self, updates: int, epochs: int) -> int:
        """Return how often the scheduler is stepped in so many updates, which are so many epochs."""
        return updates if self.after == "update" else epochs

    def require_usable(self, scheduler: object, trainer: AnyTrainer, *, is_overridden: bool) -> None:
        """Raise an error for a scheduler that cannot be stepped in this way, before anything is trained.

        Args:
            scheduler: The scheduler of the run, None without one.
            trainer: The trainer, which has its loaders.
            is_overridden: Whether a subclass of the trainer steps it in its own way.

        Raises:
            ConfigurationError: Its ``step()`` needs something else, or what it is to be stepped with is not there.
        """
        if scheduler is None and self.after == "epoch":
            raise ConfigurationError(
                f"There is no scheduler to step {self}. Pass create_scheduler_fn to {self.asked_of}, or leave "
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
                "Run": "Wrap it in a StatefulSchedulerBase whose step() passes what it needs.",
            }
            raise ConfigurationError(f"{name} is told of updates and of epochs. {ways[self.asked_of]}")
        if is_overridden:
            return
        if step is None:
            raise ConfigurationError(f"{name} has no step(). Derive it from StatefulSchedulerBase.")
        self._require_fitting_arguments(step, f"{name}.step{inspect.signature(step)}")

    def _require_fitting_arguments(self, step: Callable[..., object], shown: str) -> None:
        metric = None if self.watch_metric is None else _metric_of(step)
        if self.watch_metric is not None and metric is None:
            raise ConfigurationError(
                f"{shown} takes no metric, such as watch_metric={self.watch_metric!r}. Pass "
                'step_scheduler="epoch" in its place to step it after each epoch.'
            )
        needed = [name for name in _required(step) if self.after == "update" or name not in _EPOCH_NAMES]
        if needed in ([], [metric]):
            return
        others = set(needed) - _EPOCH_NAMES
        if not others:
            advice = f'Pass step_scheduler="epoch" to {self.asked_of}.'
        elif len(others) == 1:
            metric = 'watch_metric="eval_loss_epoch", or watch_metric="train_loss_epoch" where nothing is evaluated,'
            advice = f"Pass {metric} to {self.asked_of}: it is then stepped with each epoch."
        elif self.asked_of == "train()":
            advice = "Override scheduler_step() of the trainer, and step it there."
        else:
            advice = (
                "Give its step() defaults, or wrap it in a StatefulSchedulerBase whose step() passes what it needs."
            )
        raise ConfigurationError(f"{shown} cannot be stepped {self}: its step() needs {', '.join(needed)}. {advice}")

    def step(self, scheduler: Any, trainer: AnyTrainer) -> None:
        """Step a scheduler that ``require_usable`` let pass; with a metric, every process must call this.

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
    """The arguments that have to be given; none where a signature cannot be had."""
    return required_arguments(step) if _parameters(step) else []


def _metric_of(step: Callable[..., object]) -> str | None:
    """The argument that takes a metric: one of that name, or the first that has to be given and is not an epoch."""
    named = [name for name in _parameters(step) if name in _METRIC_NAMES]
    named += [name for name in _required(step) if name not in _EPOCH_NAMES]
    return named[0] if named else None


def _parameters(step: Callable[..., object]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(step).parameters)
    except (TypeError, ValueError):
        return {}


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
