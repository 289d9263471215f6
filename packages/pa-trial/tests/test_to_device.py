"""Moving data to the device: what is moved, what becomes a tensor, and what is warned of."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from pa_trial.to_device import DeviceMover, to_device


class Pair(NamedTuple):
    """Two parts of a batch."""

    first: Any
    second: Any


class Graph:
    """An object of a user's library, whose ``to`` takes the device alone."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device

    def to(self, device: torch.device) -> Graph:
        """Return it on a device."""
        return Graph(device)


@pytest.fixture(autouse=True)
def no_warning_unless_expected() -> Any:
    """A warning that a test does not expect is a failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_tensors_are_moved_wherever_they_are() -> None:
    """Dicts, lists and tuples are walked at any depth, and keep their kinds."""
    batch: dict[str, Any] = {
        "a": [torch.zeros(1), (torch.zeros(2), Pair(torch.zeros(3), OrderedDict(b=torch.zeros(4))))]
    }
    moved: Any = to_device(batch, "meta")
    (first, (second, pair)) = moved["a"]
    parts = first, second, pair.first, pair.second["b"]
    assert [(part.device.type, len(part)) for part in parts] == [("meta", 1), ("meta", 2), ("meta", 3), ("meta", 4)]
    kinds = [type(moved), type(moved["a"]), type(moved["a"][1]), type(pair), type(pair.second)]
    assert kinds == [dict, list, tuple, Pair, OrderedDict]
    assert batch["a"][0].device.type == "cpu"  # what was given is left as it was


@pytest.mark.parametrize("batch", [torch.zeros(2), [torch.zeros(2)], (torch.zeros(2),), {"a": torch.zeros(2)}, [], {}])
def test_data_that_are_there_come_back_as_they_are(batch: Any) -> None:
    """Where nothing is to be moved nothing is copied, not even a list."""
    assert to_device(batch, "cpu") is batch


ARRAYS = [np.float32, np.float64, np.float16, np.complex64, np.int8, np.int64, np.uint8, np.uint16, np.bool_]


@pytest.mark.parametrize("dtype", ARRAYS)
def test_arrays_of_numbers_become_tensors(dtype: type) -> None:
    """Floats, complex numbers, integers with and without sign, and truth values; they share the array's memory."""
    array: Any = np.array([[0, 1], [1, 0]], dtype=dtype)
    moved: Any = to_device({"a": [array]}, "cpu")
    tensor = moved["a"][0]
    assert isinstance(tensor, Tensor)
    assert tensor.numpy().dtype == array.dtype
    assert tensor.tolist() == array.tolist()
    array[0, 0] = 1
    assert tensor[0, 0].item() == 1


@pytest.mark.parametrize(
    "array",
    [
        np.arange(4)[::-1],
        np.arange(4).astype(">i4"),
        np.broadcast_to(np.arange(3), (2, 3)),
        np.array(3.5),
        np.frombuffer(b"\x01\x02", dtype=np.uint8),
    ],
)
def test_arrays_that_torch_cannot_share_are_copied(array: Any) -> None:
    """Reversed, read-only and foreign arrays are data too, and raise neither an error nor a warning."""
    tensor: Any = to_device(array, "cpu")
    assert tensor.tolist() == array.tolist()
    assert tensor.shape == array.shape


def test_other_objects_are_moved_by_their_own_method() -> None:
    """Whatever has a ``to`` is moved by it: packed sequences, graphs, batches of other libraries."""
    moved: Any = to_device([pack_sequence([torch.zeros(2)]), Graph()], "meta")
    assert isinstance(moved[0], PackedSequence)
    assert moved[0].data.device.type == "meta"
    assert moved[1].device == torch.device("meta")


STAYING: list[Any] = ["text", 3, 1.5, None, np.array(["a"]), np.array([object()]), np.float32(1), {1, 2}]


@pytest.mark.parametrize("value", STAYING)
def test_everything_else_stays_with_a_warning(value: Any) -> None:
    """What cannot be moved comes back itself, and the warning names its type."""
    with pytest.warns(UserWarning, match=f"type {type(value).__name__} cannot be moved to cpu") as caught:
        assert to_device(value, "cpu") is value
    assert [str(warning.filename) for warning in caught] == [__file__]


def warned_types(call: Callable[[], object]) -> list[str]:
    """The types that a call warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message).split()[3] for warning in caught]


def test_a_type_is_warned_of_once_by_a_mover_and_in_each_call_of_the_function() -> None:
    """A context warns once per type however many batches there are; the function remembers what it is told to."""
    move = DeviceMover("cpu")
    assert warned_types(lambda: [move([torch.zeros(1), "a", "b", 1]) for _ in range(3)]) == ["str", "int"]
    assert warned_types(lambda: [to_device(["a", "b"], "cpu") for _ in range(2)]) == ["str", "str"]
    known: set[type] = {str}
    assert warned_types(lambda: to_device(["a", 1], "cpu", known)) == ["int"]
    assert known == {str, int}
