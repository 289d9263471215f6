"""Loaders that yield more or fewer batches than their length: nothing is left out or recorded without a word."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler
from typing_extensions import override

from pa_core import BatchOutputError, ConfigurationError, Trainer
from pa_core.errors import EmptyDatasetError
from pa_core.testing import make_classification
from tests.support.explained import assert_explained
from tests.support.pa_core.good_run import Permissive
from tests.support.trainers import classifier_trainer

DATA = make_classification(32)
NO_WORKERS = {"num_workers": 0}
BATCHES = [(DATA.tensors[0][start : start + 4], DATA.tensors[1][start : start + 4]) for start in range(0, 32, 4)]


class Claims:
    """A loader of so many batches that says it has another number of them."""

    def __init__(self, length: int, number: int) -> None:
        self.length, self.number = length, number

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return iter(BATCHES[: self.number])


class OnceOnly(Claims):
    """A loader around an iterator, which is used up after an epoch."""

    def __init__(self, batches: int) -> None:
        super().__init__(batches, batches)
        self.iterator = iter(BATCHES[:batches])

    @override
    def __iter__(self) -> Iterator[Any]:
        return self.iterator


class LyingSampler(Claims, Sampler[int]):
    """A sampler that does not yield as many indices as it says."""

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(self.number))


class Stream(Claims, IterableDataset[tuple[Tensor, ...]]):
    """Samples that each worker yields, all of them."""

    @override
    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return (DATA[index] for index in range(self.number))


class Running(Dataset[tuple[Tensor, ...]]):
    """Samples of which one calls ``next()`` where nothing is left."""

    def __len__(self) -> int:
        return len(DATA)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return next(iter([DATA[index]] if index != 12 else []))


def constant(optimizer: Optimizer) -> LambdaLR:
    """A scheduler that counts its steps."""
    return LambdaLR(optimizer, lambda _step: 1.0)


def warnings_of(run: Callable[[], object]) -> list[warnings.WarningMessage]:
    """Those of this package, in order."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [warning for warning in caught if "A loader whose length is" in str(warning.message)]


def losses_of(trainer: Trainer[Any], name: str = "train_loss_epoch") -> list[float]:
    """What was recorded."""
    if name not in trainer.run_history.get_metric_names():
        return []
    return [float(value) for value in trainer.run_history.get_metric_values(name)]


def test_a_loader_that_can_be_iterated_once_is_refused_at_its_second_epoch() -> None:
    """The first epoch that would be empty is an error, and no mean of nothing is recorded."""
    trainer = classifier_trainer(Permissive)
    trainer.train_loader = lambda: OnceOnly(4)
    with pytest.raises(EmptyDatasetError) as caught:
        trainer.train(DATA, 3)
    assert_explained(caught.value, "no batch in training", "0 batches of OnceOnly", "whose length is 4", "iterator")
    assert trainer.num_updates_completed == 4
    assert len(losses_of(trainer)) == 1
    assert math.isfinite(losses_of(trainer)[0])


@pytest.mark.parametrize("loader", [Claims(4, 8), DataLoader(DATA, batch_size=4, sampler=LyingSampler(16, 32))])
def test_an_epoch_ends_with_the_length_of_its_loader(loader: Any) -> None:
    """Each epoch has the updates that the run and its schedule were planned for; a warning says what is left out."""
    trainer = classifier_trainer(Permissive)
    trainer.train_loader = lambda: loader
    caught = warnings_of(lambda: trainer.train(DATA, 2, create_scheduler_fn=constant))
    assert len(caught) == 1
    assert "whose length is 4 yielded more than 4 batches in training" in str(caught[0].message)
    assert "the other batches are not trained on" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert trainer.num_updates_completed == trainer.run_config.max_num_train_steps == 8
    assert isinstance(trainer.scheduler, LambdaLR)
    assert trainer.scheduler.last_epoch == 8
    assert len(losses_of(trainer)) == 2


