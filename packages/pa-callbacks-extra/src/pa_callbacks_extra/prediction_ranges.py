"""Detects metrics that treat some batches as logits and others as probabilities."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from pa_core.distributed import sum_over_processes

_BY_VALUE = ("Binary", "Multilabel", "MulticlassPrecisionRecallCurve", "MulticlassCalibrationError", "MulticlassHinge")


class PredictionRanges:
    """Counts the updates of metrics that have predictions outside of the range from 0 to 1.

    Torchmetrics metrics apply a sigmoid or softmax to all predictions in such an update, but not in other updates. The
    counts stay on the accelerator until they are needed.

    Example:
        >>> ranges = PredictionRanges()
        >>> ranges.note(torch.tensor([0.2, 0.9]))
        >>> ranges.note(torch.tensor([0.2, 3.0]))
        >>> ranges.count(torch.device("cpu"))
        (1, 2)
    """

    def __init__(self) -> None:
        self._num_outside: Tensor | None = None
        self._num_updates = 0

    def note(self, predictions: object) -> None:
        """Count an update.

        Args:
            predictions: The predictions that the metrics are updated with. Labels do not count.
        """
        if isinstance(predictions, Tensor) and predictions.is_floating_point() and predictions.numel():
            lowest, highest = predictions.detach().aminmax()
            is_outside = ((lowest < 0) | (highest > 1)).long()
            self._num_outside = is_outside if self._num_outside is None else self._num_outside + is_outside
            self._num_updates += 1

    def count(self, device: torch.device) -> tuple[int, int]:
        """Return how many updates were outside of the range, and the total number; every process must call this.

        Args:
            device: The device of the run.
        """
        counts = torch.tensor([0, self._num_updates], device=device)
        if self._num_outside is not None:
            counts[0] = self._num_outside
        outside, updates = map(int, sum_over_processes(counts))
        return outside, updates


def judging_by_value(metrics: Iterable[object]) -> list[str]:
    """Return the class names of the metrics that recognize logits by their values.

    Args:
        metrics: Torchmetrics metrics and other modules.

    Example:
        >>> from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy
        >>> judging_by_value([BinaryAUROC(), MulticlassAccuracy(num_classes=3)])
        ['BinaryAUROC']
    """
    judging = (type(metric) for metric in metrics if any(map(_judges_by_value, type(metric).__mro__)))
    return sorted({kind.__name__ for kind in judging})


def _judges_by_value(kind: type) -> bool:
    return kind.__module__.startswith("torchmetrics.classification.") and kind.__name__.startswith(_BY_VALUE)
