"""Predictions as an iterator: each sample once, in order, the same batches on any number of processes."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from typing_extensions import override

from pa_core import (
    BatchMismatchError,
    ConfigurationError,
    RanksDifferError,
    Trainer,
    UnsupportedConfigurationError,
    gather_objects,
)
from pa_core.errors import EmptyDatasetError
from pa_core.testing import RecordingCallback
from pa_data.errors import DataError

on_any_number_of_processes = pytest.mark.runs_on("one_process", "two_ranks")


def numbers(count: int) -> TensorDataset:
    """Samples that are their own numbers, without targets."""
    return TensorDataset(torch.arange(float(count))[:, None])


def trainer_of(model: nn.Module, *callbacks: Any) -> Trainer[nn.Module]:
    """A trainer that only predicts."""
    return Trainer(model, None, None, callbacks=callbacks)


class Draws(Dataset[Tensor]):
    """Samples with a random part, drawn as an augmentation would."""

    def __len__(self) -> int:
        return 11

    @override
    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, random.random(), torch.rand(()).item()])


@dataclass
class Scores:
    """Predictions of many kinds."""

    scores: Tensor
    names: list[str]
    drawn: float
    halves: Tensor
    nothing: Tensor


class Scorer(Trainer[nn.Module, list[Tensor]]):
    """Returns predictions of a class of its own."""

    @override
    def predict_batch(self, batch: list[Tensor]) -> Scores:
        assert not torch.is_grad_enabled()
        assert not self.model.training
        scores: Tensor = self.model(batch[0])
        names = [f"sample {int(one)}" for one in batch[0]]
        return Scores(scores, names, torch.rand(()).item(), scores.bfloat16(), torch.empty(0))


@on_any_number_of_processes
def test_each_sample_comes_once_in_order_whatever_the_number_of_samples() -> None:
    """Also fewer samples than processes: the batches are those of one process, and others yield nothing."""
    trainer = Scorer(nn.Identity(), None, None, callbacks=[])
    for count in (*range(1, 12), 31):
        batches = list(trainer.predict(numbers(count), per_device_batch_size=3))
        if not trainer.is_main_process:
            assert batches == []
            continue
        assert [len(batch.scores) for batch in batches] == [3] * (count // 3) + [count % 3] * (count % 3 > 0)
        assert torch.cat([batch.scores for batch in batches])[:, 0].tolist() == list(range(count))
        assert [name for batch in batches for name in batch.names] == [f"sample {i}" for i in range(count)]
        assert {batch.halves.dtype for batch in batches} == {torch.bfloat16}
        assert {tuple(batch.nothing.shape) for batch in batches} == {(0,)}


@pytest.mark.runs_on("two_ranks")
def test_processes_with_different_weights_are_refused() -> None:
    """Predictions of two models would alternate."""
    trainer = trainer_of(nn.Linear(1, 1))
    with torch.no_grad():
        trainer.model.get_parameter("weight").fill_(trainer.process_index)
    with pytest.raises(RanksDifferError, match="weights: "):
        list(trainer.predict(numbers(5), 2))
    with pytest.raises(RanksDifferError, match="weights: "):
        trainer.predict(numbers(5), 2, write=lambda predictions, positions: None)


@on_any_number_of_processes
def test_draws_depend_on_positions_alone_and_rngs_stay_as_they_were() -> None:
    """Augmentation and sampling in `predict_batch` are the same each time, and the script draws as without them."""
    trainer = Scorer(nn.Identity(), None, None, callbacks=[])
    drawn: list[list[float]] = []
    for seed_of_script in (1, 2):
        torch.manual_seed(seed_of_script)
        random.seed(seed_of_script)
        drawn.append([batch.drawn for batch in trainer.predict(numbers(10), 3)])
        after = torch.rand(()).item(), random.random()
        torch.manual_seed(seed_of_script)
        random.seed(seed_of_script)
        assert after == (torch.rand(()).item(), random.random())
    assert drawn[0] == drawn[1]
    augmented = [
        torch.cat(list(trainer_of(nn.Identity()).predict(Draws(), size, {"num_workers": workers})) or [torch.empty(0)])
        for size, workers in ((11, 0), (2, 0), (2, 2))
    ]
    other = list(trainer.predict(numbers(10), 3, seed=1))
    if trainer.is_main_process:
        assert len(set(drawn[0])) == 4
        assert torch.equal(augmented[0], augmented[1])
        assert torch.equal(augmented[0], augmented[2])
        assert not {batch.drawn for batch in other} & set(drawn[0])


@on_any_number_of_processes
def test_the_first_process_may_stop_early() -> None:
    """A loop that is left, an iterator that is closed, one that is never begun: no other process waits."""
    trainer = Scorer(nn.Identity(), None, None, callbacks=[])
    for stop in range(1, 5):
        taken = 0
        for _ in trainer.predict(numbers(10), per_device_batch_size=3):
            taken += 1
            if taken == stop:
                break
        assert taken == (stop if trainer.is_main_process else 0)
    trainer.predict(numbers(10))
    batches = trainer.predict(numbers(10), per_device_batch_size=3)
    next(batches, None)
    if trainer.is_main_process:
        with pytest.raises(ConfigurationError, match=r"evaluate\(\) within predict\(\)"):
            trainer.evaluate(numbers(3))
    batches.close()
    assert gather_objects(trainer.process_index) == list(range(trainer.num_processes))


@on_any_number_of_processes
def test_modes_come_back_and_gradients_are_recorded_between_batches() -> None:
    """The code in the loop is as free as anywhere else; the model is in the mode that it was in."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5))
    model[1].eval()
    trainer = Scorer(model, None, None, callbacks=[])
    for _ in trainer.predict(numbers(5), per_device_batch_size=2):
        assert torch.is_grad_enabled()
    assert (model.training, model[0].training, model[1].training) == (True, True, False)


