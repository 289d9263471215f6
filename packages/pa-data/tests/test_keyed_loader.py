"""The loader whose batches are a function of seed, epoch, position and rank, and its errors."""

from __future__ import annotations

import itertools
import re
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset
from typing_extensions import override

from pa_data import KeyedDataLoader
from pa_data.errors import DataError
from pa_data.orders import epoch_order
from tests.support.drawing import Indices, indices_of, numbers, ranks_of


def test_an_unshuffled_loader_is_a_plain_one() -> None:
    """Without shuffling the batches are those of torch's DataLoader, in types, shapes and values."""
    dataset = TensorDataset(torch.randn(10, 3), torch.arange(10))
    for batch, expected in zip(KeyedDataLoader(dataset, batch_size=4), DataLoader(dataset, batch_size=4), strict=True):
        assert type(batch) is type(expected)
        assert all(torch.equal(tensor, other) for tensor, other in zip(batch, expected, strict=True))


def test_each_epoch_has_an_order_of_its_own_and_repeats_until_another_is_chosen() -> None:
    """Iterating again repeats the epoch; choosing the next one shuffles anew; coming back finds the first."""
    loader = KeyedDataLoader(Indices(20), batch_size=6, shuffle=True)
    first = indices_of(loader)
    assert indices_of(loader) == first
    loader.start_epoch(1)
    assert indices_of(loader) != first
    loader.start_epoch(0)
    assert indices_of(loader) == first


def test_the_seed_can_be_set_between_epochs() -> None:
    """A seed that is set later gives the order of a loader made with it."""
    loader = KeyedDataLoader(Indices(20), batch_size=6, shuffle=True, seed=0)
    before = indices_of(loader)
    loader.seed = 9
    assert loader.seed == 9
    assert indices_of(loader) == indices_of(KeyedDataLoader(Indices(20), batch_size=6, shuffle=True, seed=9))
    assert indices_of(loader) != before


def test_a_stored_algorithm_is_reproduced() -> None:
    """An order that was stored by name is followed, though this dataset would get another by default."""
    loader = KeyedDataLoader(Indices(20), batch_size=20, shuffle=True)
    assert loader.order.algorithm == "randperm-v1"
    loader.algorithm = "feistel-v1"
    assert loader.algorithm == "feistel-v1"
    expected = numbers(epoch_order(20, seed=0, epoch=0, algorithm="feistel-v1").indices(0, 20))
    assert indices_of(loader) == [expected]


@pytest.mark.parametrize("algorithm", ["randperm-v1", "feistel-v1", "identity"])
@pytest.mark.parametrize(("num_processes", "batch_size"), [(1, 1), (1, 3), (3, 2), (2, 40_000)])
def test_the_batches_of_a_long_epoch_are_the_pieces_of_its_split(
    num_processes: int, batch_size: int, algorithm: str
) -> None:
    """Each process has the samples at its positions of the order in each step, though indices are made for many."""
    num_samples = 150 * batch_size if batch_size < 10 else 200_001
    for loader in ranks_of(Indices(num_samples), num_processes, batch_size=batch_size, algorithm=algorithm):
        order = numbers(loader.order.indices(0, num_samples))
        pieces = [loader.split.piece(step, loader.rank) for step in range(len(loader.split))]
        assert loader.batch_sampler is not None
        assert list(loader.batch_sampler) == [order[piece.start : piece.stop] for piece in pieces if piece]


@given(
    num_samples=st.integers(1, 60),
    batch_size=st.integers(1, 7),
    before=st.integers(1, 5),
    after=st.integers(1, 5),
    data=st.data(),
)
def test_another_number_of_processes_goes_on_at_the_same_sample(
    num_samples: int, batch_size: int, before: int, after: int, data: st.DataObject
) -> None:
    """What some processes have begun, others finish: every sample of the epoch once, in the epoch's order."""
    begun = ranks_of(Indices(num_samples), before, batch_size=batch_size, shuffle=True)
    steps = data.draw(st.integers(0, len(begun[0].split)))
    position = sum(begun[0].split.size(step) for step in range(steps))
    finished = ranks_of(Indices(num_samples), after, batch_size=batch_size, shuffle=True)
    for loader in finished:
        loader.start_epoch(0, position=position)
    order = numbers(epoch_order(num_samples, seed=0, epoch=0).indices(0, num_samples))
    assert in_steps(begun)[:steps] + in_steps(finished) == chunks(order, begun[0], steps) + chunks(
        order[position:], finished[0], len(finished[0].split)
    )


