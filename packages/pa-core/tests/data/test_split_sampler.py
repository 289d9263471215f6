"""Loaders that a DistributedSampler has split already: used as they are."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler
from typing_extensions import override

from pa_core import ConfigurationError, Trainer
from pa_core.distributed import gather_objects, num_processes, rank
from pa_core.testing import make_regression
from tests.launching import Launch
from tests.small_runs import NoteBatches, make_trainer, samples
from tests.support.callbacks import CallAt
from tests.support.pa_core.data.texts import MeanOf, Texts, train_on_texts

everywhere = pytest.mark.runs_on("one_process", "two_ranks")
on_two_ranks = pytest.mark.runs_on("two_ranks")


def own_share(dataset: Any, **kwargs: Any) -> DistributedSampler[Any]:
    """The sampler of the boilerplate of accelerate's guide."""
    return DistributedSampler(dataset, num_replicas=num_processes(), rank=rank(), **kwargs)


def trained_on(notes: NoteBatches) -> list[list[list[int]]]:
    """The numbers of the samples of each batch, for each process."""
    return gather_objects(notes.trained)


@everywhere
@pytest.mark.parametrize("given", ["a sampler", "a batch sampler", "a loader"])
def test_each_sample_is_trained_on_once_in_an_order_of_each_epoch(given: str) -> None:
    """However the sampler is given, no process takes a part of a part, and the epochs differ."""
    data = samples(16)

    class WithLoader(Trainer):
        @override
        def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> Any:
            return DataLoader(data, batch_size=2, sampler=own_share(data))

    notes = NoteBatches()
    trainer = make_trainer(WithLoader if given == "a loader" else Trainer, notes)
    kwargs: dict[str, dict[str, Any]] = {
        "a sampler": {"sampler": own_share(data)},
        "a batch sampler": {"batch_sampler": BatchSampler(own_share(data), 2, drop_last=False)},
        "a loader": {},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trainer.train(data, 2, per_device_batch_size=2, train_dataloader_kwargs=kwargs[given])
    updates = 8 // num_processes()
    assert trainer.num_updates_completed == 2 * updates
    epochs = [[batch for batches in trained_on(notes) for batch in batches[part]] for part in halves(updates)]
    assert [sorted(number for batch in batches for number in batch) for batches in epochs] == [list(range(16))] * 2
    assert epochs[0] != epochs[1]


def halves(updates: int) -> list[slice]:
    """The batches of the first epoch, and of the second one."""
    return [slice(updates), slice(updates, None)]


@everywhere
def test_short_batches_weigh_what_they_hold() -> None:
    """An accumulated update of batches of 4 and 1 of each process is that of the mean over all of their samples."""
    data = samples(5 * num_processes())
    sampler = own_share(data, shuffle=False)
    trainer = make_trainer(Trainer, lr=0.1)
    expected = make_trainer(Trainer, lr=0.1)
    trainer.train(
        data, 1, per_device_batch_size=4, gradient_accumulation_steps=2, train_dataloader_kwargs={"sampler": sampler}
    )
    expected.train(data, 1, per_device_batch_size=5, train_dataloader_kwargs={"shuffle": False})
    for one, other in zip(trainer.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)
    assert trainer.run_history.clock.samples == 5 * num_processes()


@on_two_ranks
def test_an_evaluation_that_repeats_samples_says_which_sampler_does() -> None:
    """Not accelerate, which has no part in it; with drop_last=True there is nothing to say."""
    data = samples(7)
    notes = NoteBatches()
    trainer = make_trainer(Trainer, notes)
    with pytest.warns(UserWarning, match=r"DistributedSampler .*8 .*7") as said:
        trainer.evaluate(data, 2, {"sampler": own_share(data, shuffle=False)})
    assert not any("accelerate" in str(warning.message) for warning in said)
    assert sorted(notes.evaluated) == [0, 0, 1, 2, 3, 4, 5, 6]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trainer.evaluate(data, 2, {"sampler": own_share(data, shuffle=False, drop_last=True)})


@everywhere
@pytest.mark.parametrize("wrong", ["num_replicas", "rank"])
def test_a_sampler_made_for_other_processes_is_refused(wrong: str) -> None:
    """It would leave samples out, or have two processes train on the same ones."""
    world = num_processes()
    if wrong == "rank" and world == 1:
        pytest.skip("one process has one rank")
    of_rank = world - 1 - rank() if wrong == "rank" else 0
    sampler: DistributedSampler[Any] = DistributedSampler(samples(12), world if wrong == "rank" else world + 1, of_rank)
    with pytest.raises(ConfigurationError, match=rf"{wrong}={sampler.num_replicas if wrong != 'rank' else of_rank}"):
        make_trainer(Trainer).train(samples(12), 1, train_dataloader_kwargs={"sampler": sampler})


class EveryNth(Sampler[int]):
    """A sampler that splits without torch's class, as those of many libraries do; unevenly, if it may."""

    def __init__(self, num_samples: int) -> None:
        self.num_replicas, self.rank = num_processes(), rank()
        self.indices = range(num_samples)[self.rank :: self.num_replicas]

    def __len__(self) -> int:
        """The samples of this process."""
        return len(self.indices)

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)


