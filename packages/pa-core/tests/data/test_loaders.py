"""The loaders of a run: their defaults, arguments, steps and ends, and those that a DistributedSampler has split."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler, Subset, TensorDataset
from typing_extensions import override

from pa_core import ConfigurationError, Trainer
from pa_core.data import DataLoaderSlice, KeyedDataLoader
from pa_core.data.custom_loader import count_steps
from pa_core.data.loaders import default_num_workers
from pa_core.distributed import gather_objects, num_processes, rank
from pa_core.testing import make_regression
from pa_data.errors import DataError
from tests.launching import Launch
from tests.small_runs import NoteBatches, make_trainer, samples
from tests.support.callbacks import CallAt
from tests.support.drawing import Drawing
from tests.support.pa_core.data.texts import MeanOf, Texts, train_on_texts


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process be bound to some cores")
def test_the_cores_of_this_process_are_shared_between_the_local_processes() -> None:
    """A process that is bound to one core of a large machine starts one worker, not one for each core."""
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        assert default_num_workers(Drawing(10), local_processes=1) == 1
        assert default_num_workers(Drawing(10), local_processes=2) == 0
    finally:
        os.sched_setaffinity(0, cores)
    assert default_num_workers(Drawing(10), local_processes=1) == min(16, len(cores))


def test_data_in_memory_needs_no_workers() -> None:
    """Tensors, and subsets of them, are indexed faster than they are sent from another process."""
    tensors = TensorDataset(torch.zeros(10, 2))
    assert default_num_workers(tensors, local_processes=1) == 0
    assert default_num_workers(Subset(tensors, [1, 2]), local_processes=1) == 0


@pytest.mark.parametrize(
    "given", [{}, {"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": False}]
)
def test_what_is_given_wins_and_the_rest_fits_it(given: dict[str, Any]) -> None:
    """Workers stay from epoch to epoch unless that is asked otherwise, and batches are pinned for an accelerator."""
    trainer = make_trainer()
    trainer.train_dataset = Drawing(10)
    loader = trainer.create_train_dataloader(2, given)
    assert isinstance(loader, KeyedDataLoader)
    assert {name: getattr(loader, name) for name in given} == given
    assert loader.persistent_workers is given.get("persistent_workers", loader.num_workers > 0)
    assert loader.pin_memory is (trainer.device.type == "cuda")


def test_a_custom_sampler_gets_a_plain_loader() -> None:
    """Its order is the sampler's own, and arguments of the trainer that a DataLoader refuses beside it are left out."""
    trainer = make_trainer()
    trainer.train_dataset = samples(8)
    loader = trainer.create_train_dataloader(2, {"sampler": [3, 1, 2, 0]})
    assert isinstance(loader, DataLoader)
    assert not isinstance(loader, KeyedDataLoader)
    assert [int(number) for batch in loader for number in batch[0][:, 0]] == [3, 1, 2, 0]


def test_the_run_config_has_the_arguments_of_the_loaders_of_its_run() -> None:
    """Those of an earlier run are not among them, and a loader that was given has none but knows its batch size."""
    trainer = make_trainer()
    trainer.train(samples(8), 1, samples(4), 2, eval_dataloader_kwargs={"batch_size": 4, "num_workers": 0})
    assert trainer.run_config.train_dl_kwargs["shuffle"] is True
    loaders: list[Any] = [trainer.train_dataloader, trainer.eval_dataloader]
    assert [(len(one.dataset), one.batch_size, len(one), one.device) for one in loaders] == [
        (8, 2, 4, trainer.device),
        (4, 4, 1, trainer.device),
    ]
    assert trainer.run_config.eval_dl_kwargs["num_workers"] == 0
    assert trainer.run_config.eval_per_device_batch_size == 4
    trainer.train(DataLoader(samples(8), batch_size=4), 1)
    assert trainer.run_config.train_dl_kwargs == trainer.run_config.eval_dl_kwargs == {}
    assert trainer.run_config.train_per_device_batch_size == 4


def test_an_evaluation_leaves_the_training_loader_where_it_is() -> None:
    """Whoever iterates over it after ``evaluate()`` gets the order of the epoch that comes next, not of the first."""
    trainer = make_trainer()
    trainer.train(samples(8), 2, samples(4), 4)
    loader = trainer.train_dataloader
    assert isinstance(loader, KeyedDataLoader)
    before = (loader.epoch, loader.position)
    trainer.evaluate()
    assert (loader.epoch, loader.position) == before
    assert before != (0, 0)


def test_the_steps_of_an_epoch_are_those_of_the_shortest_slice() -> None:
    """A loader that is limited twice has as many steps as the lower limit, and no more than without."""
    loader = KeyedDataLoader(samples(8), batch_size=2, num_workers=0)
    assert count_steps(loader) == 4
    assert count_steps(DataLoaderSlice(DataLoaderSlice(loader, 2), 3)) == 2
    assert count_steps(DataLoaderSlice(loader, 9)) == 4
    assert count_steps(["one", "two"]) == 2


