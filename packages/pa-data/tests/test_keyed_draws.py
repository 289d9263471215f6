"""Keys, seeds and states of generators: a keyed draw depends on (seed, epoch, sample) and on nothing else."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, StackDataset, Subset, TensorDataset
from typing_extensions import override

from pa_data import BatchRequest, KeyedDataLoader, RequestedDataLoader, worker_init_fn
from pa_data.rng import extend_key, mix, seed_rng
from tests.support.drawing import Drawing, draw_after, preserved_streams, samples_by_index


class Failing(Drawing):
    """Draws, and raises at one sample."""

    @override
    def __getitem__(self, index: int) -> Tensor:
        sample = super().__getitem__(index)
        if index == 5:
            raise OSError("the file of sample 5 cannot be read")
        return sample


class Batched(Drawing):
    """Offers torch's own way to get many samples at once."""

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [torch.tensor([index, -1.0, -1.0, -1.0], dtype=torch.float64) for index in indices]


def drawn(epoch: int = 0, position: int = 0, **options: Any) -> dict[int, tuple[float, ...]]:
    """Return what a loader over 20 drawing samples draws for each of them."""
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": True, **options}
    loader = KeyedDataLoader(Drawing(20), **settings)
    loader.start_epoch(epoch, position)
    return samples_by_index(loader)


def test_every_sample_epoch_and_seed_has_draws_of_its_own() -> None:
    """Two samples never share their draws, nor do two epochs or two seeds share those of a sample."""
    draws = [drawn(epoch=epoch, seed=seed) for epoch in range(3) for seed in range(3)]
    for stream in range(3):
        values = [sample[stream] for epoch in draws for sample in epoch.values()]
        assert len(set(values)) == 9 * 20


@pytest.mark.parametrize("options", [{"batch_size": 7}, {"shuffle": False}, {"split": "eval"}, {"drop_last": True}])
def test_draws_do_not_depend_on_how_samples_are_batched(options: dict[str, Any]) -> None:
    """Batch size, order and split decide where a sample comes, not what is drawn for it."""
    assert drawn(**options) == drawn()


def test_evaluation_draws_the_same_for_the_same_epoch() -> None:
    """An evaluation with random crops gives the same result again, and another one for another epoch."""
    assert drawn(split="eval", epoch=2) == drawn(split="eval", epoch=2)
    assert drawn(split="eval", epoch=2) != drawn(split="eval", epoch=1)


@pytest.mark.parametrize("dataset", [Drawing(20), TensorDataset(torch.zeros(20))])
@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_streams_of_the_main_process_are_undisturbed(dataset: Dataset[Any], split: Any) -> None:
    """Dropout draws after an epoch what it would have drawn without one, and iterators draw nothing."""
    loader = KeyedDataLoader(dataset, batch_size=4, shuffle=True, split=split)
    with preserved_streams():
        assert draw_after(loader) == draw_after([])


def test_the_streams_are_undisturbed_between_batches() -> None:
    """What the main process draws between two batches neither changes the batches nor is changed by them."""
    with preserved_streams():
        seed_rng(0)
        expected = [torch.rand(()).item() for _ in range(5)]
        seed_rng(0)
        loader = KeyedDataLoader(Drawing(20), batch_size=4, shuffle=True)
        between: list[float] = []
        batches: list[Tensor] = []
        for batch in loader:
            between.append(torch.rand(()).item())
            batches.append(batch)
    assert between == expected
    assert samples_by_index(batches) == drawn()


def test_the_streams_are_undisturbed_by_a_dataset_that_raises() -> None:
    """After an error in the dataset the streams are as before the batch."""
    with preserved_streams():
        seed_rng(0)
        expected = torch.rand(()).item()
        seed_rng(0)
        with pytest.raises(OSError, match="sample 5"):
            list(KeyedDataLoader(Failing(20), batch_size=20))
        assert torch.rand(()).item() == expected


def test_a_normal_number_in_reserve_is_put_back() -> None:
    """Streams that make normal numbers in pairs keep the second one in reserve; an epoch does not lose it."""

    def draw_normal() -> tuple[float, float, float]:
        return random.gauss(0, 1), float(numpy.random.randn()), torch.randn(()).item()

    draw_normal()
    with preserved_streams():
        expected = [draw_normal(), draw_normal()]
    list(KeyedDataLoader(Drawing(8), batch_size=4))
    assert [draw_normal(), draw_normal()] == expected


def test_numpy_may_draw_from_a_generator_of_the_users() -> None:
    """The samples are the same with and without workers; behind them the user's generator goes on."""
    own, users = get_bit_generator(), numpy.random.PCG64(0)
    set_bit_generator(users)
    try:
        here = drawn()
        assert get_bit_generator() is users
        assert numpy.random.rand() == numpy.random.Generator(numpy.random.PCG64(0)).random()
        assert drawn(num_workers=1) == here
    finally:
        set_bit_generator(own)


