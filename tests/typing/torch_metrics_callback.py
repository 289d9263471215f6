"""What type checkers make of ``TorchMetricsCallback``: a line that stops being an error is one, for its ignores."""

from __future__ import annotations

from typing import Any, assert_type

from torch import Tensor, nn
from torch.optim import SGD
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy
from typing_extensions import TypedDict

from pa_callbacks_extra import TorchMetricsCallback
from pa_core import BatchOutput, Trainer


class Pair(TypedDict):
    """A batch."""

    pixels: Tensor
    label: Tensor


class Scored(BatchOutput):
    """What a step returns."""

    scores: Tensor


def scores(batch: Pair, output: Scored) -> Tensor:
    """Predictions."""
    return output["scores"]


def labels(batch: Pair, output: Scored) -> Tensor:
    """Targets."""
    return batch["label"]


def first(batch: tuple[Tensor, Tensor], output: Scored) -> Tensor:
    """Targets of other batches."""
    return batch[0]


plain = TorchMetricsCallback(BinaryAccuracy())
assert_type(plain, TorchMetricsCallback[Any, Any])
untyped = TorchMetricsCallback(BinaryAccuracy(), predictions=lambda batch, output: output["scores"] - batch[0])
assert_type(untyped, TorchMetricsCallback[Any, Any])
inferred = TorchMetricsCallback(BinaryAccuracy(), predictions=scores, targets=labels)
assert_type(inferred, TorchMetricsCallback[Pair, Scored])
declared = TorchMetricsCallback[Pair, Scored](
    MetricCollection({"accuracy": BinaryAccuracy()}),
    predictions=lambda batch, output: output["scores"],
    targets=lambda batch, output: batch["label"],
)

TorchMetricsCallback[Pair, Scored](
    BinaryAccuracy(),
    predictions=lambda batch, output: output["score"],  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownLambdaType]
    targets=lambda batch, output: batch["labels"],  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownLambdaType]
)
TorchMetricsCallback[Pair, Scored](BinaryAccuracy(), targets=first)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
TorchMetricsCallback(nn.Linear(1, 1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
TorchMetricsCallback(BinaryAccuracy(), predictions=len)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

model = nn.Linear(1, 1)
trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters()), callbacks=[plain, inferred, declared])
assert_type(trainer, Trainer[nn.Linear])
