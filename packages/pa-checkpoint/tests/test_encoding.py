"""Values that are taken apart into JSON and tensors, and built again."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from torch import Tensor, nn

from pa_checkpoint import CheckpointError, load
from pa_checkpoint._checkpoint import write_checkpoint
from pa_checkpoint._encoding import decode, encode
from tests.support.sharded_states import write_sharded_state
from tests.support.states import same, summary, with_attribute

_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
    torch.int64, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip


def _back(value: object) -> Any:
    """Encode, go through what files keep, the text of JSON and the values of tensors, and decode."""
    encoded = encode(value, "value")
    text = json.dumps(encoded.document, ensure_ascii=False, allow_nan=False).encode()
    tensors = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in encoded.tensors.items()}
    return decode(json.loads(text), tensors)


def _tensor_of(dtype: torch.dtype, shape: list[int], content: bytes) -> Tensor:
    """A tensor of any bits, NaNs of every kind included; booleans of 0 and 1 only."""
    count = int(torch.Size(shape).numel()) * dtype.itemsize
    repeated = bytearray((content * (count // len(content) + 1))[:count] if dtype != torch.bool else count)
    return torch.frombuffer(repeated, dtype=dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


_SHARED = [1.0]
_floats = st.floats().map(lambda x: float("nan") if x != x else x)  # noqa: PLR0124 - NaN
_single = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None))
    | st.binary()
    | st.sampled_from([torch.float32, torch.device("cuda", 1), torch.Size([2, 3])])
)
_hashable = _single | st.lists(_single | st.tuples(_single), max_size=3).map(tuple)
_tensors = st.builds(
    _tensor_of, st.sampled_from(_DTYPES), st.lists(st.integers(0, 3), max_size=4), st.binary(min_size=1, max_size=64)
)
_arrays = st_numpy.arrays(
    st_numpy.boolean_dtypes()
    | st_numpy.integer_dtypes(endianness="=")
    | st_numpy.unsigned_integer_dtypes(endianness="=")
    | st_numpy.floating_dtypes(endianness="=", sizes=(16, 32, 64))
    | st_numpy.complex_number_dtypes(endianness="=", sizes=(64, 128)),
    st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
_complex = st.builds(complex, _floats, _floats)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keyed = st.dictionaries(_hashable, inner, max_size=4)
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.sets(_hashable, max_size=4)
        | keyed
        | st.dictionaries(st.text(st.characters(codec=None)) | st.just("$tensor"), inner, max_size=4)
        | keyed.map(collections.OrderedDict)
        | keyed.map(collections.Counter)
        | st.tuples(keyed, inner).map(lambda pair: with_attribute(collections.OrderedDict(pair[0]), pair[1]))
    )


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of the strategy, when it draws too much
@given(value=st.recursive(_hashable | _floats | _complex | _tensors | _arrays, _containers, max_leaves=12))
@example({"$tensor": 1})
@example({0: "number", "0": "text", (0, "0"): "pair", b"0": "bytes", None: "nothing"})
@example([10**5000, -(2**53) - 1, 2**53, -0.0, float("-inf"), "\ud83d\ude00", "\U0001f600", "\udc80", "", b""])
@example(collections.Counter("abracadabra"))
@example([_SHARED, {"again": _SHARED}])  # no cycle
def test_what_is_accepted_comes_back_exactly(value: object) -> None:
    """Types, order, values, shapes and strides are those of the original, to the last bit."""
    assert same(_back(value), value)


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_every_layout_of_every_dtype_comes_back(dtype: torch.dtype) -> None:
    """Transposed, strided, channels-last, sliced and empty tensors keep their strides; views keep their values."""
    whole = _tensor_of(dtype, [4, 3, 2, 6], bytes(range(1, 120)))
    layouts = {
        "transposed": whole.transpose(0, 3),
        "sliced": whole[1:3, ::2, :, 1::3],
        "column": whole[:, :, :, 0],
        "channels last": whole.contiguous(memory_format=torch.channels_last),
        "one channel": whole[:, :1].contiguous(memory_format=torch.channels_last),
        "no elements": whole.transpose(0, 3)[:, :0],
        "one element": whole[0, 0, 0, 0],
    }

    assert same(_back(layouts), layouts)


def test_lazily_conjugated_and_negated_tensors_keep_their_values(tmp_path: Path) -> None:
    """What torch has only marked as conjugated or negated is stored with the values that it shows."""
    value = torch.tensor([1 + 2j, 3 - 4j])
    assert value.conj().is_conj()
    assert value.conj().imag.is_neg()
    values = [value, value.conj(), value.conj().imag, value.conj()[1].imag]

    write_checkpoint(tmp_path / "state", {"values": values}, summary())

    back = load(tmp_path / "state").parts["values"]
    assert [tensor.tolist() for tensor in back] == [[1 + 2j, 3 - 4j], [1 - 2j, 3 + 4j], [-2, 4], 4]


def test_overlapping_elements_get_memory_of_their_own() -> None:
    """An expanded tensor comes back with the same values, each in its own place."""
    expanded = torch.arange(3.0).expand(2, 3)
    overlapping = torch.arange(6.0).as_strided((4, 3), (1, 1))

    back = _back([expanded, overlapping])

    assert back[0].equal(expanded)
    assert back[1].equal(overlapping)
    assert all(tensor.is_contiguous() for tensor in back)


def test_tied_weights_are_stored_once_and_come_back_tied() -> None:
    """Tensors with one memory and layout are one; a different view of the same memory is another."""
    weight = nn.Parameter(torch.randn(3, 3))
    array = np.ones(2)
    value = {
        "embedding": weight,
        "head": weight.detach(),
        "transposed": weight.T,
        "empty": [torch.empty(0), torch.empty(0)],
        "arrays": [array, array],
    }

    encoded = encode(value, "model")
    back = decode(encoded.document, encoded.tensors)

    assert list(encoded.tensors) == [
        "model/embedding", "model/transposed", "model/empty/0", "model/empty/1", "model/arrays/0"
    ]  # fmt: skip
    assert type(back["embedding"]) is Tensor
    assert not back["embedding"].requires_grad
    assert back["embedding"] is back["head"]
    assert back["embedding"].equal(weight)
    assert back["transposed"].equal(weight.T)
    back["arrays"][0][0] = 7.0
    assert back["arrays"][1][0] == 7.0


def test_names_of_tensors_are_paths() -> None:
    """A reader of the file finds a tensor by where it stood; names that would be equal are told apart."""
    value = {"a/b": torch.ones(1), "a": {"b": torch.ones(1)}, 0: (torch.ones(1),), "\udc80": torch.ones(1)}

    names = list(encode(value, "state").tensors)

    assert names == ["state/a/b", "state/a/b#1", "state/0/0", "state/\\udc80"]
    assert list(encode(torch.ones(1), "__metadata__").tensors) != ["__metadata__"]


def test_numbers_of_numpy_become_numbers_of_python() -> None:
    """A metric that numpy computed is stored as the number that it is."""
    value = [np.float64(0.1), np.float32(0.5), np.int64(-3), np.bool_(True), np.str_("x"), np.complex64(1j)]

    assert same(_back(value), [0.1, 0.5, -3, True, "x", 1j])


def test_arrays_in_any_layout_come_back() -> None:
    """Read-only, reversed and column-major arrays keep their values, and can be written to afterwards."""
    whole = np.arange(12.0).reshape(3, 4)
    fixed = whole.copy()
    fixed.flags.writeable = False

    back = _back([fixed, whole[::-1, ::2], np.asfortranarray(whole), np.array(3.0)])

    expected = [whole, whole[::-1, ::2], whole, np.array(3.0)]
    assert all(np.array_equal(first, second) for first, second in zip(back, expected, strict=True))
    assert all(array.flags.writeable for array in back)
    assert back[2].flags.f_contiguous


def test_states_of_real_training_come_back() -> None:
    """Models, with the versions of their modules, optimizers and schedulers can be stored as they are."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    value = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(legacy=False),
    }

    back = _back(value)

    assert same(back, value)
    assert back["model"]._metadata["1"] == {"version": 2}
    model.load_state_dict(back["model"])
    optimizer.load_state_dict(back["optimizer"])
    scheduler.load_state_dict(back["scheduler"])


