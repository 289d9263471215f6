"""What must not pass a type checker around data in files, mixtures and predictions."""

from __future__ import annotations

from pa_core.types import PredictionWriter, PredictsBatches
from pa_data.files import OpenShard, ShardedFiles, ShardFile, ShardReader
from pa_data.orders import Mixture
from tests.typing.vocabulary import make_data


class Lines:
    """Reads texts."""

    def count(self, file: ShardFile) -> int:
        """Return the number of lines."""
        return len(self.open(file))

    def open(self, file: ShardFile) -> list[str]:
        """Return the lines."""
        return [str(file.path)]


class Doubles:
    """Predicts numbers."""

    def predict_batch(self, batch: list[int]) -> list[int]:
        """Return twice each number."""
        return [2 * number for number in batch]


def write_numbers(predictions: list[int], positions: range) -> None:
    """Write nothing."""


numbers: ShardReader[int] = Lines()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_data.files.ShardReader[_SampleT_co]: it reads texts
rows: OpenShard[int] = ["one"]  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]  # pa_data.files.OpenShard[_SampleT_co]: texts
files: ShardedFiles[int] = ShardedFiles("*.txt", Lines())  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]  # pa_data.files.ShardedFiles[_SampleT_co]: texts
mixed: Mixture[int] = Mixture({"digits": make_data()})  # type: ignore[dict-item]  # pyright: ignore[reportAssignmentType]  # pa_data.orders.Mixture[_SampleT_co]: tensors
writer: PredictionWriter[list[str]] = write_numbers  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.types.PredictionWriter[PredictionT_contra]: it writes numbers
predictor: PredictsBatches[list[str]] = Doubles()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.types.PredictsBatches[PredictionT_co]: it predicts numbers
