"""When the scheduler of a run is stepped, and with what: nothing, the number of epochs, or a metric."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from typing_extensions import override

from pa_core.any_trainer import AnyTrainer
from pa_core.callbacks.best_metric import require_watchable, watched_value
from pa_core.errors import ConfigurationError

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
    return [
        name
        for name, parameter in _parameters(step).items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


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