class _Text(str):
    __slots__ = ()


class _TensorSubclass(Tensor):
    pass


def _function() -> None:
    """Something that a training state cannot hold."""


def _cycle() -> list[object]:
    cycle: list[object] = [1]
    cycle.append({"again": cycle})
    return cycle


def _deep() -> list[object]:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    return deep


def _freed() -> Tensor:
    tensor = torch.ones(2)
    tensor.untyped_storage().resize_(0)
    return tensor


_REFUSED: list[tuple[object, str, str]] = [
    ({"metrics": [1, 2, _function]}, "state['metrics'][2]: function", "its state_dict()"),
    ({"a": {1: (torch.ones(1), nn.Linear)}}, "state['a'][1][1]: type", "its state_dict()"),
    (with_attribute(collections.OrderedDict({"a": 1}), _function), "state.attribute: function", "arguments or name"),
    ([_Text("x")], "state[0]: _Text 'x'", "Convert the _Text"),
    ([frozenset({1})], "state[0]: frozenset", "Convert the frozenset"),
    ([collections.defaultdict[str, int](int)], "state[0]: defaultdict", "Convert the defaultdict"),
    ({frozenset({1}): 1}, "state, a key of it: frozenset", "Convert the frozenset"),
    ({torch.ones(1): 1}, "state, a key of it: a tensor", "Use numbers or strings as keys"),
    ({"x": {torch.ones(1)}}, "state['x'], a key of it: a tensor", "a list instead of a set"),
    ([torch.ones(2).as_subclass(_TensorSubclass)], "state[0]: _TensorSubclass", "Convert the _TensorSubclass"),
    ([torch.ones(2, device="meta")], "state[0]: a tensor of dtype torch.float32", "Store it as dense tensors"),
    ([torch.ones(2).to_sparse()], "layout torch.sparse_coo", "Store it as dense tensors"),
    ([torch.empty(2, dtype=torch.float8_e8m0fnu)], "dtype torch.float8_e8m0fnu", ".view(torch.uint8)"),
    ([_freed()], "state[0]: a tensor", "Store it as dense tensors"),
    ([np.array([None])], "state[0]: an array of object", ".tolist()"),
    ([np.array([1], dtype=">i4")], "state[0]: an array of >i4", ".astype"),
    ([np.array(["x"])], "state[0]: an array of <U1", ".tolist()"),
    ([np.datetime64("2020-01-01")], "state[0]: datetime64", "numpy.datetime64 makes it again"),
    ([np.longdouble(1)], "state[0]: longdouble", "store values to build it from"),
    ([np.random.default_rng(0)], "state[0]: Generator", "its state_dict()"),
    (_cycle(), "state[1]['again']: a list that contains itself", "without the cycle"),
    (_deep(), "nested 100 levels deep", "less deeply nested"),
]


