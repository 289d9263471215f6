"""Batches are made of samples, fetched ahead and brought to the device."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, random_split
from typing_extensions import override

from pa_data import KeyedDataLoader, is_in_memory, move_to_device
from pa_data._fetching import can_fetch_batch, fetch_batch, pin_memory
from pa_data.errors import DataError


def tensors(num_samples: int = 12) -> TensorDataset:
    """Return inputs of two dimensions a sample, and labels."""
    inputs = torch.arange(num_samples * 6, dtype=torch.float32).reshape(num_samples, 2, 3)
    return TensorDataset(inputs, torch.arange(num_samples))


class Transposed(TensorDataset):
    """Gets its samples in a way of its own."""

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(tensor[index].flip(0) for tensor in self.tensors)


class Named(TensorDataset):
    """Has a name, and gets its samples as every TensorDataset."""

    name = "a"


class SelectiveSubset(Subset[Any]):
    """Gets many samples at once in a way of its own."""

    @override
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Squares(Dataset[dict[str, Tensor]]):
    """Fetches whole batches itself."""

    def __len__(self) -> int:
        return 10

    @override
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"square": torch.tensor(index) ** 2}

    def fetch_batch(self, indices: Tensor) -> dict[str, Tensor]:
        """Return the squares of the indices."""
        assert indices.dtype == torch.int64
        return {"square": indices**2}


DATASETS: dict[str, Callable[[], Dataset[Any]]] = {
    "tensors": tensors,
    "one tensor": lambda: TensorDataset(torch.arange(12.0)),
    "a subclass that changes nothing": lambda: Named(torch.arange(12.0)),
    "rows that are not contiguous": lambda: TensorDataset(torch.arange(48.0).reshape(4, 12).t()),
    "rows that share memory": lambda: TensorDataset(torch.arange(3.0).expand(12, 3)),
    "samples without elements": lambda: TensorDataset(torch.zeros(12, 0), torch.arange(12)),
    "a list of indices": lambda: Subset(tensors(), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]),
    "negative indices": lambda: Subset(tensors(), [-1, 0, -12, 3] * 3),
    "a range": lambda: Subset(tensors(), range(11, -1, -1)),
    "a tensor of indices": lambda: Subset(tensors(), torch.arange(11, -1, -1, dtype=torch.int32)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # people do
    "an array of indices": lambda: Subset(tensors(), numpy.arange(11, -1, -1)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # people do
    "a subset of a subset": lambda: Subset(Subset(tensors(20), range(19, 3, -1)), range(2, 14)),
    "a random split": lambda: random_split(tensors(20), [12, 8], torch.Generator().manual_seed(0))[0],
    "a concatenation": lambda: ConcatDataset([tensors(5), tensors(4), tensors(3)]),
    "a concatenation of subsets": lambda: ConcatDataset([Subset(tensors(), range(6)), Subset(tensors(), range(3, 9))]),
    "a subset of a concatenation": lambda: Subset(ConcatDataset([tensors(5), tensors(9)]), [-1, 0, 5, 4] * 3),
}


def collated(dataset: Dataset[Any], indices: list[int]) -> Any:
    """Return the batch that torch's own loader makes of some samples."""
    return next(iter(DataLoader(dataset, batch_sampler=[indices])))


def assert_same(batch: Any, expected: Any) -> None:
    """Assert that two batches are equal in types, shapes, dtypes and values."""
    assert type(batch) is type(expected)
    assert len(batch) == len(expected)
    for tensor, other in zip(batch, expected, strict=True):
        assert tensor.dtype == other.dtype
        assert tensor.shape == other.shape
        assert tensor.requires_grad == other.requires_grad
        assert torch.equal(tensor, other)


@pytest.mark.parametrize("name", DATASETS)
@given(indices=st.lists(st.integers(0, 11), min_size=1, max_size=12))
def test_a_whole_batch_is_the_collated_one(name: str, indices: list[int]) -> None:
    """Fetched whole or sample by sample, a batch is the same list of the same tensors."""
    dataset = DATASETS[name]()
    assert is_in_memory(dataset)
    expected = collated(dataset, indices)
    assert_same(fetch_batch(dataset, torch.tensor(indices)), expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.complex64])
