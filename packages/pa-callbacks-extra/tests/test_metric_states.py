"""Metrics over several processes, some of which had fewer batches than others, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.aggregation import CatMetric, MaxMetric, MeanMetric, SumMetric
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryPrecision, MulticlassRecall
from torchmetrics.regression import PearsonCorrCoef
from torchmetrics.retrieval import RetrievalMAP
from torchmetrics.wrappers import ClasswiseWrapper
from typing_extensions import override

from pa_callbacks_extra.metric_states import compute_over_processes, take_out
from pa_core.distributed import num_processes, rank

if TYPE_CHECKING:
    from collections.abc import Callable


class Seen(Metric):
    """Is one if a batch was seen, the mean over processes."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("seen", torch.zeros(()), dist_reduce_fx="mean")

    @override
    def update(self, predictions: Tensor) -> None:
        self.seen = torch.ones(())

    @override
    def compute(self) -> Tensor:
        return self.seen


@dataclass(frozen=True)
class Case:
    """Metrics, and what each batch gives them."""

    make: Callable[[], MetricCollection]
    arguments: Callable[[Tensor, Tensor], tuple[Tensor, ...]]

    def update(self, metrics: MetricCollection, number: int) -> None:
        """Update metrics with a batch of three samples, the same ones for the same number."""
        predictions = torch.rand(3, generator=torch.Generator().manual_seed(number))
        metrics.update(*self.arguments(predictions, torch.tensor([0, 1, number % 2])))


CASES = {
    "one argument, each reduction": Case(
        lambda: MetricCollection(
            {"sum": SumMetric(), "mean": MeanMetric(), "max": MaxMetric(), "all": CatMetric(), "seen": Seen()}
        ),
        lambda predictions, _targets: (predictions,),
    ),
    "counts that two share, all samples": Case(
        lambda: MetricCollection(
            {"accuracy": BinaryAccuracy(), "precision": BinaryPrecision(), "auroc": BinaryAUROC(thresholds=None)}
        ),
        lambda predictions, targets: (predictions, targets),
    ),
    "one inside another": Case(
        lambda: MetricCollection({"recall": ClasswiseWrapper(MulticlassRecall(num_classes=2, average=None))}),
        lambda predictions, targets: (predictions.round().long(), targets),
    ),
    "moments, reduced by the metric": Case(
        lambda: MetricCollection({"correlation": PearsonCorrCoef()}),
        lambda predictions, targets: (predictions, targets + predictions**2),
    ),
    "lists that are exchanged item by item": Case(
        lambda: MetricCollection({"ranking": RetrievalMAP()}),
        lambda predictions, targets: (predictions, targets, (predictions > 0.5).long()),
    ),
}


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("batches_of_ranks", [(3, 3), (3, 1), (2, 0)], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_batch_counts_once_whichever_process_had_it(case: Case, batches_of_ranks: tuple[int, ...]) -> None:
    """The value of all processes is that of one process with all batches; each goes on with its own samples."""
    metrics, of_one_process = case.make(), case.make()
    for of_rank, count in enumerate(batches_of_ranks[: num_processes()]):
        for number in range(count):
            case.update(of_one_process, 10 * of_rank + number)
            if of_rank == rank():
                case.update(metrics, 10 * of_rank + number)

    before = take_out(metrics)
    values, expected = compute_over_processes(metrics), compute_alone(of_one_process)

    torch.testing.assert_close(take_out(metrics), before)
    assert values.keys() == expected.keys()
    for name, value in values.items():
        torch.testing.assert_close(value, expected[name], msg=name)


def compute_alone(metrics: MetricCollection) -> dict[str, Tensor]:
    """Compute as in a process that has no others."""
    modules: Any = metrics.modules()
    for module in modules:
        module.distributed_available_fn = lambda: False
    return metrics.compute()
