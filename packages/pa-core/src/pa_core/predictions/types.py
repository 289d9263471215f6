"""The types that users of predictions meet: a trainer by what it predicts, and a function that writes."""

from __future__ import annotations

from typing import Any, Protocol

from typing_extensions import TypeVar

PredictionT = TypeVar("PredictionT", default=Any)
PredictionT_co = TypeVar("PredictionT_co", default=Any, covariant=True)
PredictionT_contra = TypeVar("PredictionT_contra", default=Any, contravariant=True)


class PredictsBatches(Protocol[PredictionT_co]):
    """A trainer, as far as ``predict()`` needs to know what it yields: what ``predict_batch`` returns."""

    def predict_batch(self, batch: Any, /) -> PredictionT_co:
        """Return the predictions for a batch."""
        ...


class PredictionWriter(Protocol[PredictionT_contra]):
    """What ``write`` may be besides a path: called with the predictions for each batch, on the process that made them.

    Example:
        >>> from pa_core.predictions import PredictionWriter
        >>> def show(predictions: list[str], positions: range) -> None:
        ...     print(dict(zip(positions, predictions)))
        >>> write: PredictionWriter[list[str]] = show
        >>> write(["cat", "dog"], range(8, 10))
        {8: 'cat', 9: 'dog'}
    """

    def __call__(self, predictions: PredictionT_contra, positions: range, /) -> object:
        """Write the predictions for the samples at some positions of the dataset."""
        ...
