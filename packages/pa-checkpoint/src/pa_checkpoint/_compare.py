"""Two checkpoints compared, entry by entry and bit by bit."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import torch
from typing_extensions import override

from pa_checkpoint._checkpoint import Checkpoint, is_checkpoint, load
from pa_checkpoint._errors import CheckpointNotFoundError, written_out
from pa_checkpoint._folder import Folder

CLOCK: tuple[str, ...] = ("history.clock.seconds", "history.metrics.*.seconds")
"""What follows the clock in a training state of ``pa_core``, for ``compare`` to ignore."""

ANY_PROCESSES: tuple[str, ...] = (
    *CLOCK,
    "ranks",
    "run.*position.steps",
    "run.settings.gradient_accumulation_steps",
    "run.settings.num_processes",
)
"""What follows the clock and the number of processes in a training state of ``pa_core``, for ``compare`` to ignore."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first entry in which two checkpoints differ, and how; ``str`` of it is one line.

    Attributes:
        entry: Its path in the parts.
        found: What is in either, or how many elements of a tensor differ, and by how much.

    Example:
        >>> print(Difference("optimizer.param_groups.0.lr", "0.1 in the first, 0.2 in the second"))
        optimizer.param_groups.0.lr: 0.1 in the first, 0.2 in the second
    """

    entry: str
    found: str

    @override
    def __str__(self) -> str:
        return f"{self.entry}: {self.found}"


def compare(first: str | Path, second: str | Path, ignore: str | Iterable[str] = ()) -> Difference | None:
    """Return the first entry in which two checkpoints differ; None where they hold the same.

    Every bit counts: a NaN is equal to the same NaN, and -0.0 is not equal to 0.0. The order of the keys of a
    dictionary, and the summaries, do not. ``python -m pa_checkpoint`` does this on the command line.

    Args:
        first: The directory of a checkpoint, or a folder of checkpoints, which stands for the newest one.
        second: The other one.
        ignore: Paths of entries that may differ, with everything in them, such as ``"run.seed"``. In a path, ``*`` is
            any text. ``ANY_PROCESSES`` is for training states of ``pa_core``.

    Raises:
        CheckpointNotFoundError: There is no checkpoint.
        CheckpointError: One of them is damaged, or was written in a newer format.

    Example:
        >>> import tempfile
        >>> from pa_checkpoint import save
        >>> folder = tempfile.TemporaryDirectory()
        >>> paths = [Path(folder.name, name) for name in ("one", "other")]
        >>> for path, last in zip(paths, (3.0, 3.5)):
        ...     save(path, {"model": {"weight": torch.tensor([1.0, 2.0, last])}, "seconds": last})
        >>> print(compare(*paths))
        model.weight: 1 of 3 elements differs, by 0.5 at most
        >>> print(compare(*paths, ignore=["model.*"]))
        seconds: 3.0 in the first, 3.5 in the second
        >>> folder.cleanup()
    """
    return next(filter(None, compare_entries(first, second, ignore)), None)


def compare_entries(first: str | Path, second: str | Path, ignore: str | Iterable[str]) -> Generator[Difference | None]:
    """Yield for each entry how it differs, or None, in the order of the first checkpoint; arguments as above."""
    patterns = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    return _walk("", _read(first).parts, _read(second).parts, patterns)


def _read(path: str | Path) -> Checkpoint:
    if is_checkpoint(path) or not Path(path).is_dir():
        return load(path)
    if (newest := Folder(path).newest()) is None:
        given = f"{path}, a folder without one that can be read"
        raise CheckpointNotFoundError("There is no checkpoint.", given=given, do="Check the path.")
    return newest


def _walk(path: str, first: Any, second: Any, ignore: tuple[str, ...]) -> Generator[Difference | None]:
    if any(fnmatchcase(path, pattern) for pattern in ignore):
        return
    if type(first) is not type(second) or not isinstance(first, dict | list | tuple):
        yield _difference(path, first, second)
        return
    entries, others = _entries(first), _entries(second)
    for place in {**entries, **others}:
        inner = f"{path}.{place.name if isinstance(place.name, str) else _exact(place.name)}".removeprefix(".")
        yield from _walk(inner, entries.get(place, _Nothing), others.get(place, _Nothing), ignore)


class _Nothing:
    """Stands for an entry that one of the two lacks."""


class _Place(NamedTuple):
    """The key of an entry with its type, or the name of an attribute, which an entry may have as well."""

    kind: object
    name: Any


def _entries(container: Any) -> dict[_Place, Any]:
    """What is in a container by keys or positions, and the attributes that a dictionary may have."""
    items: Any = container if hasattr(container, "keys") else enumerate(container)
    attributes: dict[str, Any] = getattr(container, "__dict__", {})
    return {
        **{_Place(type(key), key): item for key, item in dict(items).items()},
        **{_Place("attribute", name): value for name, value in attributes.items()},
    }


def _difference(path: str, first: Any, second: Any) -> Difference | None:
    one, other = _shown(first), _shown(second)
    if one != other:
        return Difference(path, f"{one} in the first, {other} in the second")
    if not hasattr(first, "shape"):
        return None
    tensors = [torch.as_tensor(value).contiguous() for value in (first, second)]
    tensors = [tensor.as_strided((tensor.numel(), 1), (1, 1)) for tensor in tensors]
    bits = [tensor.view(torch.uint8) for tensor in tensors]
    differ = (bits[0] != bits[1]).any(1)
    count = int(differ.sum())
    if not count:
        return None
    exact = torch.complex128 if tensors[0].is_complex() else torch.float64
    values = [tensor[differ].to(exact) for tensor in tensors]
    most = float((values[0] - values[1]).abs().max())
    verb = "differs" if count == 1 else "differ"
    return Difference(path, f"{count} of {len(differ)} elements {verb}, by {most:.6g} at most")


def _shown(value: Any) -> str:
    """What tells a value from all others; only tensors and arrays also need their elements compared."""
    if value is _Nothing:
        return "nothing"
    kind = type(value).__name__
    if kind == "set":
        return f"{{{', '.join(sorted(map(_exact, value)))}}}"
    if hasattr(value, "shape"):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{kind} of {dtype} and shape {tuple(value.shape)}"
    return kind if isinstance(value, dict | list | tuple) else _exact(value)


def _exact(value: object) -> str:
    """The ``repr`` of a value, even for an integer that has more digits than Python writes out."""
    try:
        return repr(value)
    except ValueError:
        return hex(value) if isinstance(value, int) else written_out(value)