@pytest.mark.parametrize("loader", [Claims(8, 4), DataLoader(DATA, batch_size=4, sampler=LyingSampler(32, 16))])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_fewer_batches_than_the_length_are_said(loader: Any, accumulation: int) -> None:
    """The run makes fewer updates than planned, and a warning names what was given and expected, once."""
    trainer = classifier_trainer(Permissive)
    trainer.train_loader = lambda: loader
    caught = warnings_of(lambda: trainer.train(DATA, 3, gradient_accumulation_steps=accumulation))
    assert len(caught) == 1
    assert "whose length is 8 yielded 4 of these batches in training" in str(caught[0].message)
    assert "fewer updates than planned" in str(caught[0].message)
    assert trainer.num_updates_completed == 3 * math.ceil(4 / accumulation)
    assert len(losses_of(trainer)) == 3


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": 4, "shuffle": True}, {"batch_size": None}])
def test_a_sample_that_raises_stop_iteration_is_an_error(options: dict[str, Any], num_workers: int) -> None:
    """Where torch's samplers have further batches, nothing else ends an epoch; no part of one counts as a whole."""
    trainer = classifier_trainer(Permissive)
    loader: DataLoader[Any] = DataLoader(Running(), num_workers=num_workers, **options)
    trainer.train_loader = trainer.eval_loader = lambda: loader
    for run, phase in ((partial(trainer.train, DATA, 2), "training"), (partial(trainer.evaluate, DATA), "evaluation")):
        with pytest.raises(ConfigurationError) as caught:
            run()
        assert_explained(
            caught.value, "raised StopIteration", phase, f"of {len(loader)} batches of DataLoader", "next()"
        )
    assert losses_of(trainer) == losses_of(trainer, "evaluation_loss") == []


def test_fewer_batches_of_a_custom_loader_may_be_a_stop_iteration() -> None:
    """A custom sampler may be mistaken about its length, or a sample ends the epoch: the warning names both."""
    trainer = classifier_trainer(Permissive)
    loader: DataLoader[Any] = DataLoader(Running(), batch_size=4, sampler=LyingSampler(32, 32))
    trainer.train_loader = lambda: loader
    caught = warnings_of(lambda: trainer.train(DATA, 1))
    assert ["8 yielded 3 of these" in str(one.message) and "StopIteration" in str(one.message) for one in caught] == [
        True
    ]


def test_a_true_length_is_not_warned_of() -> None:
    """A list of batches, limited or not, with accumulation or not, and a run that ends in mid-epoch."""
    trainer = classifier_trainer(Permissive)
    trainer.train_loader = trainer.eval_loader = lambda: BATCHES
    settings: tuple[dict[str, Any], ...] = ({}, {"gradient_accumulation_steps": 3}, {"max_num_train_steps": 11})
    for kwargs in settings:
        assert warnings_of(partial(trainer.train, DATA, 2, DATA, **kwargs)) == []


def test_workers_that_each_yield_all_of_a_stream_are_named() -> None:
    """The warning says why a stream has twice the batches, and the epoch has as many as it should."""
    trainer = classifier_trainer(Permissive)
    kwargs = {"num_workers": 2}
    stream = Stream(16, 16)
    caught = warnings_of(lambda: trainer.train(stream, 1, per_device_batch_size=4, train_dataloader_kwargs=kwargs))
    assert len(caught) == 1
    assert "Of several workers, each iterates over" in str(caught[0].message)
    assert trainer.num_updates_completed == 4


@pytest.mark.parametrize("samples", [8, 24])
def test_a_stream_of_another_length_is_advised_to_count_its_samples(samples: int) -> None:
    """Its length is the number of samples, of which the loader makes that of the batches."""
    trainer = classifier_trainer(Permissive)
    stream = Stream(16, samples)
    caught = warnings_of(lambda: trainer.train(stream, 1, per_device_batch_size=4, train_dataloader_kwargs=NO_WORKERS))
    assert ["or of the samples of a dataset" in str(one.message) for one in caught] == [True]
    assert warnings_of(lambda: trainer.train(Stream(samples, samples), 1, train_dataloader_kwargs=NO_WORKERS)) == []


def test_an_evaluation_without_a_batch_is_an_error() -> None:
    """In a training run and in `evaluate()`, no mean of nothing is recorded."""
    trainer = classifier_trainer(Permissive)
    trainer.eval_loader = lambda: Claims(4, 0)
    with pytest.raises(EmptyDatasetError) as caught:
        trainer.evaluate(DATA)
    assert_explained(caught.value, "no batch in evaluation", "0 batches of Claims", "whose length is 4")
    assert losses_of(trainer, "evaluation_loss") == []
    with pytest.raises(EmptyDatasetError):
        trainer.train(DATA, 1, DATA)
    assert losses_of(trainer, "eval_loss_epoch") == []


