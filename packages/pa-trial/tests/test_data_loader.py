"""The data loader of trials: torch's arguments and checks, and batches that depend on their number alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    Dataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader
from typing_extensions import override

from pa_trial import DataLoader
from pa_trial.errors import EmptyLoaderError
from pa_trial.samplers import RepeatBatchSampler, ReproducibleShuffleSampler
from tests.support.pa_trial.loaded import Drawing, MiddleOut, Quiet, as_lists, numbers, rng_states, seed_all, stream

SIZE = 11

AnyStack: Any = StackDataset  # torch leaves its type open

Options = Callable[[], dict[str, Any]]

ORDERS: dict[str, Options] = {
    "sequential": dict,
    "shuffled": lambda: {"shuffle": True},
    "drop_last": lambda: {"shuffle": True, "drop_last": True},
    "with replacement": lambda: {"sampler": RandomSampler(range(SIZE), replacement=True, num_samples=9)},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0, 9.0] * 5, 10)},
    "subset": lambda: {"sampler": SubsetRandomSampler([1, 4, 7, 9, 10])},
    "own generator": lambda: {"sampler": RandomSampler(range(SIZE), generator=torch.Generator().manual_seed(5))},
    "own random state": lambda: {"sampler": ReproducibleShuffleSampler(SequentialSampler(range(SIZE)), seed=2)},
    "user's sampler": lambda: {"sampler": MiddleOut(SIZE)},
    "batch sampler": lambda: {"batch_sampler": BatchSampler(MiddleOut(SIZE), 3, drop_last=False)},
    "list of batches": lambda: {"batch_sampler": [[0, 1, 2], [3], [7, 5]]},
    "batches without end": lambda: {"batch_sampler": RepeatBatchSampler(BatchSampler(MiddleOut(SIZE), 4, False))},
}


def make(order: str, dataset: Any = None, **options: Any) -> DataLoader[Any]:
    """A loader of one of the orders, over samples that draw unless a dataset is given."""
    given = ORDERS[order]() | options
    if "batch_sampler" not in given:
        given.setdefault("batch_size", 4)
    return DataLoader(Drawing(SIZE) if dataset is None else dataset, **given)


# Arguments


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 2, "shuffle": True, "num_workers": 1, "drop_last": True, "persistent_workers": True},
        {"batch_sampler": [[0], [1, 2]], "collate_fn": sum},
    ],
)
def test_attributes_are_those_of_torch(options: dict[str, Any]) -> None:
    """What a loader makes of its arguments, and its defaults, are torch's, though it is no loader of torch."""
    loader, torch_loader = DataLoader(numbers(3), **options), TorchDataLoader(numbers(3), **options)
    names = "dataset batch_size num_workers collate_fn pin_memory drop_last timeout worker_init_fn generator"
    for name in [*names.split(), "multiprocessing_context", "prefetch_factor", "persistent_workers"]:
        assert getattr(loader, name) == getattr(torch_loader, name), name
    assert type(loader.sampler) is type(torch_loader.sampler)
    assert type(loader.batch_sampler) is type(torch_loader.batch_sampler)
    assert len(loader) == len(torch_loader)
    assert not issubclass(DataLoader, TorchDataLoader)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sampler": [0], "shuffle": True}, "sampler option is mutually exclusive with shuffle"),
    ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler option is mutually exclusive"),
    ({"batch_sampler": [[0]], "shuffle": True}, "batch_sampler option is mutually exclusive"),
    ({"batch_sampler": [[0]], "sampler": [0]}, "batch_sampler option is mutually exclusive"),
    ({"batch_sampler": [[0]], "drop_last": True}, "batch_sampler option is mutually exclusive"),
    ({"batch_size": None}, "batch_size=None"),
    ({"batch_size": 0}, "batch_size should be a positive integer"),
    ({"num_workers": -1}, "num_workers option should be non-negative"),
    ({"timeout": -1}, "timeout option should be non-negative"),
    ({"prefetch_factor": 2}, "prefetch_factor option could only be specified in multiprocessing"),
    ({"prefetch_factor": -1, "num_workers": 1}, "prefetch_factor option should be non-negative"),
    ({"persistent_workers": True}, "persistent_workers option needs num_workers > 0"),
    ({"multiprocessing_context": "no such", "num_workers": 1}, "multiprocessing_context"),
    ({"dataset": ChainDataset([])}, "disable_dataset_reproducibility_checks"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_torch_refuses_is_refused_with_a_value_error(options: dict[str, Any], message: str) -> None:
    """Contradictory options, and datasets that cannot be shared out, fail when the loader is made, not in training."""
    with pytest.raises(ValueError, match=message):
        DataLoader(**{"dataset": numbers(4), **options})


# Without a seed


@given(
    st.integers(1, 20),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
    st.integers(0, 9),
    st.integers(1, 4).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1))),
)
def test_a_share_is_every_rth_batch_of_the_repeated_ones(
    samples: int, batch_size: int, drop_last: bool, keyed: bool, skip: int, share: tuple[int, int]
) -> None:
    """Repeated, then shared out, then skipped: batch n of a process is batch ``(skip + n) * R + r``, seeded or not."""
    size, rank = share
    loader = DataLoader(numbers(samples), batch_size, drop_last=drop_last)
    batches = [batch.tolist() for batch in TorchDataLoader(numbers(samples), batch_size, drop_last=drop_last)]
    options: dict[str, Any] = {"seed": 4} if keyed else {}
    once = loader.get_data_loader(skip=skip, num_replicas=size, rank=rank, **options)
    assert as_lists(list(once)) == batches[rank::size][skip:]
    assert len(once) == len(batches[rank::size])
    assert len(loader) == len(batches)
    if batches:
        endless = loader.get_data_loader(True, skip, size, rank, **options)
        expected = [batches[((skip + number) * size + rank) % len(batches)] for number in range(7)]
        assert as_lists(list(islice(endless, 7))) == expected
        assert len(endless) == len(batches[rank::size])