@on_two_ranks
def test_samplers_of_other_libraries_that_split_are_used_as_they_are() -> None:
    """Whatever says for how many replicas it is made, and for which; one batch more somewhere is refused."""
    notes = NoteBatches()
    make_trainer(Trainer, notes).train(
        samples(8), 1, per_device_batch_size=2, train_dataloader_kwargs={"sampler": EveryNth(8)}
    )
    assert trained_on(notes) == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    with pytest.raises(ConfigurationError, match=r"3, 2 batches"):
        make_trainer(Trainer).train(
            samples(5), 1, per_device_batch_size=1, train_dataloader_kwargs={"sampler": EveryNth(5)}
        )


@everywhere
def test_a_run_with_such_a_loader_goes_on_in_mid_epoch(shared_tmp_path: Path) -> None:
    """With the batches that would have followed."""
    data = samples(8 * num_processes())
    whole, resumed = NoteBatches(), NoteBatches()
    kwargs = {"batch_size": 2, "sampler": own_share(data)}
    save = CallAt("on_optimizer_step_end", lambda one: one.save_training_state(shared_tmp_path / "state"), 3)
    make_trainer(Trainer, whole, save).train(data, 2, train_dataloader_kwargs=kwargs)
    trainer = make_trainer(Trainer, resumed)
    trainer.train(data, 2, train_dataloader_kwargs=kwargs, resume_from=shared_tmp_path / "state")
    assert resumed.trained == whole.trained[3:]


class EachReadsItsOwn(Trainer):
    """As the error advises."""

    @override
    def _create_accelerator(self) -> Any:
        from accelerate import Accelerator, DataLoaderConfiguration

        return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))


@on_two_ranks
@pytest.mark.filterwarnings("ignore:dispatch_batches=False has no effect on the trainer.s own loaders")
def test_an_iterable_dataset_is_named_where_it_is_split() -> None:
    """The warning speaks of the dataset that was given, not of a loader that nobody made; the advice works."""
    with pytest.warns(UserWarning, match=r"^Texts, an IterableDataset, is split .* by accelerate"):
        trainer = train_on_texts(EachReadsItsOwn, Texts())
    assert trainer.num_updates_completed == 2
    with pytest.warns(UserWarning, match=r"^A custom loader or sampler .DataLoader with SequentialS"):
        Trainer(MeanOf(), nn.MSELoss(), None, callbacks=[]).evaluate(
            make_regression(8), dataloader_kwargs={"sampler": torch.utils.data.SequentialSampler(range(8))}
        )


DYNAMIC_PADDING = """
from pa_core import Trainer
from tests.support.pa_core.data.texts import Texts, train_on_texts

train_on_texts(Trainer, Texts())
"""


def test_dynamic_padding_of_an_iterable_dataset_is_refused(launch: Launch) -> None:
    """Accelerate puts the batches of all processes together, and names the setting where their lengths differ."""
    launched = launch(DYNAMIC_PADDING, ranks=2, env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert launched.status == 1
    assert "pass `dispatch_batches=False`" in launched.output
