"""What `train()` and `evaluate()` take as data: datasets, and DataLoaders that are used as they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    SequentialSampler,
    TensorDataset,
    default_collate,
    default_convert,
)
from typing_extensions import override

from pa_core import AnyTrainer, ConfigurationError, Trainer, TrainerCallback
from pa_core.data import KeyedDataLoader
from pa_core.testing import make_classification
from tests.support.explained import assert_explained
from tests.support.trainers import classifier_trainer

DATA = make_classification(22)
MORE = make_classification(10, seed=1)
X, Y = DATA.tensors


class Batches(TrainerCallback):
    """Notes the inputs of each step."""

    def __init__(self) -> None:
        self.trained: list[Tensor] = []
        self.evaluated: list[Tensor] = []

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.trained.append(batch[0])

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.evaluated.append(batch[0])


class MakesLoader(Trainer):
    """A trainer that returns a loader of its own."""

    loader: DataLoader[Any]

    @override
    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> Any:
        return self.loader


def shuffled(data: TensorDataset = DATA, **kwargs: Any) -> DataLoader[Any]:
    """A loader with an order of its own."""
    return DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5), **kwargs)


def test_a_dataloader_trains_as_if_the_trainer_had_created_it() -> None:
    """Weights, losses and settings are those of a trainer that returns the same loader."""
    given, expected = classifier_trainer(Trainer), classifier_trainer(MakesLoader)
    assert isinstance(expected, MakesLoader)
    expected.loader = shuffled()

    given.train(shuffled(), 2, gradient_accumulation_steps=2)
    expected.train(DATA, 2, gradient_accumulation_steps=2)

    assert all(map(torch.equal, given.model.parameters(), expected.model.parameters()))
    assert given.run_history.get_latest_metric("train_loss_epoch") == expected.run_history.get_latest_metric(
        "train_loss_epoch"
    )
    assert given.train_dataset is DATA
    config = given.run_config
    assert (config.train_per_device_batch_size, config.train_dl_kwargs, config.num_update_steps_per_epoch) == (4, {}, 3)


def test_the_batches_are_those_of_the_loader() -> None:
    """In training and in evaluation, in the order of the loader."""
    notes = Batches()
    classifier_trainer(Trainer, notes).train(shuffled(), 1, DataLoader(MORE, batch_size=3, drop_last=True))
    assert torch.equal(torch.cat(notes.trained), torch.cat([batch[0] for batch in shuffled()]))
    assert torch.equal(torch.cat(notes.evaluated), MORE.tensors[0][:9])


def test_evaluate_takes_a_dataloader_and_goes_on_with_that_of_the_run() -> None:
    """Without a dataset, the batches are those of the loader that `train()` was given; a dataset takes its place."""
    notes = Batches()
    trainer = classifier_trainer(Trainer, notes)
    trainer.train(DATA, 1, DataLoader(MORE, batch_size=5))
    trainer.evaluate()
    assert [len(batch) for batch in notes.evaluated] == [5, 5, 5, 5]
    assert trainer.eval_dataset is MORE
    trainer.evaluate(DataLoader(DATA, batch_size=11))
    assert [len(batch) for batch in notes.evaluated[4:]] == [11, 11]
    trainer.evaluate(MORE)
    trainer.evaluate()
    assert [len(batch) for batch in notes.evaluated[6:]] == [10, 10]  # of up to 11 samples, as in the run before
    trainer.eval_dataset = DATA
    trainer.evaluate()
    assert [len(batch) for batch in notes.evaluated[8:]] == [11, 11]


def test_a_dataset_after_a_dataloader_is_loaded_by_the_trainer_again() -> None:
    """A loader belongs to the run that it was given to."""
    trainer = classifier_trainer(Trainer)
    trainer.train(shuffled(), 1, shuffled(MORE))
    trainer.train(DATA, 1, MORE, per_device_batch_size=2)
    assert isinstance(trainer.train_dataloader, KeyedDataLoader)
    assert isinstance(trainer.eval_dataloader, KeyedDataLoader)
    assert trainer.run_config.train_per_device_batch_size == 2


@pytest.mark.runs_on("two_ranks")
@pytest.mark.filterwarnings("ignore:A custom loader or sampler")
def test_a_dataloader_is_split_over_the_ranks() -> None:
    """Each rank takes other batches, and both all of them."""
    notes = Batches()
    trainer = classifier_trainer(Trainer, notes)
    trainer.train(DataLoader(make_classification(16), batch_size=4), 1)
    assert trainer.num_updates_completed == 2
    seen = trainer.gather(torch.cat(notes.trained))
    assert sorted(seen.tolist()) == sorted(make_classification(16).tensors[0].tolist())


@pytest.mark.runs_on("two_ranks")
def test_a_keyed_loader_of_another_process_is_refused() -> None:
    """It would yield all samples on both ranks; they raise one error, and wait for nothing to find that out."""
    start = time.monotonic()
    with pytest.raises(ConfigurationError, match="num_processes=1"):
        classifier_trainer(Trainer).train(KeyedDataLoader(DATA, batch_size=4), 1)
    assert time.monotonic() - start < 2


def test_a_keyed_loader_is_taken_as_well() -> None:
    """Its order is that of its own seed."""
    notes = Batches()
    classifier_trainer(Trainer, notes).train(KeyedDataLoader(DATA, batch_size=4, shuffle=True, seed=3), 1)
    expected = KeyedDataLoader(DATA, batch_size=4, shuffle=True, seed=3)
    assert torch.equal(torch.cat(notes.trained), torch.cat([batch[0] for batch in expected]))


CONTRADICTIONS: dict[str, tuple[Callable[[Trainer], object], tuple[str, ...]]] = {
    "train_dataloader_kwargs": (
        lambda trainer: trainer.train(shuffled(), 1, train_dataloader_kwargs={"drop_last": True}),
        ("train_dataloader_kwargs", "drop_last", "RandomSampler, batches of 4"),
    ),
    "eval_dataloader_kwargs": (
        lambda trainer: trainer.train(DATA, 1, shuffled(), eval_dataloader_kwargs={"num_workers": 0}),
        ("eval_dataloader_kwargs", "as eval_dataset"),
    ),
    "dataloader_kwargs": (
        lambda trainer: trainer.evaluate(shuffled(), dataloader_kwargs={"num_workers": 0}),
        ("dataloader_kwargs", "as dataset"),
    ),
    "per_device_batch_size": (
        lambda trainer: trainer.train(shuffled(), 1, shuffled(), per_device_batch_size=16),
        ("per_device_batch_size=16", "batches of 4"),
    ),
    "per_device_batch_size of evaluate": (
        lambda trainer: trainer.evaluate(shuffled(), 16),
        ("per_device_batch_size=16",),
    ),
    "collate_fn": (
        lambda trainer: trainer.train(shuffled(), 1, collate_fn=default_convert),
        ("collate_fn=default_convert", "Leave collate_fn out"),
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_an_argument_without_effect_on_a_dataloader_is_refused(name: str) -> None:
    """The error names the argument and the loader, before anything is trained."""
    act, words = CONTRADICTIONS[name]
    trainer = classifier_trainer(Trainer)
    with pytest.raises(ConfigurationError) as caught:
        act(trainer)
    assert_explained(caught.value, "no effect", *words)


def test_a_misspelt_option_of_a_loader_is_told_with_the_argument_that_has_it() -> None:
    """The error names the nearest option, and the argument of the call that created the loader."""
    trainer = classifier_trainer(Trainer)
    with pytest.raises(
        TypeError, match=r"(?s)no option batchsize.*batch_size\..*train_dataloader_kwargs.*: batchsize\."
    ):
        trainer.train(DATA, 1, train_dataloader_kwargs={"batchsize": 3})
    with pytest.raises(TypeError, match=r"(?s)num_workers\..* eval_dataloader_kwargs"):
        trainer.train(DATA, 1, MORE, eval_dataloader_kwargs={"num_worker": 0})
    with pytest.raises(TypeError, match=r"(?s)drop_last\..* dataloader_kwargs"):
        trainer.evaluate(DATA, dataloader_kwargs={"droplast": True})


def test_arguments_that_have_an_effect_are_taken() -> None:
    """They are for the dataset beside the loader, or say what the loader says too."""
    trainer = classifier_trainer(Trainer)
    trainer.train(shuffled(), 1, MORE, per_device_batch_size=5, collate_fn=default_collate)
    assert trainer.run_config.eval_per_device_batch_size == 5
    trainer.train(shuffled(), 1, per_device_batch_size=4)
    trainer.train(shuffled(collate_fn=default_collate), 1, collate_fn=default_collate)


def test_a_loader_with_a_batch_sampler_says_its_batch_size() -> None:
    """The settings of the run are those of its batches."""
    trainer = classifier_trainer(Trainer)
    trainer.train(DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 6, drop_last=False)), 1)
    assert trainer.run_config.train_per_device_batch_size == 6


def test_a_dataloader_for_a_trainer_that_creates_its_own_is_refused() -> None:
    """One of the two would have no effect."""
    trainer = classifier_trainer(MakesLoader)
    with pytest.raises(ConfigurationError) as caught:
        trainer.train(shuffled(), 1)
    assert_explained(caught.value, "a DataLoader as train_dataset", "MakesLoader.create_train_dataloader")


class Frame(dict[str, Any]):
    """What a table of pandas looks like."""

    iloc = None


class OnlyIterable:
    """A loader of a library of its own."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Any:
        return iter([(X, Y)])


