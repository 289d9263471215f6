"""Moving batches of any structure to a device."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from pa_data import move_to_device
from pa_data._fetching import pin_memory

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
