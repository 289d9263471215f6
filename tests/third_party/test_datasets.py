"""Datasets of Hugging Face's `datasets`: what they return is trained with, or the error says how it could be."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate
from typing_extensions import override

from pa_core import AnyTrainer, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_data import KeyedDataLoader
from tests.support.callbacks import KillAt, KilledError, Notes

datasets: Any = pytest.importorskip("datasets")


class WithLoss(nn.Linear):
    """A classifier that returns its own loss."""

    @override
    def forward(self, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # as models of transformers
        return {"loss": nn.functional.cross_entropy(super().forward(pixels), labels)}


def test_the_advice_about_lists_is_right() -> None:
    """A dataset without a format fails with the name of the format, with which it trains."""
    dataset = datasets.Dataset.from_list([{"pixels": [0.1 * i, 0.2, 0.3], "labels": i % 2} for i in range(16)])
    model = WithLoss(3, 2)
    trainer = Trainer(model, None, torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])

    with pytest.raises(TypeError) as caught:
        trainer.train(dataset, 1, train_dataloader_kwargs={"num_workers": 0})
    assert any('dataset.with_format("torch")' in note for note in caught.value.__notes__)

    trainer.train(dataset.with_format("torch"), 1, train_dataloader_kwargs={"num_workers": 0})
    assert trainer.num_updates_completed == 2


def _examples() -> Iterator[dict[str, Any]]:
    for index in range(16):
        yield {"pixels": [0.1 * index, 0.2, 0.3], "labels": index % 2}


def _noisy_examples() -> Iterator[dict[str, Any]]:
    for one in _examples():
        yield {**one, "pixels": [value + random.random() for value in one["pixels"]]}


def _add_noise(example: dict[str, Any]) -> dict[str, Any]:
    return {"pixels": [value + random.gauss(0.0, 0.1) for value in example["pixels"]]}


def _add_noise_of_numpy(example: dict[str, Any]) -> dict[str, Any]:
    return {"pixels": [value + float(numpy.random.rand()) for value in example["pixels"]]}


def _add_noise_of_torch(example: dict[str, Any]) -> dict[str, Any]:
    return {"pixels": [value + torch.rand(()).item() for value in example["pixels"]]}


def _keep_some(example: dict[str, Any]) -> bool:
    return random.random() < 0.9


def _add_own_noise(example: dict[str, Any]) -> dict[str, Any]:
    own = random.Random(str(example["pixels"]))
    return {"pixels": [value + own.random() for value in example["pixels"]]}


def _train_on_stream(stream: Any) -> None:
    model = WithLoss(3, 2)
    trainer = Trainer(model, None, torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(stream.with_format("torch"), 1, max_num_train_steps=1, train_dataloader_kwargs={"num_workers": 0})


def _stream(make: Any = _examples) -> Any:
    return datasets.IterableDataset.from_generator(make)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: _stream().map(_add_noise).shuffle(seed=1, buffer_size=4), "_add_noise"),
        (lambda: _stream().map(_add_noise_of_numpy).shuffle(seed=1, buffer_size=4), "_add_noise_of_numpy"),
        (lambda: _stream().map(_add_noise_of_torch).shuffle(seed=1, buffer_size=4).map(dict), "_add_noise_of_torch"),
        (lambda: _stream().filter(_keep_some).shuffle(seed=1, buffer_size=4), "_keep_some"),
        (lambda: _stream(_noisy_examples).shuffle(seed=1, buffer_size=4), "_noisy_examples"),
    ],
)
def test_a_stream_that_draws_before_it_shuffles_is_warned_of(make: Any, name: str) -> None:
    """Such runs cannot be repeated, even with a seed."""
    with pytest.warns(UserWarning, match=rf"{name} draws random numbers before the stream is shuffled") as caught:
        _train_on_stream(make())
    assert len([one for one in caught if "before the stream" in str(one.message)]) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: _stream().shuffle(seed=1, buffer_size=4).map(_add_noise),
        lambda: _stream().map(_add_noise),
        lambda: _stream().map(_add_own_noise).shuffle(seed=1, buffer_size=4),
        lambda: _stream().shuffle(seed=1, buffer_size=4),
    ],
)
def test_other_streams_are_not_warned_of(make: Any) -> None:
    """Draws after the shuffle, and from generators of their own, can be repeated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*before the stream is shuffled")
        _train_on_stream(make())