def test_without_a_seed_it_is_a_loader_of_torch_that_draws_as_torch_does() -> None:
    """A user who asks for the loader gets torch's own, with its random order and draws, as does one who iterates."""
    loader, torch_loader = DataLoader(Drawing(SIZE), 3, shuffle=True), TorchDataLoader(Drawing(SIZE), 3, shuffle=True)
    assert type(loader.get_data_loader()) is TorchDataLoader
    seed_all(0)
    expected = as_lists(list(torch_loader))
    seed_all(0)
    assert as_lists(list(loader.get_data_loader())) == expected
    assert as_lists(list(loader)) != expected


@pytest.mark.parametrize(
    ("share", "text"),
    [
        *(({"num_replicas": size, "rank": rank}, "no such share") for size, rank in ((2, 2), (0, 0), (1, -1))),
        ({"skip": -1}, "skip=-1"),
    ],
)
@pytest.mark.parametrize("seed", [None, 1])
def test_a_share_that_there_is_not_is_refused(share: dict[str, Any], text: str, seed: int | None) -> None:
    """A rank beyond the number of processes, or fewer batches to skip than none, is a ValueError."""
    with pytest.raises(ValueError, match=text):
        DataLoader(numbers(4)).get_data_loader(**share, seed=seed)


# With a seed: orders


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_processes_share_one_sequence_and_resume_anywhere_in_it(order: str, size: int) -> None:
    """What ranks load, put together, is what one process loads; each of them resumes with the batch it asks for."""
    seed_all(size)  # what else a process draws has no part in it
    sequence = stream(make(order), 18)
    shares: list[list[Any]] = []
    for rank in range(size):
        seed_all(100 + rank)
        shares.append(stream(make(order), 18 // size, size=size, rank=rank))
    assert list(chain.from_iterable(zip(*shares, strict=True))) == sequence
    for skip in range(0, 18 // size, 2):
        seed_all(200 + skip)
        assert stream(make(order), 18 // size - skip, skip=skip, size=size, rank=size - 1) == shares[-1][skip:]


@pytest.mark.parametrize(("order", "persistent"), [("shuffled", False), ("shuffled", True), ("user's sampler", False)])
def test_workers_load_what_one_process_loads(order: str, persistent: bool) -> None:
    """The number of workers, and whether they are kept, changes neither the order nor a draw, resumed or not."""
    expected = stream(make(order), 9, size=2, rank=1)
    with_workers = partial(make, order, num_workers=2, persistent_workers=persistent)
    assert stream(with_workers(), 9, size=2, rank=1) == expected
    assert stream(with_workers(), 4, size=2, rank=1, skip=5) == expected[5:]


def test_an_epoch_visits_each_sample_once_and_each_epoch_has_its_own_order() -> None:
    """A shuffled loader has a new permutation in each epoch, which the seed decides."""
    loader = make("shuffled", TensorDataset(torch.arange(SIZE)))
    epochs: list[list[int]] = [
        [number for (batch,) in stream(loader, 3, skip=3 * epoch) for number in batch] for epoch in range(5)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SIZE))] * 5
    assert len({tuple(epoch) for epoch in epochs}) == 5
    assert stream(loader, 3, seed=4) != stream(loader, 3)


def test_a_generator_decides_the_order_by_its_seed() -> None:
    """Two runs of different seeds load in the same order; a sampler with a generator draws as in a loop by hand."""

    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(5)

    of_loader = [stream(make("shuffled", numbers(SIZE), generator=seeded()), 6, seed=seed) for seed in (1, 2)]
    assert of_loader[0] == of_loader[1] != stream(make("shuffled", numbers(SIZE)), 6, seed=1)
    by_hand = RandomSampler(range(SIZE), generator=seeded())
    epochs = [list(by_hand) for _ in range(3)]
    for skip in (0, 2):
        loader = DataLoader(numbers(SIZE), SIZE, sampler=RandomSampler(range(SIZE), generator=seeded()))
        assert stream(loader, 3 - skip, skip=skip) == epochs[skip:]


def test_a_users_sampler_is_told_the_epoch() -> None:
    """``set_epoch`` is called before each iteration, so that a resumed training has the order of its epoch."""

    class Rotating(MiddleOut):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        @override
        def __iter__(self) -> Iterator[int]:
            return iter([(number + self.epoch) % self.size for number in range(self.size)])

    loader = DataLoader(numbers(3), 3, sampler=Rotating(3))
    assert stream(loader, 3) == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
    assert stream(loader, 1, skip=2) == [[2, 0, 1]]


def test_a_users_sampler_decides_batch_by_batch() -> None:
    """A sampler that looks at what training found is asked for a batch when it is needed, and not before."""
    asked: list[int] = []

    class Noting(MiddleOut):
        @override
        def __iter__(self) -> Iterator[int]:
            for number in range(self.size):
                asked.append(number)
                yield number

    batches = iter(DataLoader(numbers(8), 2, sampler=Noting(8)).get_data_loader(repeat=True, seed=1))
    next(batches)
    assert asked == [0, 1]


def test_batches_may_differ_in_number_from_epoch_to_epoch() -> None:
    """A batch sampler that makes more batches in a later epoch is followed, and resumed, batch by batch."""

    class Growing:
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[list[int]]:
            return iter([[self.epoch, number] for number in range(self.epoch + 1)])

    loader = DataLoader(numbers(9), batch_sampler=Growing())
    assert stream(loader, 6) == [[0, 0], [1, 0], [1, 1], [2, 0], [2, 1], [2, 2]]
    assert stream(loader, 2, skip=4) == [[2, 1], [2, 2]]
    assert stream(loader, 2, skip=1, size=2, rank=1) == [[2, 0], [2, 2]]


def test_a_sampler_that_runs_dry_is_an_error_instead_of_an_endless_loop() -> None:
    """An iterator, which has nothing for the second epoch, is refused by name."""
    loader = DataLoader(numbers(4), batch_sampler=iter([[0], [1]]))
    with pytest.raises(EmptyLoaderError, match=r"list_iterator that yields nothing in epoch 1"):
        stream(loader, 3)


def test_indices_need_not_be_integers() -> None:
    """A sampler may ask by whatever key the dataset knows."""
    by_name: Any = {"a": 1, "bcd": 3, "ef": 2}
    assert stream(DataLoader(by_name, 2, sampler=by_name), 2) == [[1, 3], [2]]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [torch.tensor, np.array, tuple])
def test_batches_of_indices_need_not_be_lists(kind: Callable[[list[int]], Any], workers: int) -> None:
    """Tensors, arrays and tuples of indices, negative ones too, for datasets in memory and others."""
    batches = [kind([3, -1]), kind([0])]
    for dataset in (TensorDataset(torch.arange(4)), Quiet(4)):
        options: dict[str, Any] = {"batch_sampler": batches, "num_workers": workers}
        found = list(DataLoader(dataset, **options).get_data_loader(seed=1))
        assert str(found) == str(list(TorchDataLoader(dataset, **options)))


# With a seed: random draws


@pytest.mark.parametrize("order", ["sequential", "shuffled", "user's sampler"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("draws_from", [0, 6])
def test_loading_leaves_the_rngs_of_the_process_alone(order: str, workers: int, draws_from: int) -> None:
    """What training draws does not depend on what is loaded, nor on how far workers have loaded ahead."""
    seed_all(1)
    np.random.normal()  # which leaves the second number of a pair
    before = rng_states()
    stream(make(order, Drawing(SIZE, draws_from), num_workers=workers), 7)
    assert rng_states() == before


def test_draws_differ_by_sample_and_epoch_and_seed() -> None:
    """No two samples of a training draw the same, chosen repeatedly or not, and another seed draws otherwise."""
    often = stream(DataLoader(Drawing(2), 6, sampler=WeightedRandomSampler([0.0, 1.0], 12)), 4)
    assert len({row[1] for row in chain.from_iterable(often)}) == 24
    rows = list(chain.from_iterable(stream(make("shuffled"), 9)))
    assert len(rows) == 3 * SIZE
    for column in range(1, 4):
        assert len({row[column] for row in rows}) == len(rows)
    others = chain.from_iterable(stream(make("shuffled"), 9, seed=4))
    assert {row[1] for row in rows}.isdisjoint(row[1] for row in others)


@pytest.mark.parametrize("draws_from", [0, 3, SIZE - 1])
def test_samples_that_draw_are_keyed_wherever_the_first_of_them_is(draws_from: int) -> None:
    """A dataset that draws for some samples only gives what workers give, which key each sample."""
    expected = stream(make("sequential", Drawing(SIZE, draws_from), num_workers=1), 8)
    assert stream(make("sequential", Drawing(SIZE, draws_from)), 8) == expected


def test_a_collation_that_draws_is_keyed_too() -> None:
    """What ``collate_fn`` draws is resumed, and no other process draws otherwise."""
    dataset = TensorDataset(torch.zeros(SIZE))

    def collate(samples: list[Any]) -> Tensor:
        return torch.stack([sample for (sample,) in samples]).mean() + torch.rand(())

    before = rng_states()
    drawn = stream(make("shuffled", dataset, collate_fn=collate), 6)
    assert len(set(drawn)) == 6
    assert stream(make("shuffled", dataset, collate_fn=collate), 3, skip=3) == drawn[3:]
    assert stream(make("shuffled", dataset, collate_fn=collate, num_workers=1), 6) == drawn
    assert rng_states() == before


# With a seed: what is loaded


@pytest.mark.parametrize("order", ORDERS)
def test_skipping_loads_nothing(order: str) -> None:
    """A resumed training loads its own batches and nothing before them, each sample once.

    The usual samplers skip a billion batches at once.
    """
    at_once = {"sequential", "shuffled", "weighted", "with replacement", "list of batches"}
    dataset = Quiet(SIZE)
    batches = stream(make(order, dataset), 2, skip=10**9 if order in at_once else 50)
    assert dataset.loaded == [int(row[0]) for batch in batches for row in batch]


DATASETS: dict[str, Callable[[], Any]] = {
    "tensors": lambda: TensorDataset(torch.randn(SIZE, 2), torch.arange(SIZE)),
    "list": lambda: [(number, {"square": number**2}) for number in range(SIZE)],
    "stacked": lambda: AnyStack(a=numbers(SIZE), b=TensorDataset(torch.ones(SIZE))),
    "samples": lambda: Quiet(SIZE),
}


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize("options", [{}, {"sampler": range(-3, 8)}, {"num_workers": 1}])
def test_batches_are_those_of_torch(kind: str, options: dict[str, Any]) -> None:
    """Whether samples are fetched one by one or whole batches at once, they are collated as torch does it."""
    dataset = DATASETS[kind]()
    if "sampler" in options and kind != "tensors":
        options = {"sampler": range(8)}
    expected = list(TorchDataLoader(dataset, 4, **options))
    found = list(DataLoader(dataset, 4, **options).get_data_loader(seed=1))
    assert str(found) == str(expected)


def test_a_sample_that_fails_is_named() -> None:
    """The error of a dataset tells which sample it was, for a user's sampler too."""

    class Failing(Quiet):
        @override
        def __getitem__(self, index: int) -> Tensor:
            raise KeyError(index)

    for order in ("sequential", "user's sampler"):
        with pytest.raises(KeyError) as caught:
            stream(make(order, Failing(SIZE)), 1)
        assert "of Failing" in " ".join(caught.value.__notes__)


# Workers


class WhoLoads(Dataset[Tensor]):
    """A mark, and the number of the worker."""

    marked = 0

    def __len__(self) -> int:
        return SIZE

    @override
    def __getitem__(self, index: int) -> Tensor:
        info: Any = torch.utils.data.get_worker_info()
        return torch.tensor([self.marked, info.id])


def mark_dataset(_number: int) -> None:
    """Mark the dataset that a worker knows as the user's."""
    info: Any = torch.utils.data.get_worker_info()
    info.dataset.marked = 1


def test_a_worker_sees_the_users_dataset_and_calls_the_users_function() -> None:
    """``worker_init_fn`` is called in each worker, where ``get_worker_info().dataset`` is the dataset as passed."""
    loader = make("sequential", WhoLoads(), num_workers=2, worker_init_fn=mark_dataset)
    assert stream(loader, 3) == [[[1, 0]] * 4, [[1, 1]] * 4, [[1, 0]] * 3]
