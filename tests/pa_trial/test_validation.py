"""Validations: by batch or by the whole dataset, and what callbacks hear of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typing_extensions import override

import pa_trial
from pa_trial import Batch, DataLoader, InvalidExperimentException, NoMetricsError
from tests.support.trials import TinyTrial, callback, fit, samples

if TYPE_CHECKING:
    from pathlib import Path

    from torch.utils.data import DataLoader as TorchDataLoader


class ByBatch(TinyTrial):
    """Three batches, the last of which is short; each is the metric that it is."""

    def __init__(self, context: pa_trial.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.seen: list[tuple[int, bool, bool, int]] = []

    @override
    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(samples(9), batch_size=4)

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> dict[str, Any]:
        self.seen.append((batch_idx, self.model.training, torch.is_grad_enabled(), len(batch[0])))
        return {"number": torch.tensor(float(batch_idx))}


def test_a_validation_by_batch(tmp_path: Path) -> None:
    """In eval mode, without gradients, batches counted from 0 in each; callbacks get the outputs as arrays."""
    trial = fit(ByBatch, tmp_path, max_length=Batch(2), validation_period=Batch(1))
    assert trial.seen == [(0, False, False, 4), (1, False, False, 4), (2, False, False, 1)] * 2
    assert trial.heard.validation == [{"number": 1.0}] * 2
    for outputs in trial.heard.outputs:
        assert [output["number"] for output in outputs] == [0, 1, 2]
        assert all(isinstance(output["number"], np.ndarray) for output in outputs)


class NotesModes(TinyTrial):
    """Notes down the mode of the model in each batch."""

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        assert self.model.training
        assert torch.is_grad_enabled()
        return super().train_batch(batch, epoch_idx, batch_idx)


def test_models_train_again_after_a_validation(tmp_path: Path) -> None:
    """The next workload puts them back to train; after the last validation they stay as they are."""
    trial = fit(NotesModes, tmp_path, max_length=Batch(3), validation_period=Batch(1), step_zero_validation=True)
    assert not trial.model.training


class WithoutIndex(TinyTrial):
    """As several old examples have it."""

    @override
    def evaluate_batch(self, batch: list[Tensor]) -> dict[str, Any]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # what is accepted
        return super().evaluate_batch(batch, 0)


class AnyArguments(TinyTrial):
    """Hands on whatever it is called with."""

    @override
    def evaluate_batch(self, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # what is accepted
        assert set(kwargs) == {"batch", "batch_idx"}
        return super().evaluate_batch(**kwargs)


@pytest.mark.parametrize("trial_class", [WithoutIndex, AnyArguments])
def test_evaluate_batch_with_other_arguments(trial_class: type[TinyTrial], tmp_path: Path) -> None:
    """The index is passed where it is wanted; all arguments by name."""
    assert fit(trial_class, tmp_path, max_length=Batch(1)).notes.events == ["W1", "V1", "C1"]


class ByDataset(TinyTrial):
    """Validates on everything at once."""

    evaluate_batch = pa_trial.PyTorchTrial.evaluate_batch

    def __init__(self, context: pa_trial.PyTorchTrialContext) -> None:
        super().__init__(context)

    @override
    def evaluate_full_dataset(self, data_loader: TorchDataLoader[Any]) -> dict[str, Any]:
        assert not torch.is_grad_enabled()
        assert not self.model.training
        return {"records": torch.tensor(sum(len(batch[0]) for batch in data_loader))}


class Neither(TinyTrial):
    """Assigns back what it inherits, which is no override."""

    evaluate_batch = pa_trial.PyTorchTrial.evaluate_batch


class Both(TinyTrial):
    """Overrides both."""

    @override
    def evaluate_full_dataset(self, data_loader: TorchDataLoader[Any]) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("trial_class", [Neither, Both])
def test_exactly_one_way_to_validate(trial_class: type[TinyTrial], tmp_path: Path) -> None:
    """It is refused when fit starts."""
    with pytest.raises(InvalidExperimentException, match="exactly one way"):
        fit(trial_class, tmp_path, max_length=Batch(1))
    assert issubclass(InvalidExperimentException, Exception)


def test_a_class_named_as_its_base_overrides_too(tmp_path: Path) -> None:
    """Functions are compared, not the names of classes."""

    class PyTorchTrial(TinyTrial):
        @override
        def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> dict[str, Any]:
            return {"own": 1}

    PyTorchTrial.evaluate_batch.__qualname__ = "PyTorchTrial.evaluate_batch"
    assert fit(PyTorchTrial, tmp_path, max_length=Batch(1)).notes.events == ["W1", "V1", "C1"]


class OtherKeys(TinyTrial):
    """Another metric in each batch."""

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> dict[str, Any]:
        return {f"metric {batch_idx}": 1}


class NoDictionary(TinyTrial):
    """A tensor, as train_batch may return."""

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> Any:
        return torch.tensor(1.0)


class NoMetrics(TinyTrial):
    """Forgets to return."""

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> Any:
        return None


class DatasetWithoutMetrics(ByDataset):
    """A list."""

    @override
    def evaluate_full_dataset(self, data_loader: TorchDataLoader[Any]) -> Any:
        return [1.0]


class NotJson(ByDataset):
    """A module, which is no metric."""

    @override
    def evaluate_full_dataset(self, data_loader: TorchDataLoader[Any]) -> Any:
        return {"model": self.model}


@pytest.mark.parametrize(
    ("trial_class", "error", "text"),
    [
        (OtherKeys, ValueError, "metric 1"),
        (NoDictionary, NoMetricsError, "evaluate_batch"),
        (NoMetrics, NoMetricsError, "None"),
        (DatasetWithoutMetrics, TypeError, "evaluate_full_dataset"),
        (NotJson, TypeError, "model"),
    ],
)
def test_what_a_validation_must_return(
    trial_class: type[TinyTrial], error: type[Exception], text: str, tmp_path: Path
) -> None:
    """Metrics of the same names for all batches."""
    with pytest.raises(error, match=text):
        fit(trial_class, tmp_path, max_length=Batch(1))


def test_counts_are_added_to_the_metrics_of_a_validation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After the callbacks have heard of them; a callback that keeps them sees them later."""
    kept: list[dict[str, Any]] = []

    with caplog.at_level("INFO", logger="pa_trial"):
        trial = fit(TinyTrial, tmp_path, {"keeps": callback(on_validation_end=kept.append)}, max_length=Batch(5))
    assert trial.heard.validation[0].keys() == {"val_loss"}
    assert (kept[0]["batches"], kept[0]["epochs"]) == (5, 1)
    assert any("validation" in record.message and "'batches': 5" in record.message for record in caplog.records)


def test_one_batch_in_test_mode(tmp_path: Path) -> None:
    """Of the validation too."""
    trial = fit(ByBatch, tmp_path, test_mode=True)
    assert [batch_idx for batch_idx, *_ in trial.seen] == [0]
