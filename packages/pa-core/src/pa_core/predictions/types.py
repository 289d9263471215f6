"""The types that users of predictions meet: a trainer by what it predicts, and what writes predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
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


class PieceWriter(Protocol):
    """What a prediction with ``write`` needs of the distribution that writes: pieces, and what becomes of them.

    ``pa_predictions.ResumableWriter`` is one. A piece is a range of positions in the dataset, of whole batches.
    """

    @property
    def path(self) -> Path | None:
        """The file that is there at the end, None if there is none."""
        ...

    @property
    def missing(self) -> Sequence[range]:
        """The pieces that are not there yet, in order, once it is open."""
        ...

    def open(self, identity: Mapping[str, str], say: Callable[[str], None], /) -> None:
        """Find out which pieces are there; called on the first process, and then on all others.

        Args:
            identity: What decides the predictions, by name.
            say: Told what is there already, and why it takes time, if it does.
        """
        ...

    def write(self, piece: range, batches: Iterator[tuple[range, Any]], /) -> None:
        """Write a piece: the positions of each of its batches, with the predictions; called on one process."""
        ...

    def finish(self) -> None:
        """Make one of the pieces; called on the first process, once all pieces are written."""
        ...

    def close(self) -> None:
        """Release what `open` has acquired, no matter how the prediction has ended; called on each process."""
        ...