SHOWN = "TensorDataset(torch.as_tensor(X), torch.as_tensor(Y))"
NO_DATASETS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "two tensors": ((X, Y), ("a tuple of 2 [Tensor of shape (22, 4)", SHOWN)),
    "two arrays": ((X.numpy(), Y.numpy()), ("ndarray of shape (22, 4)", SHOWN)),
    "two arrays of doubles": ((X.double().numpy(), Y.numpy()), (f"do:       Pass {SHOWN}",)),
    "a list of two arrays": ([X.numpy(), Y.numpy()], ("a list of 2", SHOWN)),
    "a table": (Frame(x=X, y=Y), ("a Frame", SHOWN, 'for example table[["a", "b"]].to_numpy("float32")')),
    "splits": ({"train": DATA, "test": MORE}, ("'train'", "Pass a value of it", "['train'], ['test']")),
    "a path": ("data/train", ("a str", "__getitem__")),
    "a class": (TensorDataset, ("Pass an instance: TensorDataset(...)",)),
    "a loader of another library": (OnlyIterable(), ("OnlyIterable", "create_train_dataloader")),
}


@pytest.mark.parametrize("name", NO_DATASETS)
def test_what_is_not_a_dataset_is_refused_where_it_is_passed(name: str) -> None:
    """The error shows what was given and how to make a dataset of it."""
    data, words = NO_DATASETS[name]
    with pytest.raises(ConfigurationError) as caught:
        classifier_trainer(Trainer).train(data, 1)
    assert_explained(caught.value, "as train_dataset", *words)
    if name == "splits":  # which can be evaluated, each under its name
        return
    with pytest.raises(ConfigurationError, match="as eval_dataset"):
        classifier_trainer(Trainer).train(DATA, 1, data)
    with pytest.raises(ConfigurationError, match="as dataset"):
        classifier_trainer(Trainer).evaluate(data)


