"""Files that are whole or untouched, and what may be stored in them."""

from __future__ import annotations

import collections
import datetime
import enum
import io
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pa_core.errors import CheckpointError
from pa_core.storage import atomic_write, ensure_plain


def _write(content: bytes) -> Callable[[BinaryIO], object]:
    return lambda file: file.write(content)


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_content_replaces_what_was_there(tmp_path: Path) -> None:
    """The file holds what was written last, and nothing else is left in the folder."""
    path = tmp_path / "a" / "b" / "model.pt"

    atomic_write(path, _write(b"first, and longer"))
    atomic_write(str(path), _write(b"second"))

    assert path.read_bytes() == b"second"
    assert _names(path.parent) == ["model.pt"]


@pytest.mark.parametrize("error", [RuntimeError("full"), KeyboardInterrupt(), SystemExit(1)])
def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    """Whatever ends the writing, the old file is whole and the half-written one is gone."""
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")

    def fail_halfway(file: BinaryIO) -> None:
        file.write(b"new" * 100_000)
        raise error

    with pytest.raises(type(error)):
        atomic_write(path, fail_halfway)

    assert path.read_bytes() == b"old"
    assert _names(tmp_path) == ["model.pt"]


def test_what_cannot_be_pickled_leaves_the_old_file(tmp_path: Path) -> None:
    """A checkpoint that fails in the middle of torch.save does not cost the last good one."""
    path = tmp_path / "model.pt"
    atomic_write(path, lambda file: torch.save({"epoch": 1}, file))

    with pytest.raises(Exception, match="pickle"):
        atomic_write(path, lambda file: torch.save({"epoch": 2, "broken": lambda: None}, file))

    assert torch.load(path, weights_only=True) == {"epoch": 1}
    assert _names(tmp_path) == ["model.pt"]


