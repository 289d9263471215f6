"""The metric that decides whether a validation is better than all before, for the checkpoint policy "best"."""

from __future__ import annotations

import math

from pa_trial.errors import ArgumentTypeError, InvalidExperimentException
from pa_trial.metric_values import number_of
from pa_trial.progress import TrialProgress
from pa_trial.settings import RunSettings
from pa_trial.types import Metrics
from pa_trial.user_warnings import warn_user


class WatchedMetric:
    """Compares a metric of each validation with the best value so far, which ``progress`` keeps across checkpoints.

    NaN is never better, not even than no value at all.

    Args:
        name: The name of the metric.
        progress: Keeps the best value.
        smaller_is_better: Whether the smallest value is the best, as for a loss; else the largest.

    Example:
        >>> progress = TrialProgress()
        >>> watched = WatchedMetric("accuracy", progress, smaller_is_better=False)
        >>> watched.record({"accuracy": 0.5})
        True
        >>> watched.record({"accuracy": 0.4})
        False
        >>> progress.best_metric
        0.5
    """

    def __init__(self, name: str, progress: TrialProgress, *, smaller_is_better: bool = True) -> None:
        self.name = name
        self.smaller_is_better = smaller_is_better
        self._progress = progress

    def record(self, metrics: Metrics) -> bool:
        """Return whether a validation is better than all before, and keep its value if it is.

        Args:
            metrics: The metrics of the validation.

        Raises:
            InvalidExperimentException: The metric is not among them.
            ArgumentTypeError: Its value is not a single number.
        """
        value, best = self._value(metrics), self._progress.best_metric
        if math.isnan(value) or (best is not None and not (value < best if self.smaller_is_better else value > best)):
            return False
        self._progress.best_metric = value
        return True

    def _value(self, metrics: Metrics) -> float:
        if self.name not in metrics:
            raise InvalidExperimentException(
                f"The validation has no metric {self.name!r}, which decides on the best checkpoint.",
                given=f"the metrics {sorted(metrics)}",
                do="Pass the name of a validation metric as metric= to init, or pass another checkpoint_policy to fit.",
            )
        value = metrics[self.name]
        number = number_of(value)
        if number is None:
            raise ArgumentTypeError(
                f"The validation metric {self.name!r}, which decides on the best checkpoint, is not a single number: "
                f"{type(value).__name__} {value!r}.",
                do="Return a single number under this name, or pass the name of another metric as metric= to init.",
            )
        return number


def choose_watched_metric(policy: str, progress: TrialProgress, settings: RunSettings) -> WatchedMetric | None:
    """Return the metric that decides which checkpoints to save with the policy "best"; None for other policies.

    If no metric is named, it gives a warning, and every validation is followed by a checkpoint, as with the policy
    "all".

    Args:
        policy: The ``checkpoint_policy`` of ``fit``.
        progress: Keeps the best value.
        settings: Names the metric, if ``init`` or the experiment configuration does.
    """
    if policy != "best":
        return None
    if settings.metric is not None:
        return WatchedMetric(settings.metric, progress, smaller_is_better=settings.smaller_is_better)
    warn_user(
        "checkpoint_policy='best' has no metric to compare; falling back to checkpoint_policy='all'. Pass metric= and"
        " smaller_is_better= to init, or checkpoint_policy='all' to fit."
    )
    return None