def test_every_dtype_is_fetched_whole(dtype: torch.dtype) -> None:
    """The dtype of a batch is that of the dataset."""
    dataset = TensorDataset(torch.tensor([[0, 1], [1, 0], [1, 1]]).to(dtype))
    assert_same(fetch_batch(dataset, torch.tensor([2, 0])), collated(dataset, [2, 0]))


def test_gradients_flow_into_the_dataset() -> None:
    """A dataset of learnable tensors is fetched as collation would: still attached."""
    dataset = TensorDataset(torch.ones(4, 2, requires_grad=True))
    batch = fetch_batch(dataset, torch.tensor([1, 3]))
    assert_same(batch, collated(dataset, [1, 3]))
    assert batch[0].requires_grad


@pytest.mark.parametrize("name", DATASETS)
def test_changing_a_batch_leaves_the_dataset_alone(name: str) -> None:
    """A transform may work in place: no batch shares memory with the dataset."""
    dataset = DATASETS[name]()
    before = collated(dataset, list(range(12)))
    for batch in KeyedDataLoader(dataset, batch_size=12):
        for tensor in batch:
            tensor.fill_(7)
    assert_same(collated(dataset, list(range(12))), before)


NOT_IN_MEMORY: list[Any] = [
    Transposed(torch.zeros(3, 2)),
    Subset(Transposed(torch.zeros(3, 2)), [0, 1]),
    ConcatDataset([TensorDataset(torch.zeros(3, 2)), Transposed(torch.zeros(3, 2))]),
    SelectiveSubset(tensors(), [0, 1]),
    TensorDataset(torch.eye(3).to_sparse()),
    [1, 2, 3],
]


@pytest.mark.parametrize("dataset", NOT_IN_MEMORY)
def test_what_may_draw_is_not_in_memory(dataset: Any) -> None:
    """A way of its own to get a sample may do anything, so such a dataset is asked for every sample."""
    assert not is_in_memory(dataset)
    assert not can_fetch_batch(dataset)


