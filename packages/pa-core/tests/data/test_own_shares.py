"""Streams, samplers and datasets that are divided over the processes already, or are not the same on all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset
from typing_extensions import override

from pa_core import ConfigurationError, RanksDifferError, Trainer
from pa_core.distributed import gather_objects, num_processes, rank
from tests.small_runs import NoteBatches, make_trainer, samples

on_two_ranks = pytest.mark.runs_on("two_ranks")
Sample = tuple[Tensor, Tensor]


class Stream(IterableDataset[Sample]):
    """All samples, or every nth of them."""

    def __init__(self, number: int = 40) -> None:
        self.data = samples(number)

    def own(self) -> tuple[int, int]:
        """The first sample, and the step to the next one."""
        return 0, 1

    @override
    def __iter__(self) -> Iterator[Sample]:
        first, step = self.own()
        return (cast("Sample", self.data[index]) for index in range(first, len(self.data), step))


class AsksTorch(Stream):
    """Asks ``torch.distributed`` for its rank."""

    @override
    def own(self) -> tuple[int, int]:
        return dist.get_rank(), dist.get_world_size()


class AsksEnvironment(Stream):
    """Asks the environment for its rank."""

    @override
    def own(self) -> tuple[int, int]:
        return int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1"))


def place() -> tuple[int, int]:
    """The rank, by way of the library."""
    return rank(), num_processes()


class AsksHelper(Stream):
    """Asks a function of the script."""

    @override
    def own(self) -> tuple[int, int]:
        return place()


class Pipeline(IterableDataset[Sample]):
    """Runs a source through stages, as webdataset does."""

    def __init__(self, source: Any, *stages: Any) -> None:
        self.pipeline = [source, *stages]

    @override
    def __iter__(self) -> Iterator[Sample]:
        result = iter(self.pipeline[0])
        for stage in self.pipeline[1:]:
            result = stage(result)
        return iter(result)


def by_rank(items: Any) -> Iterator[Any]:
    """Every nth item."""
    for number, item in enumerate(items):
        if number % dist.get_world_size() == dist.get_rank():
            yield item


class Numbers(Stream):
    """Was given its share by the script."""

    def __init__(self, first: int, step: int) -> None:
        super().__init__()
        self.first, self.step = first, step

    @override
    def own(self) -> tuple[int, int]:
        return self.first, self.step


STREAMS: dict[str, Callable[[], Any]] = {
    "torch": AsksTorch,
    "environment": AsksEnvironment,
    "helper": AsksHelper,
    "pipeline": lambda: Pipeline(Stream(), by_rank),
    "numbers": lambda: Numbers(dist.get_rank(), dist.get_world_size()),
}


def train(data: Any, note: NoteBatches, **kwargs: Any) -> Trainer:
    """Train for an epoch of batches of two."""
    trainer = make_trainer(Trainer, note)
    if isinstance(data, DataLoader):
        trainer.train(data, 10, max_num_train_steps=10)
    else:
        given = {"num_workers": 0, **kwargs}
        trainer.train(data, 10, max_num_train_steps=10, per_device_batch_size=2, train_dataloader_kwargs=given)
    return trainer


def seen(note: NoteBatches) -> list[int]:
    """The numbers of all samples that any process has trained on."""
    return sorted(number for batches in gather_objects(note.trained) for batch in batches for number in batch)


@on_two_ranks
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_divides_itself_is_not_divided_again(name: str) -> None:
    """It is refused until somebody says what it yields; then each process trains on its own share, and all is seen."""
    with pytest.raises(ConfigurationError, match="own_share=True") as caught:
        train(STREAMS[name](), NoteBatches())
    assert "own_share=False" in str(caught.value)
    note = NoteBatches()
    train(STREAMS[name](), note, own_share=True)
    assert seen(note) == list(range(40))


@on_two_ranks
@pytest.mark.parametrize("name", STREAMS)
def test_a_loader_of_such_a_stream_says_so_by_an_attribute(name: str) -> None:
    """A DataLoader that is passed, or returned by a method, takes no arguments."""
    stream = STREAMS[name]()
    with pytest.raises(ConfigurationError, match=rf"{type(stream).__name__}.own_share"):
        train(DataLoader(stream, batch_size=2), NoteBatches())
    stream.own_share = True
    note = NoteBatches()
    train(DataLoader(stream, batch_size=2), note)
    assert seen(note) == list(range(40))


class AsksForPrinting(Stream):
    """Yields all samples, and remembers whether this is the first process."""

    @override
    def own(self) -> tuple[int, int]:
        self.is_first = dist.get_rank() == 0
        return 0, 1


@on_two_ranks
@pytest.mark.filterwarnings("ignore:AsksForPrinting, an IterableDataset, is split")
def test_a_whole_stream_that_asks_for_its_rank_is_divided_once_it_says_so() -> None:
    """The rank may be asked for something else."""
    note = NoteBatches()
    train(AsksForPrinting(), note, own_share=False)
    assert seen(note) == list(range(40))


@on_two_ranks
@pytest.mark.filterwarnings("ignore:Stream, an IterableDataset, is split")
def test_a_stream_that_does_not_ask_is_divided_as_before() -> None:
    """Nothing is to be said about it."""
    note = NoteBatches()
    train(Stream(), note)
    assert seen(note) == list(range(40))


class Every(Sampler[int]):
    """A sampler that asks for its rank, without the attributes that say so."""

    def __len__(self) -> int:
        return 20

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(dist.get_rank(), 40, dist.get_world_size()))


class Indices(Sampler[int]):
    """A sampler of some indices."""

    def __init__(self, indices: Any) -> None:
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(map(int, self.indices))


SAMPLERS: dict[str, Callable[[], Any]] = {
    "asks": Every,
    "list": lambda: Indices([*range(rank(), 40, 2)]),
    "tensor": lambda: Indices(torch.arange(rank(), 40, 2)),
    "array": lambda: Indices(numpy.arange(rank(), 40, 2)),
}


@on_two_ranks
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_that_divides_is_not_divided_again(name: str) -> None:
    """Neither one that asks for its rank, nor one that was given the indices of its process."""
    with pytest.raises(ConfigurationError, match="share of its process itself"):
        train(samples(40), NoteBatches(), sampler=SAMPLERS[name]())
    note = NoteBatches()
    train(samples(40), note, sampler=SAMPLERS[name](), own_share=True)
    assert seen(note) == list(range(40))


@on_two_ranks
def test_a_list_of_the_indices_of_a_process_is_not_divided_again() -> None:
    """In a DataLoader, which takes a list for a sampler."""
    with pytest.raises(ConfigurationError, match="share of its process itself"):
        train(DataLoader(samples(40), 2, sampler=[*range(rank(), 40, 2)]), NoteBatches())


@on_two_ranks
def test_an_evaluation_of_a_stream_that_divides_itself_is_refused_too() -> None:
    """As half of the samples would never be evaluated."""
    with pytest.raises(ConfigurationError, match="own_share=True"):
        make_trainer().evaluate(AsksTorch(), dataloader_kwargs={"num_workers": 0})


class Half(Dataset[Sample]):
    """Every second sample of 96, drawn or not."""

    def __init__(self, first: int, *, draws: bool = False, own: bool = False) -> None:
        self.data = samples(96)
        self.first, self.draws = first, draws
        self.generator = numpy.random.default_rng() if own else numpy.random

    def __len__(self) -> int:
        return len(self.data) // 2

    @override
    def __getitem__(self, index: int) -> Sample:
        inputs, targets = self.data[2 * index + self.first]
        return (inputs + float(self.generator.normal()), targets) if self.draws else (inputs, targets)


def half(first: int) -> TensorDataset:
    """Every second sample, in memory."""
    return TensorDataset(*(tensor[first::2] for tensor in samples(96).tensors))


def loader_of_half(first: int) -> DataLoader[tuple[Tensor, ...]]:
    """The same in a loader of the script's own."""
    return DataLoader(half(first), batch_size=2)