@pytest.mark.parametrize(("value", "given", "advice"), _REFUSED)
def test_what_cannot_be_stored_is_refused_by_its_path(value: object, given: str, advice: str) -> None:
    """The message leads to the entry and says what to store instead."""
    with pytest.raises(CheckpointError) as caught:
        encode(value, "state")

    assert given in caught.value.given
    assert advice in caught.value.do


_WRONG_DOCUMENTS: list[Any] = [
    {"$tensor": "nothing"},
    {"$of_tomorrow": 1},
    {"$dtype": "nn"},
    {"$dtype": "load"},
    {"$int": "many"},
    {"$tuple": 1},
    {"$dict": [[1]]},
    {"$bytes": "%"},
    {"$dtype": "_dynamo"},
    {"$tuple": [1], "attributes": {"a": 1}},
    {"$tensor": "weight", "strides": [-1]},
    {"$tensor": "weight", "strides": [0]},
    {"$tensor": "weight", "strides": [1, 1]},
    {"$tensor": "weight", "strides": 1},
]


@pytest.mark.parametrize("document", _WRONG_DOCUMENTS)
def test_a_document_of_another_kind_is_refused(tmp_path: Path, document: Any) -> None:
    """Whatever is wrong with a document, it is one kind of error, which names the part."""
    files = {"model.safetensors": {"weight": torch.ones(2)}}
    write_sharded_state(tmp_path / "step_1", {"model": {"layers": [0, document]}}, files)
    with pytest.raises(CheckpointError, match=r"state\.json: model, which raised "):
        load(tmp_path / "step_1")


def test_a_narrow_view_of_much_memory_comes_back_without_the_gaps() -> None:
    """With its values, in little memory."""
    view = torch.arange(2.0**22).view(-1, 2**21)[:, 0]
    encoded = encode(view, "view")
    back = decode(encoded.document, {name: tensor.contiguous() for name, tensor in encoded.tensors.items()})
    assert (back.tolist(), back.stride()) == ([0.0, 2.0**21], (1,))
