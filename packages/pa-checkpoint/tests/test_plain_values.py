"""What may be in files that torch saves, and damage to them."""

from __future__ import annotations

import collections
import datetime
import enum
import io
import random
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pa_checkpoint import CheckpointError
from pa_checkpoint._encoding import encode
from pa_checkpoint.torch_states import ensure_plain, find_damage
from tests.support.states import same, with_attribute


def _saved_and_loaded(obj: object) -> Any:
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


class _Colour(enum.Enum):
    RED = 1


class _Text(str):
    __slots__ = ()


class _Point(tuple[int, int]):
    __slots__ = ()


class _TensorSubclass(Tensor):
    pass


def _function() -> None:
    """Something that a checkpoint cannot hold."""


_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters(codec=None))
    | st.binary()
    | st.binary().map(bytearray)
    | st.sampled_from([torch.float32, torch.bfloat16, torch.device("cpu"), torch.device("cuda", 1)])
    | st.lists(st.integers(0, 9), max_size=3).map(torch.Size)
)
_hashable = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(min_size=1)
_tensors = st.builds(
    torch.ones,
    st.lists(st.integers(0, 3), max_size=3),
    dtype=st.sampled_from(
        [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]
    ),
)
_parameters = st.builds(nn.Parameter, _tensors, requires_grad=st.just(False))
_leaves = _scalars | _tensors | _parameters
_unsafe = st.sampled_from(
    [_function, np.float64(1.0), _Colour.RED, _Text("x"), frozenset({1}), range(3), Path("x"), nn.Linear(1, 1)]
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(_hashable, inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4).map(collections.OrderedDict)
        | st.sets(_hashable, max_size=4)
        | st.dictionaries(_hashable, st.integers(), max_size=4).map(collections.Counter)
        | inner.map(lambda attribute: with_attribute(collections.OrderedDict[str, int](), attribute))
        | inner.map(lambda attribute: with_attribute(torch.ones(2), attribute))
    )


@settings(deadline=None)
@given(obj=st.recursive(_leaves | _unsafe, _containers, max_leaves=12))
def test_what_is_accepted_loads_again_and_what_is_refused_does_not(obj: object) -> None:
    """The rule is exactly that of torch.load(weights_only=True): nothing more is accepted, nothing less."""
    try:
        ensure_plain(obj, "obj")
    except CheckpointError:
        with pytest.raises(Exception, match="Weights only load failed"):
            _saved_and_loaded(obj)
    else:
        assert same(_saved_and_loaded(obj), obj)


_REFUSED: list[tuple[object, str]] = [
    ({"metrics": [1, 2, 3, _function]}, "checkpoint_kwargs['metrics'][3]: function"),
    ({"a": {"b": (torch.ones(1), np.float64(1.0))}}, "checkpoint_kwargs['a']['b'][1]: float64"),
    ({"a": np.ones(2)}, "checkpoint_kwargs['a']: ndarray"),
    ({_Colour.RED: 1}, "checkpoint_kwargs, a key of it: _Colour"),
    ({1: {(1, _Text("x")): 2}}, "checkpoint_kwargs[1], a key of it[1]: _Text"),
    ([datetime.timedelta(1)], "checkpoint_kwargs[0]: timedelta"),
    ([collections.defaultdict[str, int](int)], "checkpoint_kwargs[0]: defaultdict"),
    ([_Point((1, 2))], "checkpoint_kwargs[0]: _Point"),
    ([torch.ones(2).as_subclass(_TensorSubclass)], "checkpoint_kwargs[0]: _TensorSubclass"),
    ([with_attribute(torch.ones(2), _function)], "checkpoint_kwargs[0].attribute: function"),
    ([torch.Generator()], "checkpoint_kwargs[0]: Generator"),
    ([torch.__version__], "checkpoint_kwargs[0]: TorchVersion"),
    ([b""], "checkpoint_kwargs[0]: bytes b''"),
    (nn.Linear(1, 1), "checkpoint_kwargs: Linear"),
]


