"""Datasets of Hugging Face's `datasets`: what they return is trained with, or the error says how it could be."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from pa_core import Trainer

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