def test_callbacks_hear_of_each_batch() -> None:
    """They are told how many batches there are, when each was predicted, and of the end, early or not."""
    recorder = RecordingCallback()
    trainer = trainer_of(nn.Identity(), recorder)
    list(trainer.predict(numbers(5), per_device_batch_size=2))
    next(trainer.predict(numbers(5), per_device_batch_size=2))
    told = [(event, *sizes.values()) for event, sizes in zip(recorder.events, recorder.arguments, strict=True)]
    start, end = ("on_prediction_run_start", 3), ("on_prediction_run_end",)
    steps = [("on_prediction_step_end", size) for size in (2, 2, 1)]
    assert [one for one in told if "prediction" in one[0]] == [start, *steps, end, start, steps[0], end]


class NamesItsInputs(nn.Module):
    """A model as Hugging Face has them."""

    @override
    def forward(self, pixels: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        outputs = {"logits": pixels * 2}
        return outputs if labels is None else {"loss": labels.sum(), **outputs}


class NamedSamples(Dataset[dict[str, Tensor]]):
    """Samples that are mappings."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __len__(self) -> int:
        return 3

    @override
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: torch.tensor([float(index)]) for name in self.names}


@pytest.mark.parametrize("names", [("pixels",), ("pixels", "labels")])
def test_a_model_with_names_is_called_by_name_and_its_loss_is_no_prediction(names: tuple[str, ...]) -> None:
    """With targets or without, the predictions are the other outputs."""
    (predicted,) = trainer_of(NamesItsInputs()).predict(NamedSamples(*names))
    assert list(predicted) == ["logits"]
    assert predicted["logits"][:, 0].tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    "dataset",
    [numbers(3), TensorDataset(*numbers(3).tensors, torch.zeros(3)), [torch.tensor([float(one)]) for one in range(3)]],
    ids=["inputs in tuples", "inputs and targets", "bare inputs"],
)
def test_targets_are_not_needed(dataset: Any) -> None:
    """What a batch begins with are the inputs, and so is a batch that is nothing else."""
    (predicted,) = trainer_of(nn.Identity()).predict(dataset)
    assert predicted[:, 0].tolist() == [0, 1, 2]


def test_a_model_of_two_inputs_needs_predict_batch() -> None:
    """The error names the method to override."""
    with pytest.raises(BatchMismatchError, match="Override predict_batch"):
        list(trainer_of(nn.Bilinear(1, 1, 1)).predict(numbers(3)))


def test_a_layer_that_cannot_take_the_inputs_is_explained() -> None:
    """A note names the layer, as in training."""
    with pytest.raises(RuntimeError) as caught:
        list(trainer_of(nn.Linear(4, 1)).predict(numbers(3)))
    assert any("which is Linear(in_features=4" in note for note in caught.value.__notes__)


class Stream(IterableDataset[Tensor]):
    """Samples without positions."""

    @override
    def __iter__(self) -> Iterator[Tensor]:
        return iter([torch.zeros(1)])


@pytest.mark.parametrize(
    ("arguments", "error", "advice"),
    [
        ({"dataset": DataLoader(numbers(3))}, ConfigurationError, "Pass its dataset"),
        ({"dataset": Stream()}, DataError, "__len__"),
        ({"dataset": []}, EmptyDatasetError, "made"),
        ({"dataset": numbers(3), "per_device_batch_size": 0}, ConfigurationError, "per_device_batch_size must be"),
        ({"dataset": numbers(3), "dataloader_kwargs": {"shuffle": True}}, ConfigurationError, "shuffle=True out"),
        ({"dataset": numbers(3), "dataloader_kwargs": {"drop_last": True}}, ConfigurationError, "drop_last=True out"),
        ({"dataset": numbers(3), "dataloader_kwargs": {"batch_size": None}}, ConfigurationError, "batch_size must be"),
        ({"dataset": numbers(3), "seed": -1}, ConfigurationError, "seed"),
    ],
)
def test_what_has_no_positions_is_refused_at_once(
    arguments: dict[str, Any], error: type[Exception], advice: str
) -> None:
    """Before anything is iterated over, with what to do."""
    with pytest.raises(error, match=advice):
        trainer_of(nn.Identity()).predict(**arguments)


def test_a_run_within_a_prediction_is_refused() -> None:
    """The iterator that is still open is named; once it is closed, the run may begin."""
    trainer = trainer_of(nn.Identity())
    batches = trainer.predict(numbers(5), per_device_batch_size=2)
    next(batches)
    with pytest.raises(ConfigurationError, match=r"Call close\(\)"):
        next(trainer.predict(numbers(5)))
    batches.close()
    assert len(list(trainer.predict(numbers(5)))) == 1


def test_parquet_files_need_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the line that installs it, before anything is predicted."""
    nothing: dict[str, None] = {}
    monkeypatch.setattr(importlib.util, "find_spec", nothing.get)
    with pytest.raises(UnsupportedConfigurationError, match=r"pip install pa-core\[predict\]"):
        trainer_of(nn.Identity()).predict(numbers(3), write="p.parquet")