def test_a_dataset_may_fetch_its_batches_itself() -> None:
    """What `fetch_batch` returns is the batch; subsets are translated to indices of the dataset."""
    whole = [batch["square"].tolist() for batch in KeyedDataLoader(Squares(), batch_size=4)]
    assert whole == [[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]
    subset = Subset(Squares(), [9, -2, 3])
    assert [batch["square"].tolist() for batch in KeyedDataLoader(subset, batch_size=2)] == [[81, 64], [9]]
    assert not is_in_memory(Squares())


def test_a_collate_function_gets_single_samples() -> None:
    """With a collate_fn of the user's no batch is fetched whole."""
    loader = KeyedDataLoader(tensors(), batch_size=5, collate_fn=len)
    assert not loader.whole_batches
    assert list(loader) == [5, 5, 2]


def test_whole_batches_can_be_refused() -> None:
    """`whole_batches=False` asks for single samples, and the batches are the same."""
    single = KeyedDataLoader(tensors(), batch_size=5, shuffle=True, whole_batches=False)
    assert not single.whole_batches
    for batch, expected in zip(single, KeyedDataLoader(tensors(), batch_size=5, shuffle=True), strict=True):
        assert_same(batch, expected)


@pytest.mark.parametrize(
    ("dataset", "options", "reason"),
    [(Transposed(torch.zeros(3, 2)), {}, "Transposed"), (tensors(), {"collate_fn": len}, "collate_fn")],
)
def test_whole_batches_that_are_impossible_are_refused(
    dataset: Dataset[Any], options: dict[str, Any], reason: str
) -> None:
    """Insisting on whole batches where they cannot be had is an error that says why."""
    with pytest.raises(DataError, match=reason):
        KeyedDataLoader(dataset, batch_size=2, whole_batches=True, **options)


def test_tensors_of_the_dataset_may_be_replaced() -> None:
    """A loader reads the tensors when it fetches, so that data may be resized between epochs."""
    dataset = tensors()
    loader = KeyedDataLoader(dataset, batch_size=12)
    dataset.tensors = (torch.ones(12, 5), dataset.tensors[1])
    assert next(iter(loader))[0].shape == (12, 5)


META = torch.device("meta")


class Point(NamedTuple):
    """A named tuple."""

    x: Tensor
    name: str


@dataclass
class Record:
    """A dataclass."""

    image: Tensor
    label: int


@dataclass(frozen=True, slots=True)
class FrozenRecord:
    """A dataclass whose fields cannot be assigned, with a field that is not an argument."""

    image: Tensor
    label: int


class Graph:
    """An object of a user's library that knows how to move, and takes the device alone."""

    def __init__(self, nodes: Tensor) -> None:
        self.nodes = nodes

    def to(self, device: torch.device) -> Self:
        """Return a copy on a device."""
        return type(self)(self.nodes.to(device))


class Pair(list[Any]):
    """A list with something of its own."""

    label: str = ""


class Pinnable:
    """An object of a user's library that knows how to pin itself."""

    def __init__(self, pinned: bool = False) -> None:
        self.pinned = pinned

    def pin_memory(self) -> Self:
        """Return a pinned copy."""
        return type(self)(pinned=True)


def zeros() -> Tensor:
    """Return a small tensor on the CPU."""
    return torch.zeros(2)


STRUCTURES: list[tuple[Callable[[], Any], Callable[[Any], Tensor]]] = [
    (zeros, lambda batch: batch),
    (lambda: [zeros(), 1], lambda batch: batch[0]),
    (lambda: (zeros(), "a"), lambda batch: batch[0]),
    (lambda: Point(zeros(), "a"), lambda batch: batch.x),
    (lambda: {"a": zeros(), "b": None}, lambda batch: batch["a"]),
    (lambda: OrderedDict[str, Tensor](a=zeros()), lambda batch: batch["a"]),
    (lambda: defaultdict(zeros, a=zeros()), lambda batch: batch["a"]),
    (lambda: types.MappingProxyType({"a": zeros()}), lambda batch: batch["a"]),
    (lambda: Record(zeros(), 3), lambda batch: batch.image),
    (lambda: FrozenRecord(zeros(), 3), lambda batch: batch.image),
    (lambda: Graph(zeros()), lambda batch: batch.nodes),
    (lambda: pack_sequence([torch.ones(3), torch.ones(2)]), lambda batch: batch.data),
    (lambda: {"a": [(zeros(), {"b": zeros()})]}, lambda batch: batch["a"][0][1]["b"]),
]


@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize(("make", "tensor_of"), STRUCTURES)
def test_tensors_are_found_in_any_structure(
    make: Callable[[], Any], tensor_of: Callable[[Any], Tensor], non_blocking: bool
) -> None:
    """The structure keeps its type, its tensors are on the device, and what was given is unchanged."""
    batch = make()
    moved = move_to_device(batch, META, non_blocking=non_blocking)
    assert type(moved) is type(batch)
    assert tensor_of(moved).device == META
    assert tensor_of(batch).device == torch.device("cpu")


@pytest.mark.parametrize("make", [make for make, _ in STRUCTURES if not isinstance(make(), (Graph, PackedSequence))])
def test_what_is_there_already_comes_back_itself(make: Callable[[], Any]) -> None:
    """Where nothing moves nothing is rebuilt: the very same object comes back."""
    batch = make()
    assert move_to_device(batch, "cpu") is batch


@pytest.mark.parametrize("value", [None, 1, 2.5, "text", b"bytes", {1, 2}, range(3), torch.Size([1, 2]), Tensor])
def test_everything_else_stays(value: object) -> None:
    """Values without tensors are returned as they are."""
    assert move_to_device(value, META) is value


def test_what_is_beside_the_tensors_stays() -> None:
    """The other items of a batch, and what a container has of its own, are kept."""
    pair = Pair([zeros(), "a"])
    pair.label = "kept"
    batch: dict[str, Any] = {"pair": pair, "record": Record(zeros(), 3)}
    moved = move_to_device(batch, META)
    assert moved["pair"][1] == "a"
    assert isinstance(moved["pair"], Pair)
    assert moved["pair"].label == "kept"
    assert isinstance(moved["record"], Record)
    assert moved["record"].label == 3
    assert move_to_device(defaultdict(zeros, a=zeros()), META).default_factory is zeros


def test_pinning_asks_the_objects_of_a_batch() -> None:
    """What can pin itself is pinned, wherever it is in the batch; tensors that are not on the CPU stay."""
    on_device = torch.zeros(2, device=META)
    batch: dict[str, Any] = {"graphs": [Pinnable()], "there": on_device, "label": 3}
    pinned = pin_memory(batch)
    assert pinned["graphs"][0].pinned
    assert pinned["there"] is on_device
    assert pinned["label"] == 3
    assert not batch["graphs"][0].pinned
