"""The metrics of a trial as its callbacks get them, on one process and on two, which all get the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset
from typing_extensions import override

import pa_trial
from pa_distributed import gather_objects
from pa_trial import Batch, CheckFailedError, DataLoader, MetricReducer, Reducer
from pa_trial.collectives import num_processes
from tests.support.trials import Heard, TinyTrial, fit, fit_and_fail, returning, variant

pytestmark = pytest.mark.runs_on("one_process", "two_ranks")

NUMBERS = torch.arange(12.0)


class Numbers(TinyTrial):
    """Trains and validates on the numbers from 0 to 11, two in a batch of all processes together."""

    @override
    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(TensorDataset(NUMBERS), batch_size=2 // num_processes())

    @override
    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(TensorDataset(NUMBERS[:7]), batch_size=2)

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        return self.metrics_of(batch[0], batch_idx)

    def metrics_of(self, numbers: Tensor, batch_idx: int) -> dict[str, Any]:
        """The metrics of a training batch."""
        return {"mean": numbers.mean()}

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> dict[str, Any]:
        return {"mean": batch[0].mean()}


def heard(trial_class: type[Numbers], folder: Path, max_length: int = 6, **asked: Any) -> Heard:
    """What the callbacks of a trial hear in a training with a report after each third batch."""
    asked = {"max_length": Batch(max_length), "reporting_period": Batch(3), **asked}
    heard = fit(trial_class, folder, **asked).heard
    assert len({repr((one.training, one.validation)) for one in gather_objects(heard)}) == 1, "ranks differ"
    return heard


def of_batches(metrics_of: Any) -> type[Numbers]:
    """A trial with metrics of its own for a training batch."""
    return variant(Numbers, metrics_of=metrics_of)


def many_kinds(_self: Numbers, numbers: Tensor, batch_idx: int) -> dict[str, Any]:
    """Metrics of all kinds."""
    return {
        "scalar": numbers.mean().requires_grad_(),
        "vector": torch.tensor([1.0, 2.0]) + batch_idx,
        "number": batch_idx,
        "sometimes": None if batch_idx % 2 else 1.0,
        "never": None,
        "word": "x",
        "epochs": 7,
    }


def test_training_metrics(shared_tmp_path: Path) -> None:
    """Averages over batches and elements, and the metrics of each batch, of each workload."""
    (averages, batches), (second, _) = heard(of_batches(many_kinds), shared_tmp_path).training
    never = pytest.approx(float("nan"), nan_ok=True)
    expected = {"scalar": 2.5, "vector": 2.5, "number": 1.0, "sometimes": 1.0, "never": never, "word": None}
    assert averages == {**expected, "batches": 3, "epochs": 7}
    assert (second["scalar"], second["batches"]) == (8.5, 6)
    assert [batch["scalar"].tolist() for batch in batches] == [0.5, 2.5, 4.5]
    assert isinstance(batches[0]["scalar"], np.ndarray)
    assert batches[1]["vector"].tolist() == [2.0, 3.0]
    assert [batch["sometimes"] for batch in batches] == [1.0, None, 1.0]
    assert (batches[1]["number"], batches[0]["word"], batches[0]["never"]) == (1, "x", None)
    assert "batches" not in batches[0]


def test_one_tensor_is_the_loss(shared_tmp_path: Path) -> None:
    """With the counts of batches and epochs beside it."""
    (averages, _), _ = heard(of_batches(returning(torch.tensor(5.0))), shared_tmp_path).training
    assert averages == {"loss": 5.0, "batches": 3, "epochs": 0}


def other_names(_self: Numbers, numbers: Tensor, batch_idx: int) -> dict[str, Any]:
    """Another metric for one batch."""
    return {"other" if batch_idx == 1 else "mean": 1.0}


def test_other_names_in_one_batch(shared_tmp_path: Path) -> None:
    """The error comes when the workload ends, before callbacks hear of it."""
    text = r"\['mean'\] in the first batch on rank 0, \['other'\] in batch 1"
    trial, _ = fit_and_fail(of_batches(other_names), shared_tmp_path, CheckFailedError, text, max_length=Batch(3))
    assert trial.heard.training == []


def test_a_validation(shared_tmp_path: Path) -> None:
    """The mean of four batches, the last of which is short; callbacks get the batches of their process."""
    told = heard(Numbers, shared_tmp_path, validation_period=Batch(3))
    assert told.validation == [{"mean": np.mean([0.5, 2.5, 4.5, 6.0])}] * 2
    assert all(isinstance(metrics["mean"], np.generic) for metrics in told.validation)
    outputs = sorted(float(output["mean"]) for outputs in gather_objects(told.outputs[0]) for output in outputs)
    assert outputs == [0.5, 2.5, 4.5, 6.0]


def test_a_validation_that_weighs_by_records(shared_tmp_path: Path) -> None:
    """It is the mean of all seven numbers."""
    told = heard(Numbers, shared_tmp_path, weigh_by_records=True)
    assert told.validation == [{"mean": pytest.approx(3.0)}]


def four_times(_self: Numbers, batch: list[Tensor], batch_idx: int) -> dict[str, Any]:
    """One vector under four names."""
    return dict.fromkeys(("avg", "sum", "max", "min"), batch[0].repeat(2)[:2])


def test_the_reducers_of_a_validation(shared_tmp_path: Path) -> None:
    """Vectors are reduced over all elements, each metric in its way."""
    reducers = {"avg": Reducer.AVG, "sum": Reducer.SUM, "max": Reducer.MAX, "min": Reducer.MIN}
    trial_class = variant(Numbers, evaluation_reducer=returning(reducers), evaluate_batch=four_times)
    assert heard(trial_class, shared_tmp_path).validation == [{"avg": 3.375, "sum": 27.0, "max": 6.0, "min": 0.0}]


class Largest(MetricReducer):
    """The largest number so far."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.largest = -1.0

    @override
    def reset(self) -> None:
        self.calls.append("reset")
        self.largest = -1.0

    @override
    def per_slot_reduce(self) -> Tensor:
        return torch.tensor(self.largest)

    @override
    def cross_slot_reduce(self, per_slot_metrics: list[Tensor]) -> dict[str, Any]:
        assert len(per_slot_metrics) == num_processes()
        return {"largest": max(float(value) for value in per_slot_metrics), "mean": "overwritten"}


