"""When the scheduler of a run is stepped, and with what: nothing, the number of epochs, or a metric."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, Literal

from typing_extensions import override

from pa_core.any_trainer import AnyTrainer
from pa_core.callbacks.best_metric import watched_value
from pa_core.errors import ConfigurationError

__all__ = ["SchedulerStepping"]

_EPOCH_NAMES = {"epoch", "epochs", "current_epoch", "num_epochs"}
_METRIC_NAMES = {"metric", "metrics"}


class SchedulerStepping:
    """How a run steps its scheduler.

    Args:
        step_scheduler: After which of the two it is stepped.
        watch_metric: The metric that it is stepped with, which is there after an epoch; None for none.
        asked_of: What takes these two as arguments: ``"train()"``, or ``"Run"``, which has no method to override.

    Raises:
        ConfigurationError: ``step_scheduler`` is neither of the two.

    Example:
        >>> SchedulerStepping("update", watch_metric="eval_loss_epoch").after
        'epoch'
    """

    def __init__(
        self,
        step_scheduler: Literal["update", "epoch"] = "update",
        watch_metric: str | None = None,
        *,
        asked_of: Literal["train()", "Run"] = "train()",
    ) -> None:
        given: str = step_scheduler
        if given not in ("update", "epoch"):
            raise ConfigurationError(
                f'step_scheduler must be "update" or "epoch", after which a scheduler is stepped, got {given!r}.'
            )
        self.after: Literal["update", "epoch"] = step_scheduler if watch_metric is None else "epoch"
        self.watch_metric = watch_metric
        self._asked_of = asked_of

    @override
    def __str__(self) -> str:
        return f"after each {self.after}" + ("" if self.watch_metric is None else f", with {self.watch_metric}")

    def count(self, updates: int, epochs: int) -> int:
        """Return how often the scheduler is stepped in so many updates, which are so many epochs."""
        return updates if self.after == "update" else epochs

    def require_usable(
        self, scheduler: object, *, is_overridden: bool, is_evaluated: bool, eval_names: Collection[str] = ()
    ) -> None:
        """Raise an error for a scheduler that cannot be stepped in this way, before anything is trained.

        Args:
            scheduler: The scheduler of the run, None without one.
            is_overridden: Whether a subclass of the trainer steps it in its own way.
            is_evaluated: Whether the run evaluates.
            eval_names: The names of its evaluation sets; none for a single dataset.

        Raises:
            ConfigurationError: Its ``step()`` needs something else, or what it is to be stepped with is not there.
        """
        is_default = self.after == "update"
        if scheduler is None and not is_default:
            raise ConfigurationError(
                "There is no scheduler to step.",
                given=f"a scheduler that is stepped {self}, and none",
                do=f"Pass create_scheduler_fn to {self._asked_of}, or leave step_scheduler and watch_metric out.",
            )
        if self.watch_metric == "eval_loss_epoch" and eval_names:
            named = f"eval_{next(iter(eval_names))}_loss_epoch"
            raise ConfigurationError(
                "The metric of the scheduler belongs to a single evaluation dataset, and this run has several with "
                "names.",
                given="watch_metric='eval_loss_epoch'",
                do=f"Pass watch_metric={named!r}.",
            )
        if self.watch_metric == "eval_loss_epoch" and not is_evaluated:
            raise ConfigurationError(
                "The metric of the scheduler is not recorded without an evaluation.",
                given="watch_metric='eval_loss_epoch' and no eval_dataset",
                do='Pass an eval_dataset, or watch_metric="train_loss_epoch".',
            )
        if scheduler is not None and not (is_overridden and is_default):
            self._require_fitting_step(scheduler, is_overridden, is_evaluated)

    def _require_fitting_step(self, scheduler: object, is_overridden: bool, is_evaluated: bool) -> None:
        name = type(scheduler).__name__
        step: Callable[..., object] | None = getattr(scheduler, "step", None)
        if hasattr(scheduler, "step_update") and step is not None and _EPOCH_NAMES & {*_required(step)}:
            raise ConfigurationError(
                f"{name} is told of updates and of epochs.",
                given=f"{name}, stepped {self}",
                do="Use TrainerWithTimmScheduler, and leave step_scheduler and watch_metric out."
                if self._asked_of == "train()"
                else "Wrap it in a StatefulSchedulerBase whose step() passes what it needs.",
            )
        if is_overridden:
            return
        if step is None:
            raise ConfigurationError(
                f"{name} has no step().",
                given=f"{name} as the scheduler of a run",
                do="Derive it from StatefulSchedulerBase, or override scheduler_step() of the trainer."
                if self._asked_of == "train()"
                else "Derive it from StatefulSchedulerBase.",
            )
        unknown = [one for one in _required(step) if self.after == "update" or one not in _EPOCH_NAMES]
        if self.watch_metric is not None and _metric_of(step) is None:
            raise ConfigurationError(
                f"{name} takes no metric.",
                given=f"watch_metric={self.watch_metric!r} for {name}.step{inspect.signature(step)}",
                do='Pass step_scheduler="epoch" in its place to step it after each epoch.',
            )
        if unknown and unknown != [_metric_of(step) if self.watch_metric is not None else None]:
            raise ConfigurationError(
                f"{name} cannot be stepped {self}: its step() needs {', '.join(unknown)}.",
                given=f"{name}.step{inspect.signature(step)}",
                do=self._advice(unknown, "eval_loss_epoch" if is_evaluated else "train_loss_epoch"),
            )

    def _advice(self, needed: list[str], metric: str) -> str:
        if set(needed) <= _EPOCH_NAMES:
            return f'Pass step_scheduler="epoch" to {self._asked_of}.'
        if len(set(needed) - _EPOCH_NAMES) == 1:
            what = f'watch_metric="{metric}", or another metric,'
            return f"Pass {what} to {self._asked_of}: it is then stepped with each epoch."
        if self._asked_of == "train()":
            return "Override scheduler_step() of the trainer, and step it there."
        return "Give its step() defaults, or wrap it in a StatefulSchedulerBase whose step() passes what it needs."

    def step(self, scheduler: Any, trainer: AnyTrainer) -> None:
        """Step a scheduler that ``require_usable`` let pass; with a metric, every process must call this.

        With the metric of an evaluation set, it is stepped after the epochs in which that set is evaluated.

        Raises:
            MetricNotFoundError: The metric was not recorded by the end of the first epoch.
        """
        if self.after == "update":
            scheduler.step()
            return
        values: dict[str, float] = {}
        if self.watch_metric is not None and not trainer.is_evaluated_in_epoch(self.watch_metric):
            return
        if self.watch_metric is not None:
            values[str(_metric_of(scheduler.step))] = watched_value(trainer, self.watch_metric)
        for name in _EPOCH_NAMES.intersection(_required(scheduler.step)):
            values[name] = trainer.num_epochs_completed
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
    return next(iter([*named, *(name for name in _required(step) if name not in _EPOCH_NAMES)]), None)


def _parameters(step: Callable[..., object]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(step).parameters)
    except (TypeError, ValueError):
        return {}