@pytest.mark.parametrize(("loader", "number"), [(Claims(4, 2), "2 of these"), (Claims(4, 6), "more than 4")])
def test_an_evaluation_of_another_length_is_said(loader: Claims, number: str) -> None:
    """All batches are evaluated, and the warning comes once in a run."""
    trainer = classifier_trainer(Permissive)
    trainer.eval_loader = lambda: loader
    caught = warnings_of(lambda: trainer.train(DATA, 2, DATA))
    assert len(caught) == 1
    assert f"whose length is 4 yielded {number} batches in evaluation" in str(caught[0].message)


def without_samples(output: dict[str, Any]) -> dict[str, Any]:
    """The output of a step that says it had no sample."""
    return {**output, "batch_size": 0}


@pytest.mark.parametrize("phase", ["train", "eval"])
def test_the_mean_of_no_sample_is_not_recorded(phase: str) -> None:
    """Where each step says that it had no sample, the error says so instead of a NaN in the history."""
    trainer = classifier_trainer(Permissive)
    setattr(trainer, f"{phase}_step", without_samples)
    with pytest.raises(BatchOutputError, match="returned a batch_size or num_items_in_batch of 0"):
        trainer.train(DATA, 1, DATA)
    assert losses_of(trainer, f"{phase}_loss_epoch") == []


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_rank_with_fewer_batches_keeps_nobody_waiting(accumulation: int) -> None:
    """The epoch comes to its end on both ranks, and then is an error on both."""
    trainer = classifier_trainer(Permissive)
    trainer.train_loader = lambda: Claims(8, 8 - 4 * dist.get_rank())
    with pytest.raises(ConfigurationError) as caught:
        trainer.train(DATA, 2, gradient_accumulation_steps=accumulation)
    assert_explained(caught.value, f"{8 - 4 * dist.get_rank()} of 8 batches of Claims")
    assert losses_of(trainer) == []


@pytest.mark.runs_on("two_ranks")
@pytest.mark.filterwarnings("ignore:A custom loader or sampler")
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("divides", [False, True])
def test_a_sample_that_ends_the_epoch_of_one_rank_is_an_error_on_both(accumulation: int, divides: bool) -> None:
    """The other rank does not wait for it, whether accelerate or a sampler divides the samples."""
    trainer = classifier_trainer(Permissive)
    sampler: Any = DistributedSampler(Running(), shuffle=False) if divides else None
    loader: DataLoader[Any] = DataLoader(Running(), batch_size=4, sampler=sampler)
    trainer.train_loader = trainer.eval_loader = lambda: loader
    with pytest.raises(ConfigurationError, match="raised StopIteration, which ended the training"):
        trainer.train(DATA, 2, gradient_accumulation_steps=accumulation)
    with pytest.raises(ConfigurationError, match="raised StopIteration, which ended the evaluation"):
        trainer.evaluate(DATA)
    assert losses_of(trainer) == []


@pytest.mark.runs_on("two_ranks")
def test_loaders_of_different_lengths_are_refused() -> None:
    """Before anything is trained, on both ranks."""
    trainer = classifier_trainer(Permissive)
    trainer.train_loader = lambda: BATCHES[: 4 + dist.get_rank()]
    with pytest.raises(ConfigurationError, match="4, 5 batches"):
        trainer.train(DATA, 1)
    assert trainer.num_updates_completed == 0


@pytest.mark.runs_on("two_ranks")
@pytest.mark.filterwarnings("ignore:A custom loader or sampler")
def test_both_ranks_end_with_a_loader_that_was_split() -> None:
    """Where both have equally few or many batches, the run goes on, and the first rank warns."""
    for length, indices, updates in ((32, 16, 2), (16, 32, 2)):
        trainer = classifier_trainer(Permissive)
        trainer.train_loader = partial(DataLoader, DATA, batch_size=4, sampler=LyingSampler(length, indices))
        caught = warnings_of(partial(trainer.train, DATA, 2))
        assert len(caught) == (dist.get_rank() == 0)
        assert trainer.num_updates_completed == 2 * updates


@pytest.mark.runs_on("two_ranks")
def test_an_evaluation_is_empty_only_if_no_rank_has_a_batch() -> None:
    """A rank without a batch takes part in the mean of the others."""
    trainer = classifier_trainer(Permissive)
    trainer.eval_loader = lambda: Claims(2, 2 * dist.get_rank())
    assert len(warnings_of(lambda: trainer.evaluate(DATA))) == (dist.get_rank() == 0)
    assert len(losses_of(trainer, "evaluation_loss")) == 1
    trainer.eval_loader = lambda: Claims(2, 0)
    with pytest.raises(EmptyDatasetError):
        trainer.evaluate(DATA)