def test_a_process_killed_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    """Even when nobody can clean up, the file under the name is the old one, whole."""
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")
    script = (
        "import sys, time\n"
        "from pa_core.storage import atomic_write\n"
        "def write(file):\n"
        "    file.write(b'new' * 100_000)\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(60)\n"
        "atomic_write(sys.argv[1], write)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)

    assert path.read_bytes() == b"old"
    leftover = [name for name in _names(tmp_path) if name != "model.pt"]
    assert all(name.startswith(".model.pt.") and name.endswith(".tmp") for name in leftover)


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    """Who reads while the file is replaced again and again sees one of the versions."""
    path = tmp_path / "model.pt"
    size = 200_000
    atomic_write(path, _write(b"0" * size))
    script = (
        "import sys\n"
        "from pa_core.storage import atomic_write\n"
        "for round in range(1, 40):\n"
        f"    atomic_write(sys.argv[1], lambda file: file.write(str(round % 10).encode() * {size}))\n"
    )
    seen: set[bytes] = set()
    with subprocess.Popen([sys.executable, "-c", script, str(path)]) as process:
        while process.poll() is None:
            content = path.read_bytes()
            assert len(content) == size
            seen.update(content[i : i + 1] for i in (0, size // 2, size - 1))
            assert content == content[:1] * size
            time.sleep(0.001)

    assert process.returncode == 0
    assert path.read_bytes() == b"9" * size
    assert seen


def test_content_reaches_the_disk_before_it_takes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order that survives a power cut: content, then the name, then the folder."""
    calls: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        content = b"" if is_folder else next(tmp_path.glob(".*.tmp")).read_bytes()
        calls.append("folder" if is_folder else f"file with {content!r}")
        real_fsync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        calls.append(f"replace {target.name}")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    atomic_write(tmp_path / "model.pt", _write(b"new"))

    assert calls == ["file with b'new'", "replace model.pt", "folder"]


def test_a_name_that_cannot_be_taken_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure after the writing cleans up as well."""

    def replace(self: Path, target: Path) -> Path:
        raise PermissionError(f"{self} may not become {target}")

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(PermissionError):
        atomic_write(tmp_path / "model.pt", _write(b"new"))

    assert _names(tmp_path) == []


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    """A link from the project to a large disk keeps its meaning."""
    (tmp_path / "disk").mkdir()
    link = tmp_path / "model.pt"
    link.symlink_to(tmp_path / "disk" / "weights.pt")

    atomic_write(link, _write(b"new"))

    assert link.is_symlink()
    assert (tmp_path / "disk" / "weights.pt").read_bytes() == b"new"
    assert _names(tmp_path / "disk") == ["weights.pt"]


def test_only_files_are_replaced(tmp_path: Path) -> None:
    """A folder or a device under the name is refused before anything is written, and stays."""
    (tmp_path / "model.pt").mkdir()
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(CheckpointError, match=r"model\.pt, a folder"):
        atomic_write(tmp_path / "model.pt", _write(b"new"))
    with pytest.raises(CheckpointError, match="pipe, a device or pipe"):
        atomic_write(tmp_path / "pipe", _write(b"new"))

    assert _names(tmp_path) == ["model.pt", "pipe"]


def test_files_are_as_readable_as_any_other(tmp_path: Path) -> None:
    """The permissions are those of an ordinary new file, so that colleagues can read a checkpoint."""
    (tmp_path / "ordinary").write_bytes(b"")
    atomic_write(tmp_path / "model.pt", _write(b"new"))

    assert (tmp_path / "model.pt").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


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


def _with_attribute(value: Any, attribute: object) -> Any:
    value.attribute = attribute
    return value


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
    [
        _function,
        np.float64(1.0),
        _Colour.RED,
        _Text("x"),
        frozenset({1}),
        range(3),
        Path("x"),
        nn.Linear(1, 1),
    ]
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(_hashable, inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4).map(collections.OrderedDict)
        | st.sets(_hashable, max_size=4)
        | st.dictionaries(_hashable, st.integers(), max_size=4).map(collections.Counter)
        | inner.map(lambda attribute: _with_attribute(collections.OrderedDict[str, int](), attribute))
        | inner.map(lambda attribute: _with_attribute(torch.ones(2), attribute))
    )


def _attributes(value: object) -> list[tuple[str, Any]]:
    return list(vars(value).items())


def _same(first: Any, second: Any) -> bool:
    """Compare in depth: types, values, tensors and attributes."""
    if type(first) is not type(second):
        return False
    if isinstance(first, Tensor):
        equal = first.dtype == second.dtype and first.equal(second)
    elif type(first) in (dict, collections.OrderedDict):
        equal = _same(tuple(first.items()), tuple(second.items()))
    elif type(first) in (list, tuple):
        equal = len(first) == len(second) and all(map(_same, first, second))
    else:
        equal = first == second
    if equal and type(first) in (Tensor, nn.Parameter, collections.OrderedDict):
        return _same(_attributes(first), _attributes(second))
    return equal


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
        assert _same(_saved_and_loaded(obj), obj)


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
    ([_with_attribute(torch.ones(2), _function)], "checkpoint_kwargs[0].attribute: function"),
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


def test_states_of_real_training_are_accepted() -> None:
    """Models, optimizers and torch's schedulers can be saved as they are."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    schedulers: list[torch.optim.lr_scheduler.LRScheduler] = [
        torch.optim.lr_scheduler.StepLR(optimizer, 2),
        torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4]),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
    ]
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedulers": [scheduler.state_dict() for scheduler in schedulers],
        "rng": torch.get_rng_state(),
    }

    ensure_plain(state, "checkpoint")

    assert _same(_saved_and_loaded(state)["model"], state["model"])


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
    ("value", "advice"),
    [
        (np.float64(1.0), ".item() of a numpy number"),
        (frozenset({1}), "Convert the frozenset"),
        (_function, "its state_dict(), its arguments or its name"),
    ],
)
def test_the_refusal_says_what_to_store_instead(value: object, advice: str) -> None:
    """The message has a way out for the kind of object that was met."""
    with pytest.raises(CheckpointError) as caught:
        ensure_plain([value], "x")

    assert advice in str(caught.value)