def in_steps(loaders: list[KeyedDataLoader[Any]]) -> list[list[int]]:
    """Return the samples of each step, rank after rank."""
    batches = [iter(indices_of(loader)) for loader in loaders]
    split = loaders[0].split
    return [
        [index for rank, own in enumerate(batches) if split.piece(step, rank) for index in next(own)]
        for step in range(len(split))
    ]


def chunks(order: list[int], loader: KeyedDataLoader[Any], steps: int) -> list[list[int]]:
    """Cut an order into global batches."""
    assert loader.batch_size is not None
    size = loader.batch_size * loader.num_processes
    return [order[begin : begin + size] for begin in range(0, len(order), size)][:steps]


@given(
    num_samples=st.integers(1, 60),
    batch_size=st.integers(1, 7),
    num_processes=st.integers(1, 5),
    drop_last=st.booleans(),
)
def test_the_length_is_the_number_of_batches_of_this_process(
    num_samples: int, batch_size: int, num_processes: int, drop_last: bool
) -> None:
    """`len` is true for each process, also where it takes nothing of the last step."""
    full_step = batch_size * num_processes
    for split in ("train", "eval"):
        if num_samples < (full_step if drop_last else num_processes if split == "eval" else 1):
            continue
        options: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last, "split": split}
        loaders = ranks_of(Indices(num_samples), num_processes, **options)
        for loader in loaders:
            assert len(indices_of(loader)) == len(loader)
        seen = [index for step in in_steps(loaders) for index in step]
        assert seen == list(range(num_samples - num_samples % full_step if drop_last else num_samples))


def test_the_length_is_that_of_a_whole_epoch_wherever_it_begins() -> None:
    """Schedules are made from the length, so it does not shrink when an epoch is resumed; the split does."""
    loader = KeyedDataLoader(Indices(20), batch_size=3)
    loader.start_epoch(0, position=15)
    assert len(loader) == loader.num_steps(0) == loader.num_steps(1) == 7
    assert len(loader.split) == 2
    assert loader.position == 15


def test_seeking_loads_nothing_that_comes_before() -> None:
    """The dataset is never asked for a sample before the position."""
    dataset = Indices(1000)
    loader = KeyedDataLoader(dataset, batch_size=10)
    loader.start_epoch(0, position=980)
    indices_of(loader)
    assert dataset.fetched == list(range(980, 1000))


def test_a_position_at_the_end_leaves_nothing() -> None:
    """An epoch that is trained on already yields no batch."""
    loader = KeyedDataLoader(Indices(8), batch_size=4)
    loader.start_epoch(0, position=8)
    assert list(loader) == []


def test_a_hundred_million_samples_begin_anywhere() -> None:
    """A loader over 1e8 samples yields its next batch at any position, on any rank, and holds no table."""
    dataset = Indices(100_000_000)
    loader = KeyedDataLoader(dataset, batch_size=32, shuffle=True, rank=3, num_processes=8)
    loader.start_epoch(4, position=70_000_128)
    batch = next(iter(loader))
    assert len(loader) == 390_625
    expected = loader.order.indices(70_000_128 + 3 * 32, 70_000_128 + 4 * 32)
    assert numbers(batch) == numbers(expected) == dataset.fetched