class CountedRows:
    """Counts how many rows are fetched together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        get_rows = datasets.Dataset.__getitems__

        def count(dataset: Any, rows: list[int]) -> Any:
            self.sizes.append(len(rows))
            return get_rows(dataset, rows)

        monkeypatch.setattr(datasets.Dataset, "__getitems__", count)


def _noisy(samples: list[dict[str, Any]]) -> tuple[Any, Tensor, float]:
    return default_collate(samples), torch.rand(()), random.random()


def _batches(dataset: Any, **options: Any) -> str:
    loader: KeyedDataLoader[Any] = KeyedDataLoader(dataset, 4, seed=1, **options)
    loader.set_epoch(1)
    return str(list(loader))


class OneByOne(torch.utils.data.Dataset[Any]):
    """The same rows, of a dataset that nobody knows."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.dataset)

    @override
    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


@pytest.mark.parametrize("collate_fn", [None, _noisy])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_rows_of_a_table_are_fetched_together(
    collate_fn: Any, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the batches that rows one by one make, and what a collation draws; random numbers of a script stay."""
    rows = [{"pixels": [0.1 * i, 0.2], "label": i, "words": ["a"] * (i % 3), "name": str(i)} for i in range(16)]
    table = datasets.Dataset.from_list(rows).with_format("torch", columns=["pixels", "label", "name"])
    counted = CountedRows(monkeypatch)
    state = torch.get_rng_state()
    for dataset in (table, torch.utils.data.Subset(table, [*range(3, 15)])):
        options: dict[str, Any] = {"shuffle": True, "collate_fn": collate_fn, "num_workers": num_workers}
        assert _batches(dataset, **options) == _batches(OneByOne(dataset), **options)
    assert counted.sizes == ([] if num_workers else [4] * 7)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("changed_at", [0, 2])
def test_a_transform_that_is_set_later_draws_for_each_sample(changed_at: int) -> None:
    """Even in the middle of an epoch: what it draws follows from the sample, not from those before it."""

    def add_noise(batch: dict[str, Any]) -> dict[str, Any]:
        return {"label": [value + random.random() for value in batch["label"]]}

    def batches(first: int) -> list[list[float]]:
        dataset = datasets.Dataset.from_dict({"label": [*range(16)]})
        loader: KeyedDataLoader[Any] = KeyedDataLoader(dataset, 4, shuffle=True, seed=1)
        loader.start_epoch(0, 4 * first)
        random.seed(first)
        state = random.getstate()
        arriving, found = iter(loader), list[list[float]]()
        for number in range(first, 4):
            if number >= changed_at:
                dataset.set_transform(add_noise)
            found.append(next(arriving)["label"].tolist())
        assert random.getstate() == state
        return found

    assert batches(0)[3:] == batches(3)
    assert any(value % 1 for value in batches(3)[0])


class Seen(TrainerCallback):
    """Notes what is trained on."""

    def __init__(self) -> None:
        self.batches: list[Any] = Notes()

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.batches.append(batch["pixels"].tolist())


def _interleaved() -> Any:
    return datasets.interleave_datasets(
        [_stream(), _stream()], probabilities=[0.7, 0.3], seed=0, stopping_strategy="first_exhausted"
    )


@pytest.mark.parametrize(
    "make",
    [_stream, lambda: _stream().shuffle(seed=0, buffer_size=4), _interleaved],
    ids=["plain", "with a shuffle buffer", "interleaved"],
)
def test_a_stream_is_resumed_in_the_second_of_three_passes(make: Any, tmp_path: Path) -> None:
    """Later passes are whole: those of `datasets` itself would begin where the state was taken."""

    def train(folder: str, *callbacks: TrainerCallback, **options: Any) -> list[Any]:
        torch.default_generator.manual_seed(0)
        seen, model = Seen(), WithLoss(3, 2)
        save = SaveTrainingStateCallback(tmp_path / folder, save_every_n_steps=5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        Trainer(model, None, optimizer, callbacks=[seen, save, *callbacks]).train(
            make().with_format("torch"),
            1,
            max_num_train_steps=20,
            per_device_batch_size=2,
            train_dataloader_kwargs={"num_workers": 0},
            **options,
        )
        return [*seen.batches, *(one.tolist() for one in model.parameters())]

    whole = train("whole")
    with pytest.raises(KilledError):
        train("killed", KillAt(12))
    assert train("killed", resume_from=tmp_path / "killed") == whole[10:]