def test_a_dataset_may_have_a_loader_of_its_own() -> None:
    """Behind what that one draws, a sample draws as if it had not been there."""

    class WithNeighbours(Drawing):
        @override
        def __getitem__(self, index: int) -> Tensor:
            before = numpy.random.rand()
            neighbours = list(KeyedDataLoader(Drawing(4), batch_size=2, seed=1))
            assert samples_by_index(neighbours) == alone
            return torch.tensor([index, random.random(), before, numpy.random.rand(), torch.rand(()).item()])

    alone = samples_by_index(KeyedDataLoader(Drawing(4), batch_size=2, seed=1))
    once = torch.cat(list(KeyedDataLoader(WithNeighbours(4), batch_size=2)))
    again = torch.cat(list(KeyedDataLoader(WithNeighbours(4), batch_size=4)))
    assert torch.equal(once, again)
    assert len(set(once[:, 1:].flatten().tolist())) == 16


def test_what_the_collate_function_draws_is_keyed_too() -> None:
    """Mixing samples at random within a batch is as reproducible as drawing within a sample."""

    def mixed(samples: list[Tensor]) -> list[float]:
        return [random.random(), float(numpy.random.rand()), torch.rand(()).item()]

    with preserved_streams():
        loader = KeyedDataLoader(Drawing(20), batch_size=4, shuffle=True, collate_fn=mixed)
        whole = list(loader)
        assert draw_after(loader) == draw_after([])
        loader.start_epoch(0, position=8)
        assert list(loader) == whole[2:]


SAMPLES: Any = range(10)
LISTED: Any = [*SAMPLES]
INDEXED: dict[str, Any] = {
    "range": SAMPLES,
    "list": LISTED,
    "array": numpy.arange(10),
    "subset": Subset(SAMPLES, LISTED[::-1]),
    "concatenation": ConcatDataset([SAMPLES[:4], LISTED[4:]]),
    "stack": StackDataset(SAMPLES, LISTED),
    "tensors": TensorDataset(torch.arange(10)),
}
"""Datasets that hand out what they hold."""


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", INDEXED)
def test_what_is_drawn_for_a_batch_of_samples_that_cannot_draw_continues_from_the_last_one(
    kind: str, num_workers: int
) -> None:
    """It is what it was when each sample was seeded."""
    loader = KeyedDataLoader(INDEXED[kind], 4, seed=3, collate_fn=_numbers, num_workers=num_workers)
    loader.set_epoch(2)
    before = _states()
    batches = list(loader)
    assert before == _states()
    expected: list[tuple[float, ...]] = []
    for last in (3, 7, 9):
        seed_rng(extend_key(mix(3, 2), last))
        expected.append(_numbers([]))
    assert batches == expected


def _states() -> tuple[object, ...]:
    of_numpy: Any = numpy.random.get_state()
    return random.getstate(), torch.get_rng_state().tolist(), of_numpy[1].tolist()


def _numbers(_samples: list[Any]) -> tuple[float, ...]:
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


class DrawingList(list[int]):
    """A list that draws."""

    @override
    def __getitem__(self, index: Any) -> Any:
        return random.random()


class DrawingSample(Mapping[str, float]):
    """A sample that draws when a batch is made of it."""

    @override
    def __getitem__(self, key: str) -> float:
        return random.random()

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(["x"])

    @override
    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("make", [lambda: DrawingList(range(8)), lambda: [DrawingSample() for _ in range(8)]])
def test_what_may_draw_is_seeded(make: Callable[[], Any]) -> None:
    """A subclass of a list, and samples of the script's own class, give the same values each time."""
    first, second = ([str(batch) for batch in KeyedDataLoader(make(), 4)] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)


class LateDrawing(Dataset[tuple[int, float]]):
    """Samples of which only the last ones draw, from a generator of choice; it counts how often they are read."""

    def __init__(self, draw: Callable[[], float], fails_at: int = -1) -> None:
        self.draw = draw
        self.fails_at = fails_at
        self.read: list[int] = []

    def __len__(self) -> int:
        return 24

    @override
    def __getitem__(self, index: int) -> tuple[int, float]:
        self.read.append(index)
        drawn = self.draw() if index >= 14 else 0.0
        if index == self.fails_at:
            raise OSError(f"sample {index} cannot be read: {drawn}")
        return index, drawn


GENERATORS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "numpy": lambda: float(numpy.random.rand()),
    "normal": lambda: float(numpy.random.randn()),
    "torch": lambda: torch.rand(()).item(),
    "all": lambda: sum(_numbers([])),
    "seed": lambda: float(torch.initial_seed()),
}