@pytest.mark.parametrize(
    ("slice_size", "expected"), [(1, [0]), (3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])]
)
def test_the_first_batches_are_yielded_each_time(slice_size: int, expected: list[int]) -> None:
    """A slice yields as many batches as its length says, again and again."""
    piece = DataLoaderSlice([0, 1, 2, 3, 4], slice_size)
    assert len(piece) == len(expected)
    assert list(piece) == expected
    assert list(piece) == expected


def test_no_batch_is_loaded_in_vain() -> None:
    """The loader is asked for the batches of the slice and for no other."""
    asked: list[int] = []

    class Loader:
        def __len__(self) -> int:
            return 10

        def __iter__(self) -> Iterator[int]:
            for index in range(10):
                asked.append(index)
                yield index

    assert list(DataLoaderSlice(Loader(), 2)) == [0, 1]
    assert asked == [0, 1]


def test_attributes_are_those_of_the_loader() -> None:
    """What users read of a loader they read of its slice."""
    loader = KeyedDataLoader(TensorDataset(torch.zeros(10)), batch_size=3, device="cpu")
    piece = DataLoaderSlice(loader, slice_size=2)
    assert piece.dataset is loader.dataset
    assert piece.device == torch.device("cpu")
    assert piece.batch_size == 3
    assert piece.wrapped is loader
    assert piece.slice_size == 2
    with pytest.raises(AttributeError, match="no_such_attribute"):
        _ = piece.no_such_attribute


def test_a_slice_can_be_copied_and_pickled() -> None:
    """Forwarding attributes does not stand in the way of copying."""
    piece = DataLoaderSlice([1, 2, 3], 2)
    assert list(copy.deepcopy(piece)) == [1, 2]
    assert list(pickle.loads(pickle.dumps(piece))) == [1, 2]


@pytest.mark.parametrize("slice_size", [0, -1])
def test_an_empty_slice_is_refused(slice_size: int) -> None:
    """The error says what was given and what to pass."""
    with pytest.raises(ConfigurationError, match=rf"slice_size must be .* at least 1, got {slice_size}"):
        DataLoaderSlice([1], slice_size)


EVERYWHERE = pytest.mark.runs_on("one_process", "two_ranks")


def changeable(number: int) -> Any:
    """A list of samples, whose number can be changed."""
    return [(torch.full((2,), float(index)), torch.zeros(1)) for index in range(number)]


def trainer_that_changes(dataset: Any, length: int) -> Trainer:
    """A trainer of a line whose callback changes a dataset."""
    change = CallAt("on_training_run_epoch_end", lambda _: dataset.__setitem__(slice(None), changeable(length)))
    return make_trainer(Trainer, change, model=nn.Linear(2, 1))


@EVERYWHERE
@pytest.mark.parametrize("length", [16, 32])
def test_training_samples_that_come_or_go_end_the_run(length: int) -> None:
    """New samples would never be seen, and lost ones would be asked for: the error names both lengths."""
    dataset = changeable(24)
    trainer = trainer_that_changes(dataset, length)
    with pytest.raises(DataError, match=rf"{length} samples of list, and 24 when it was made"):
        trainer.train(dataset, 2, per_device_batch_size=4, train_dataloader_kwargs={"num_workers": 0})
    assert trainer.num_epochs_completed == 1


@EVERYWHERE
def test_the_next_run_takes_the_new_length() -> None:
    """Between two runs a dataset may change."""
    dataset = changeable(24)
    trainer = trainer_that_changes(dataset, 16)
    trainer.train(dataset, 1, per_device_batch_size=4, train_dataloader_kwargs={"num_workers": 0})
    trainer.train(dataset, 2, per_device_batch_size=4, train_dataloader_kwargs={"num_workers": 0})
    assert trainer.run_history.clock.samples == 32


@EVERYWHERE
def test_evaluation_samples_that_go_end_the_run() -> None:
    """The mean would be that of other samples than in the epoch before."""
    evaluated = changeable(24)
    trainer = trainer_that_changes(evaluated, 16)
    with pytest.raises(DataError, match="16 samples"):
        trainer.train(changeable(8), 2, evaluated, train_dataloader_kwargs={"num_workers": 0})


@EVERYWHERE
@pytest.mark.filterwarnings("ignore:A custom loader or sampler")
def test_a_dataloader_may_have_another_length_in_each_epoch() -> None:
    """A custom data loader follows its dataset, as it does without a trainer."""
    dataset = changeable(24)
    trainer = trainer_that_changes(dataset, 16)
    trainer.train(DataLoader(dataset, batch_size=4), 2)
    assert trainer.run_history.clock.samples == 40


def test_a_loader_by_itself_tells_as_well() -> None:
    """It is told when the loader is iterated over, with workers or without."""
    dataset = changeable(8)
    loader = KeyedDataLoader(dataset, batch_size=4)
    assert len(list(loader)) == 2
    dataset += changeable(1)
    with pytest.raises(DataError, match="9 samples of list"):
        iter(loader)


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
    def create_accelerator(self) -> Any:
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