def joined(values: list[Tensor]) -> list[float]:
    """The numbers of all batches, in their order."""
    return [number.item() for value in values for number in value]


class WithReducers(Numbers):
    """Has reducers for training, for validation and for both."""

    def __init__(self, context: pa_trial.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.largest = context.wrap_reducer(Largest())
        self.rarely = context.wrap_reducer(Largest(), for_training=False, for_validation=False)
        self.order = context.wrap_reducer(joined, "order", for_validation=False)
        self.number = context.experimental.wrap_reducer(len, name="number", for_training=False)

    @override
    def metrics_of(self, numbers: Tensor, batch_idx: int) -> dict[str, Any]:
        self.largest.largest = max(self.largest.largest, float(numbers.max()))
        self.order.update(numbers)
        return {"mean": 1.0, "other": 2.0}

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> dict[str, Any]:
        self.largest.largest = max(self.largest.largest, float(batch[0].max()))
        self.number.update(batch_idx)
        return {}


def test_reducers(shared_tmp_path: Path) -> None:
    """They are reset before each workload and validation, see what all processes added, and overwrite metrics."""
    asked: dict[str, Any] = {"max_length": Batch(6), "reporting_period": Batch(3)}
    trial = fit(WithReducers, shared_tmp_path, **asked)
    (averages, batches), (second, _) = trial.heard.training
    expected = {"largest": 5.0, "mean": "overwritten", "other": 2.0, "order": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]}
    assert averages == {**expected, "batches": 3, "epochs": 0}
    assert (second["largest"], second["order"]) == (11.0, [6.0, 7.0, 8.0, 9.0, 10.0, 11.0])
    assert batches[0].keys() == {"mean", "other"}
    assert trial.heard.validation == [{"largest": 6.0, "mean": "overwritten", "number": 4}]
    assert trial.largest.calls == trial.rarely.calls == ["reset"] * 3


class FullDataset(TinyTrial):
    """Validates on everything."""

    evaluate_batch = pa_trial.PyTorchTrial.evaluate_batch

    def __init__(self, context: pa_trial.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.wrap_reducer(len, "updates", for_training=False).update(1)
        self.batches = 0

    @override
    def evaluate_full_dataset(self, data_loader: TorchDataLoader[Any]) -> dict[str, Any]:
        assert not torch.is_grad_enabled()
        assert not self.model.training
        self.batches = len(list(data_loader))
        return {"number": torch.tensor(3.0), "matrix": np.eye(2), "best": float("inf")}


def test_a_validation_on_the_full_dataset(shared_tmp_path: Path) -> None:
    """The chief alone validates, and all processes get its metrics."""
    trial = fit(FullDataset, shared_tmp_path, max_length=Batch(1))
    (metrics,) = trial.heard.validation
    assert metrics["number"] == 3.0
    assert metrics["matrix"].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert (metrics["best"], metrics["updates"]) == (float("inf"), 0)
    assert gather_objects(trial.batches) == [2, 0][: num_processes()]


def test_nothing_to_validate_on(shared_tmp_path: Path) -> None:
    """An empty loader is a RuntimeError on all processes."""
    empty = DataLoader(TensorDataset(NUMBERS[:1]), batch_size=2, drop_last=True)
    trial_class = variant(Numbers, build_validation_data_loader=returning(empty))
    fit_and_fail(
        trial_class, shared_tmp_path, RuntimeError, "validation data loader has no batches", max_length=Batch(1)
    )