@pytest.mark.parametrize("generator", GENERATORS)
def test_samples_that_begin_to_draw_have_the_numbers_of_their_keys(generator: str) -> None:
    """No matter how many samples before did not draw, a sample draws what it draws in a batch of its own."""
    draw = GENERATORS[generator]
    together = _drawn_by_sample(KeyedDataLoader(LateDrawing(draw), batch_size=4))
    assert together == {index: _read_alone(draw, index) for index in range(24)}
    assert len({drawn for index, drawn in together.items() if index >= 14}) == 10


def _drawn_by_sample(batches: Iterable[tuple[Tensor, Tensor]]) -> dict[int, float]:
    return {int(index): float(drawn) for batch in batches for index, drawn in zip(*batch, strict=True)}


def _read_alone(draw: Callable[[], float], index: int) -> float:
    loader = KeyedDataLoader(LateDrawing(draw), batch_size=1)
    loader.start_epoch(0, index)
    return _drawn_by_sample(loader)[index]


def test_only_the_batch_in_which_samples_begin_to_draw_is_read_twice() -> None:
    """Every other batch is read once, in each epoch."""
    dataset = LateDrawing(random.random)
    loader = KeyedDataLoader(dataset, batch_size=4)
    for _epoch in range(2):
        _drawn_by_sample(loader)
    assert dataset.read == [*range(16), *range(12, 24), *range(24)]


def test_an_error_of_a_sample_that_begins_to_draw_has_the_numbers_of_its_key() -> None:
    """It is the same error with any batches, so that it can be looked for."""

    def message(batch_size: int) -> str:
        with pytest.raises(OSError, match="sample 14 cannot be read") as raised:
            _drawn_by_sample(KeyedDataLoader(LateDrawing(random.random, fails_at=14), batch_size=batch_size))
        return str(raised.value)

    assert message(24) == message(5) == message(1)


def test_numpy_is_not_seeded_by_loaders_that_import_it() -> None:
    """If a sample is the first to import it, the script afterwards draws numbers of a random seed."""
    script = """
import sys
import torch
from pa_data import KeyedDataLoader

class Importing(list):
    def __getitem__(self, index):
        import numpy.random
        return numpy.random.rand()

assert "numpy.random" not in sys.modules
batches = [batch.tolist() for batch in KeyedDataLoader(Importing(range(4)), batch_size=2)]
import numpy
print(batches)
print(numpy.random.rand())
"""
    first, second = (
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.splitlines()
        for _ in range(2)
    )
    assert first[0] == second[0]
    assert first[1] != second[1]


MANY = range(20_000)
CHEAP: dict[str, Any] = {
    "range": MANY,
    "list": [*MANY],
    "array": numpy.arange(len(MANY)),
    "subset": Subset(cast("Any", MANY), MANY),
    "stack": StackDataset(cast("Any", MANY), cast("Any", [*MANY])),
    "dictionaries": [{"a": 1, "b": 2.0} for _ in MANY],
}


@pytest.mark.parametrize("kind", CHEAP)
def test_samples_that_cannot_draw_cost_about_what_torch_takes(kind: str) -> None:
    """They took twenty times as long while each was seeded."""
    data = CHEAP[kind]
    keyed = min(_seconds(KeyedDataLoader(data, 64, shuffle=True)) for _ in range(3))
    assert keyed < 4 * min(_seconds(DataLoader(data, 64, shuffle=True)) for _ in range(3))


def _seconds(loader: Iterable[Any]) -> float:
    begin = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - begin


def test_without_keys_the_dataset_draws_as_under_a_plain_loader() -> None:
    """The opt-out leaves the streams alone: the dataset draws from them as it always did."""
    with preserved_streams():
        batches: list[list[Tensor]] = []
        for loader in (
            DataLoader(Drawing(8), batch_size=4, generator=torch.Generator()),
            KeyedDataLoader(Drawing(8), batch_size=4, keyed_augmentation=False),
        ):
            seed_rng(1)
            batches.append(list(loader))
    assert all(torch.equal(plain, keyed) for plain, keyed in zip(*batches, strict=True))


def test_many_samples_at_once_are_asked_for_where_no_draw_is_keyed() -> None:
    """A dataset's `__getitems__` is used as torch does, except where every sample needs a key of its own."""
    unkeyed = KeyedDataLoader(Batched(8), batch_size=4, keyed_augmentation=False)
    assert {draw for sample in samples_by_index(unkeyed).values() for draw in sample} == {-1.0}
    keyed = KeyedDataLoader(Batched(8), batch_size=4)
    assert samples_by_index(keyed) == samples_by_index(KeyedDataLoader(Drawing(8), batch_size=4))