def test_it_is_a_data_loader_with_the_attributes_that_users_read() -> None:
    """What people read of a DataLoader is there and true, and the dataset is their own object."""
    dataset = Indices(10)
    loader = KeyedDataLoader(dataset, batch_size=4, drop_last=True, collate_fn=list, device="cpu")
    assert isinstance(loader, DataLoader)
    assert loader.dataset is dataset
    assert (loader.batch_size, loader.drop_last, loader.collate_fn, loader.num_workers) == (4, True, list, 0)
    assert loader.device == torch.device("cpu")
    assert list(loader.batch_sampler or ()) == list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_live_iterator_keeps_its_own_epoch() -> None:
    """Choosing another epoch is for the next iterator; two iterators do not disturb each other."""
    loader = KeyedDataLoader(Indices(12), batch_size=4, shuffle=True)
    whole = indices_of(loader)
    live = iter(loader)
    first = indices_of([next(live)])
    loader.start_epoch(1)
    other = indices_of(loader)
    assert first + indices_of(live) == whole
    assert other != whole


def test_batches_are_moved_to_the_device() -> None:
    """Batches arrive on the device of the loader, fetched whole or not."""
    dataset = TensorDataset(torch.zeros(4, 2))
    for whole_batches in (True, False):
        loader = KeyedDataLoader(dataset, batch_size=2, device="meta", whole_batches=whole_batches)
        assert [batch[0].device.type for batch in loader] == ["meta", "meta"]


def test_pinning_without_an_accelerator_is_left_out() -> None:
    """A program that asks for pinned memory also runs where there is nothing to pin for."""
    loader = KeyedDataLoader(TensorDataset(torch.zeros(4, 2)), batch_size=2, device="cpu", pin_memory=True)
    assert [batch[0].shape for batch in loader] == [(2, 2), (2, 2)]


def test_a_position_outside_the_epoch_is_refused_and_changes_nothing() -> None:
    """A state of a larger dataset is refused, and the loader stays where it was."""
    loader = KeyedDataLoader(Indices(10), batch_size=2)
    loader.start_epoch(1, position=4)
    with pytest.raises(DataError, match="start=12 in an epoch of 10 samples"):
        loader.start_epoch(2, position=12)
    assert (loader.epoch, loader.position) == (1, 4)
    with pytest.raises(DataError, match="always begins at its first sample: leave out position=4"):
        KeyedDataLoader(Indices(10), batch_size=2, split="eval").start_epoch(0, position=4)


def test_an_unknown_order_is_refused_at_once() -> None:
    """A stored order that this version does not have is refused before the first batch."""
    loader = KeyedDataLoader(Indices(10), batch_size=2)
    with pytest.raises(DataError, match="quantum-v9"):
        loader.algorithm = "quantum-v9"
    assert loader.algorithm is None


DATA = TensorDataset(torch.arange(30))


def test_batch_sizes_are_chosen_later() -> None:
    """Updates and the position stay; processes take as much as each was told, and an evaluation the smallest."""
    order = torch.cat([batch[0] for batch in KeyedDataLoader(DATA, 30, shuffle=True, samples_per_update=10)])
    taken: list[list[Tensor]] = []
    for rank in range(2):
        loader = KeyedDataLoader(DATA, 10, shuffle=True, samples_per_update=10, rank=rank, num_processes=2)
        loader.start_epoch(0, 10)
        loader.set_batch_sizes([8, 2])
        assert loader.batch_size == 8
        taken.append([batch[0] for batch in loader])
    assert [len(batch) for batch in taken[0]] == [8] * len(taken[0])
    assert torch.equal(torch.cat([torch.cat(step) for step in zip(*taken, strict=True)]), order[10:])
    evaluation = KeyedDataLoader(DATA, 10, split="eval", num_processes=2)
    evaluation.set_batch_sizes([8, 2])
    assert evaluation.batch_size == 2


@pytest.mark.parametrize("split", ["train", "eval"])
@pytest.mark.parametrize("sizes", [[0, 2], [], [2], [2, 2.5], [4, 4, 4]])
def test_wrong_batch_sizes_are_refused_and_change_nothing(split: Any, sizes: list[Any]) -> None:
    """The error names them, and the loader goes on with the sizes that it had."""
    options: dict[str, Any] = {"samples_per_update": 8} if split == "train" else {}
    loader = KeyedDataLoader(DATA, 4, split=split, num_processes=2, **options)
    before = [batch[0].tolist() for batch in loader]
    with pytest.raises(DataError, match=r"sizes\[\d\] must be a whole number >= 1|Each process needs a batch size: 2"):
        loader.set_batch_sizes(sizes)
    assert loader.batch_size == 4
    loader.start_epoch(0)
    assert [batch[0].tolist() for batch in loader] == before