@on_two_ranks
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("make", [Half, half, loader_of_half])
def test_a_half_of_the_data_on_each_process_is_refused(make: Any, num_workers: int) -> None:
    """Equal lengths do not make equal data: half of each half would never be seen."""
    data = make(rank())
    kwargs: dict[str, Any] = (
        {} if isinstance(data, DataLoader) else {"train_dataloader_kwargs": {"num_workers": num_workers}}
    )
    with pytest.raises(RanksDifferError, match=r"sample 0 of .* on rank 0, .* on rank 1"):
        make_trainer().train(data, 1, **kwargs)


@on_two_ranks
def test_a_half_on_each_process_is_trained_on_if_it_says_so() -> None:
    """In a DataLoader, which is used as it is."""
    data = half(rank())
    vars(data)["own_share"] = True
    note = NoteBatches()
    make_trainer(Trainer, note).train(DataLoader(data, batch_size=2), 1)
    assert seen(note) == list(range(96))


@on_two_ranks
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("own", [False, True])
def test_random_augmentation_is_no_difference(own: bool, num_workers: int) -> None:
    """Neither from the global generators nor from one that the dataset owns, which differs on each process."""
    make_trainer().train(
        Half(0, draws=True, own=own), 1, per_device_batch_size=24, train_dataloader_kwargs={"num_workers": num_workers}
    )


@on_two_ranks
def test_what_is_the_same_in_an_augmented_sample_is_compared() -> None:
    """The targets of two halves differ, whatever is drawn for the inputs."""
    with pytest.raises(RanksDifferError, match=r"\[1\]"):
        make_trainer().train(Half(rank(), draws=True, own=True), 1, train_dataloader_kwargs={"num_workers": 0})


class Opened(Half):
    """Opens what it reads with its first sample, as users of HDF5 do, and says in which process."""

    def __init__(self) -> None:
        super().__init__(0)
        self.opened_in: int | None = None

    @override
    def __getitem__(self, index: int) -> Sample:
        self.opened_in = self.opened_in or os.getpid()
        assert self.opened_in == os.getpid(), "a file handle is shared with another process"
        return super().__getitem__(index)


@on_two_ranks
def test_what_workers_open_is_not_opened_before_they_are_forked() -> None:
    """A file that the parent had opened would be read by several processes at once."""
    make_trainer().train(Opened(), 1, per_device_batch_size=24, train_dataloader_kwargs={"num_workers": 2})


@on_two_ranks
def test_samples_are_fetched_as_the_dataset_has_them_and_rngs_stay() -> None:
    """The comparison disturbs no random number."""
    data = Half(0, draws=True)
    torch.manual_seed(3)
    trainer, note = make_trainer(Trainer), NoteBatches()
    trainer.train(data, 1, train_dataloader_kwargs={"num_workers": 0})
    after = torch.rand(1)
    torch.manual_seed(3)
    make_trainer(Trainer, note).train(data, 1, train_dataloader_kwargs={"num_workers": 0, "own_share": False})
    assert torch.equal(after, torch.rand(1))