SEQUENCES: dict[str, Any] = {
    "a list of samples": list(zip(X, Y, strict=True)),
    "a tuple of samples": tuple(zip(X, Y, strict=True)),
    "two samples": [(X[0], Y[0]), (X[1], Y[1])],
    "samples by number": dict(enumerate(zip(X, Y, strict=True))),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence_of_samples_is_a_dataset(name: str) -> None:
    """Whatever has a length and integer indices."""
    trainer = classifier_trainer(Trainer)
    trainer.train(SEQUENCES[name], 1, train_dataloader_kwargs={"num_workers": 0})
    assert trainer.num_updates_completed > 0


class Reconstructs(Trainer):
    """Trains on batches that are one tensor."""

    @override
    def calculate_train_batch_loss(self, batch: Tensor) -> dict[str, Any]:
        outputs = self.model(batch)
        return {"loss": outputs.square().mean(), "model_outputs": outputs, "batch_size": len(batch)}


@pytest.mark.parametrize("data", [X, np.asarray(X), list(X), [X[0], X[1]], tuple(X)], ids=type)
def test_an_array_is_a_dataset_for_a_step_of_ones_own(data: Any) -> None:
    """Its samples are its rows: what a step that was overridden can train on is not refused."""
    trainer = classifier_trainer(Reconstructs)
    run = partial(trainer.train, data, 1, train_dataloader_kwargs={"num_workers": 0})
    run()
    assert trainer.num_updates_completed == -(-len(data) // 8)