@pytest.mark.parametrize(("obj", "path"), _REFUSED)
def test_the_first_entry_that_is_refused_is_named(obj: object, path: str) -> None:
    """The message leads to the entry, and torch.load would indeed refuse it."""
    with pytest.raises(CheckpointError) as caught:
        ensure_plain(obj, "checkpoint_kwargs")

    assert path in str(caught.value)
    with pytest.raises(Exception, match="Weights only load failed"):
        _saved_and_loaded(obj)


def test_what_cannot_be_saved_for_its_depth_is_refused() -> None:
    """What is too deep to be pickled is refused; what contains itself is not."""
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(CheckpointError, match="100 levels deep"):
        ensure_plain(deep, "deep")

    circle: list[Any] = [1]
    circle.append(circle)
    ensure_plain(circle, "circle")
    loaded = _saved_and_loaded(circle)
    assert loaded[1] is loaded


def test_shared_parts_are_looked_at_once() -> None:
    """A structure in which every level appears twice takes no exponential time."""
    shared: list[Any] = [1.0]
    for _ in range(60):
        shared = [shared, shared]

    started = time.perf_counter()
    ensure_plain(shared, "shared")

    assert time.perf_counter() - started < 1.0


class _Registered:
    """A class that a user allows to be unpickled."""


def test_types_that_the_user_allowed_are_accepted() -> None:
    """What torch.serialization.safe_globals lets through when loading is let through when saving."""
    entry = {"own": _Registered()}
    with pytest.raises(CheckpointError, match=r"\['own'\]: _Registered"):
        ensure_plain(entry, "checkpoint_kwargs")

    with torch.serialization.safe_globals([_Registered]):
        ensure_plain(entry, "checkpoint_kwargs")
        assert isinstance(_saved_and_loaded(entry)["own"], _Registered)


@pytest.mark.parametrize(
    "value", [0, 1.5, 1j, "x", b"x", torch.Size([1]), torch.int8, [{}], ({1}, None), nn.Parameter()]
)
def test_what_a_training_state_holds_a_checkpoint_may_hold_too(value: object) -> None:
    """The same types are plain in both, so that what was accepted for the one need not be converted for the other."""
    encode(value, "training state")
    ensure_plain(value, "checkpoint")
    for refused in (_Text(), frozenset[int](), _function, _TensorSubclass()):
        for store in (encode, ensure_plain):
            with pytest.raises(CheckpointError):
                store([value, refused], "either")


def saved() -> bytes:
    """A file of torch."""
    file = io.BytesIO()
    torch.save({"weight": torch.ones(100), "step": 3}, file)
    return file.getvalue()


def test_a_file_as_it_was_written_has_no_damage() -> None:
    """It is left at its beginning, for torch to read."""
    file = io.BytesIO(saved())
    assert find_damage(file) is None
    assert torch.load(file, weights_only=True)["step"] == 3


@pytest.mark.parametrize("length", [0, 3])
def test_what_is_no_archive_is_left_to_torch(length: int) -> None:
    """Torch tells what it is, or reads it: earlier releases wrote other files."""
    assert find_damage(io.BytesIO(saved()[:length])) is None


def test_a_file_that_was_cut_short_is_damaged() -> None:
    """Wherever it ends."""
    content, chance = saved(), random.Random(0)
    for _ in range(20):
        assert find_damage(io.BytesIO(content[: chance.randrange(4, len(content))])) is not None


def test_wrong_bits_of_tensors_are_found_unless_nobody_asks_for_tensors() -> None:
    """Without them, the file need not be read as a whole."""
    content = bytearray(saved())
    content[content.index(torch.ones(100).numpy().tobytes()) + 50] ^= 1
    assert "CRC" in str(find_damage(io.BytesIO(content)))
    assert find_damage(io.BytesIO(content), of_tensors=False) is None


def test_what_torch_never_writes_is_damage() -> None:
    """Such as records that are compressed, which torch would read otherwise than zipfile does."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"0" * 100)
    assert "compressed" in str(find_damage(file))