class Requests(list[list[int]]):
    """Requests of samples whose draws are keyed by their place in the batch."""

    def requests(self) -> Iterator[BatchRequest]:
        """Return them."""
        return ((mix(number), indices, range(len(indices))) for number, indices in enumerate(self))


def test_a_batch_depends_on_its_request_alone() -> None:
    """A sample that comes twice draws twice, in this process as in workers."""
    loaders = [RequestedDataLoader(Drawing(9), Requests([[3, 5, 5]] * 3), num_workers=workers) for workers in (0, 2)]
    here, in_workers = ([batch.tolist() for batch in loader] for loader in loaders)
    assert here == in_workers
    assert len({row[1] for batch in here for row in batch}) == 9


def draw() -> tuple[float, float, float]:
    """Draw once from each global stream."""
    return random.random(), float(numpy.random.rand()), torch.rand(()).item()


def test_a_key_decides_every_draw() -> None:
    """The same key gives the same draws from all three streams, another key gives others."""
    draws: list[tuple[float, float, float]] = []
    for key in (mix(1, 2, 3), mix(1, 2, 4), mix(1, 2, 3)):
        seed_rng(key)
        draws.append(draw())
    first, other, again = draws
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


class Accelerators(SimpleNamespace):
    """Two devices of a kind, of which the first is the current one."""

    current = 0

    @contextmanager
    def device(self, index: int) -> Generator[None]:
        """Make a device the current one in a block."""
        before, self.current = self.current, index
        yield
        self.current = before

    def manual_seed(self, key: int) -> None:
        """Seed the current device."""
        self.seeds[self.current] = key


def test_the_given_device_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current one is seeded only if it is given, or if no index is."""
    module = Accelerators(seeds={})
    monkeypatch.setattr(torch, "get_device_module", lambda _device: module)  # pyright: ignore[reportUnknownLambdaType]
    seed_rng(7, device=torch.device("cuda", 1))
    assert (module.seeds, module.current) == ({1: 7}, 0)
    seed_rng(8, device=torch.device("cuda"))
    assert module.seeds == {0: 8, 1: 7}


def test_numpy_and_torch_do_not_repeat_each_other() -> None:
    """Both make their numbers with a Mersenne twister; seeded alike, their draws would be the same."""
    seed_rng(mix(0, 0, 0))
    numpy_words = numpy.random.randint(0, 2**32, 8, dtype=numpy.uint32) % 2**31
    torch_words = torch.empty(8, dtype=torch.int64).random_(0, 2**31)
    assert not set(map(int, numpy_words)) & set(map(int, torch_words))


class Draws(Dataset[tuple[int, ...]]):
    """Each sample is a draw from each of the three global streams."""

    def __len__(self) -> int:
        """The number of samples."""
        return 2

    @override
    def __getitem__(self, index: int) -> tuple[int, ...]:
        import numpy as np

        return random.getrandbits(31), int(np.random.randint(2**31 - 1)), int(torch.randint(2**31 - 1, ()).item())


def drawn_by_workers(seed: int, loader_class: Any = DataLoader, **kwargs: Any) -> list[tuple[int, ...]]:
    """What two workers draw, one sample each, in a process that was seeded so."""
    torch.default_generator.manual_seed(seed)
    loader = loader_class(Draws(), batch_size=1, num_workers=2, **kwargs)
    return [tuple(int(value) for value in batch) for batch in loader]


def test_workers_draw_differently_and_the_seed_decides_what(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two workers share a stream, on one process or on several that were seeded alike; a seed repeats all of it."""
    first = drawn_by_workers(0, worker_init_fn=worker_init_fn)
    monkeypatch.setenv("RANK", "1")
    second = drawn_by_workers(0, worker_init_fn=worker_init_fn)

    streams = [*zip(*first, strict=True), *zip(*second, strict=True)]
    assert all(one != other for one, other in streams)
    assert set(first).isdisjoint(second)
    assert drawn_by_workers(0, worker_init_fn=worker_init_fn) == second
    assert drawn_by_workers(1, worker_init_fn=worker_init_fn) != second


def test_without_it_the_processes_of_a_run_draw_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the function is for: torch's own seeds of workers do not depend on the rank."""
    first = drawn_by_workers(0)
    monkeypatch.setenv("RANK", "1")
    assert drawn_by_workers(0) == first


def test_it_changes_nothing_in_a_loader_of_the_trainer() -> None:
    """Where each sample has a key, draws are the same with the function and without."""
    assert drawn_by_workers(0, KeyedDataLoader, worker_init_fn=worker_init_fn) == drawn_by_workers(0, KeyedDataLoader)
