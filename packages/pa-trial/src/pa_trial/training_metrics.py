"""The metrics of a training workload: collected batch by batch, averaged over batches and processes at its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pa_trial.metric_values import agreed_names, hold, metrics_by_name, numbers_of, on_host
from pa_trial.progress import TrialProgress
from pa_trial.types import Array, Metrics, TrainingMetrics


class WorkloadMetrics:
    """The return values of ``train_batch`` in a workload; tensors stay on the device until the workload ends.

    Example:
        >>> metrics = WorkloadMetrics()
        >>> metrics.add({"loss": 4.0})
        >>> metrics.add({"loss": 2.0})
        >>> metrics.reduce([metrics.payload()])
        ({'loss': 3.0}, [{'loss': 4.0}, {'loss': 2.0}])
    """

    def __init__(self) -> None:
        self._batches: list[Metrics] = []

    def add(self, returned: TrainingMetrics) -> None:
        """Keep the metrics of a batch.

        Args:
            returned: The return value of ``train_batch``.

        Raises:
            NoMetricsError: The value is neither a dictionary nor a tensor.
        """
        metrics = {"loss": returned} if isinstance(returned, Tensor) else metrics_by_name(returned, "train_batch")
        self._batches.append({name: hold(value) for name, value in metrics.items()})

    def payload(self) -> list[Metrics]:
        """Return the metrics of each batch of this process, for ``reduce``; it waits for the device."""
        return on_host(self._batches)

    def reduce(self, payloads: Sequence[list[Metrics]]) -> tuple[Metrics, list[Metrics]]:
        """Return the means over the workload, and the metrics batch by batch, each the mean over the processes.

        Args:
            payloads: The payloads of all processes, in the order of the ranks.

        Raises:
            CheckFailedError: The batches have metrics with different names.
        """
        places = {
            f"in {f'batch {index}' if index else 'the first batch'} on rank {rank}": metrics
            for rank, payload in enumerate(payloads)
            for index, metrics in enumerate(payload)
        }
        names, batches = agreed_names("train_batch", places), payloads[0]
        if len(payloads) > 1:
            of_ranks = zip(*payloads, strict=True)
            batches = [
                {name: _mean_of_values([metrics[name] for metrics in ranks]) for name in names} for ranks in of_ranks
            ]
        return {name: _average([batch[name] for batch in batches]) for name in names}, batches


def add_counts(metrics: Metrics, progress: TrialProgress) -> None:
    """Add the numbers of trained "batches" and "epochs", unless the user has metrics of these names.

    Args:
        metrics: The metrics, which are changed.
        progress: The counters of the training.
    """
    metrics.setdefault("batches", progress.batches_trained)
    metrics.setdefault("epochs", progress.epochs_trained)


def _mean_of_values(values: list[Any]) -> Any:
    """Return the mean of a metric of a batch over the processes."""
    there = [value for value in values if value is not None]
    arrays = [array for value in there if (array := numbers_of(value)) is not None]
    if not there or len(arrays) < len(there):
        return values[0]
    if any(array.shape != arrays[0].shape for array in arrays):
        arrays = [np.asarray(_mean_of_elements([array])) for array in arrays]
    with np.errstate(all="ignore"):
        mean: Array = np.asarray(np.mean(np.stack(arrays), axis=0, dtype=np.float64))
    return mean if isinstance(there[0], (np.ndarray, list, tuple)) else float(mean)


def _average(values: list[Any]) -> float | None:
    there = [value for value in values if value is not None]
    arrays = [array for value in there if (array := numbers_of(value)) is not None]
    return _mean_of_elements(arrays) if len(arrays) == len(there) else None


def _mean_of_elements(arrays: Sequence[Array]) -> float:
    elements = np.concatenate([np.empty(0), *map(np.ravel, arrays)])
    with np.errstate(all="ignore"):  # NaN and infinities are valid results
        return float(np.mean(elements, dtype=np.float64)) if elements.size else math.nan