def test_a_wrong_seed_changes_nothing() -> None:
    """The loader goes on with the seed that it had."""
    loader, wrong = KeyedDataLoader(DATA, 4, shuffle=True, seed=3), cast("Any", "three")
    with pytest.raises(TypeError):
        loader.seed = wrong
    loader.set_epoch(1)
    assert loader.seed == 3


def test_a_process_without_samples_has_no_batch_to_fetch() -> None:
    """The error names the process and the step; positions are consecutive, and at least one."""
    loader = KeyedDataLoader(Indices(9), 2, num_processes=4)
    with pytest.raises(IndexError, match="Process 3 has no samples in step 1 of epoch 0"):
        loader.fetch_for(step=1, rank=3)
    for piece in (range(3, 3), range(0, 8, 2)):
        with pytest.raises(IndexError, match=rf"at least one, got {re.escape(str(piece))}"):
            loader.fetch(piece)


@pytest.mark.parametrize("num_processes", [2, 3, 5])
def test_no_batch_is_larger_than_the_size_that_was_chosen(num_processes: int) -> None:
    """It may be the most that fits into the memory, even where a step has three samples."""
    for samples, size in itertools.product(range(1, 16), (1, 2, 3, 4)):
        for rank in range(num_processes):
            loader = KeyedDataLoader(DATA, 16, samples_per_update=samples, rank=rank, num_processes=num_processes)
            loader.set_batch_sizes([size] * num_processes)
            assert all(len(batch) <= size for (batch,) in loader)


class Ends(Dataset[int]):
    """Raises ``StopIteration`` for a sample, in one of the places that a loader calls."""

    def __init__(self, place: str) -> None:
        self.place = place
        if place == "batch":
            vars(self)["fetch_batch"] = self.fetch

    def __len__(self) -> int:
        return 40

    @override
    def __getitem__(self, index: int) -> int:
        return next(iter([])) if self.place == "sample" and index == 12 else index

    def fetch(self, indices: Tensor) -> Tensor:
        """The samples of a batch."""
        return next(iter([])) if 12 in indices else indices

    def collate(self, samples: list[int]) -> list[int]:
        """The batch of some samples."""
        return next(iter([])) if self.place == "collation" and 12 in samples else samples


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("place", ["sample", "collation", "batch"])
def test_a_sample_that_raises_stop_iteration_does_not_end_the_epoch(place: str, num_workers: int) -> None:
    """It is an error that names the sample, and the state does not say that the epoch is over."""
    data = Ends(place)
    collate = None if place == "batch" else data.collate
    loader = KeyedDataLoader(data, 4, collate_fn=collate, num_workers=num_workers)
    with pytest.raises(DataError, match=r"StopIteration.*\n(.|\n)*next\(iter"):
        for _ in loader:
            pass
    assert loader.state_dict()["samples"] == 12


class Moving:
    """A batch whose own way to a device ends in a ``StopIteration``."""

    def to(self, _device: Any) -> Any:
        """Move nothing."""
        return next(iter([]))


def test_an_epoch_that_ends_before_its_last_batch_is_an_error() -> None:
    """No matter what ended it: the loader knows how many batches there are."""
    loader = KeyedDataLoader(Indices(12), 4, collate_fn=lambda _: Moving(), device="cpu")
    with pytest.raises(DataError, match=r"ended before its last batch(.|\n)*0 of 3 batches"):
        list(loader)


@pytest.mark.parametrize("options", [{}, {"samples_per_update": 10, "fixed_batches": True}])
def test_batches_that_are_part_of_the_meaning_keep_their_size(options: dict[str, Any]) -> None:
    """Without updates of so many samples, and where a batch is the same on any number of processes."""
    with pytest.raises(DataError, match="have the sizes that it was made with"):
        KeyedDataLoader(DATA, 4, **options).set_batch_sizes([2])
