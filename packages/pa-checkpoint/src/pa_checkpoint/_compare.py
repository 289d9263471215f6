"""Comparison of two checkpoints, entry by entry and bit by bit."""

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
"""Patterns of the entries with times in a training state, which differ in equal runs.

A tuple of strings for ``compare(first, second, ignore=CLOCK)``. Use it to compare two checkpoints that the trainer of
``pa_core`` has saved on the same number of processes. Checkpoints of a custom loop need your own patterns.
``python -m pa_checkpoint`` uses it by default.
"""

ANY_PROCESSES: tuple[str, ...] = (
    *CLOCK,
    "ranks",
    "run.*position.steps",
    "run.settings.gradient_accumulation_steps",
    "run.settings.num_processes",
)
"""Patterns of the entries in a training state that depend on times or on the number of processes.

A tuple of strings for ``compare(first, second, ignore=ANY_PROCESSES)``. It contains the patterns of ``CLOCK``. Use it
to compare two checkpoints that the trainer of ``pa_core`` has saved on different numbers of processes. Checkpoints of
a custom loop need your own patterns. ``python -m pa_checkpoint --any-processes`` uses it.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first entry in which two checkpoints differ.

    ``compare`` returns it; you need not make it yourself. ``print(difference)`` shows both attributes on one line. To
    compare the remaining entries, call ``compare`` again with ``ignore=difference.entry``.

    Attributes:
        entry: The path of the entry: the name under which it was passed to ``save``, and the keys and indices below
            that, for example ``"optimizer.param_groups.0.lr"``.
        found: A text with the two values or, for a tensor, how many elements differ and the largest absolute
            difference. If a checkpoint lacks the entry, the text says ``nothing`` instead of a value.

    Example:
        >>> import tempfile
        >>> from pa_checkpoint import compare, save
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name, lr in (("first", 0.1), ("second", 0.2)):
        ...         save(f"{folder}/{name}", {"optimizer": {"param_groups": [{"lr": lr}]}})
        ...     difference = compare(f"{folder}/first", f"{folder}/second")
        >>> difference.entry, difference.found
        ('optimizer.param_groups.0.lr', '0.1 in the first, 0.2 in the second')
        >>> print(difference)
        optimizer.param_groups.0.lr: 0.1 in the first, 0.2 in the second
    """

    entry: str
    found: str

    @override
    def __str__(self) -> str:
        return f"{self.entry}: {self.found}"


def compare(first: str | Path, second: str | Path, ignore: str | Iterable[str] = ()) -> Difference | None:
    """Return the first entry in which two checkpoints differ, or None if they are equal.

    Use it to check that a run is reproducible, or that a resumed run gives the same result as an uninterrupted run. To
    check a single checkpoint for damage, use ``verify``. Every bit counts: -0.0 differs from 0.0, and a NaN equals only
    a bit-for-bit identical NaN. The order of dictionary keys and the summaries are not compared. ``python -m
    pa_checkpoint FIRST SECOND`` does the same on the command line. It ignores the entries in ``CLOCK`` unless
    ``--clock`` is passed.

    Args:
        first: The directory of a checkpoint, or a folder of checkpoints, which stands for its newest readable
            checkpoint.
        second: The directory or folder to compare with.
        ignore: One or more patterns for the entries that may differ, for example ``"run.seed"``. The path of an entry
            is the name under which it was passed to ``save``, and the keys and indices below that, joined by dots. The
            entries below a matching path are ignored, too. ``*`` in a pattern matches any text, dots included. For
            training states of ``pa_core``, pass ``CLOCK`` or ``ANY_PROCESSES``. By default nothing is ignored.

    Returns:
        The first difference, in the order of the first checkpoint, or None.

    Raises:
        CheckpointNotFoundError: There is no checkpoint at a path.
        CheckpointError: A checkpoint is damaged, or was written in a newer format.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from pa_checkpoint import compare, save
        >>> folder = tempfile.TemporaryDirectory()
        >>> paths = [Path(folder.name, name) for name in ("first", "second")]
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
    """Yield the difference of each entry, or None, in the order of the first checkpoint, as ``compare`` describes."""
    patterns = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    return _walk("", _read(first).parts, _read(second).parts, patterns)


def _read(path: str | Path) -> Checkpoint:
    """Return the checkpoint at a path, or the newest in a folder."""
    if is_checkpoint(path) or not Path(path).is_dir():
        return load(path)
    if (newest := Folder(path).newest()) is None:
        given = f"{path}, a folder without one that can be read"
        raise CheckpointNotFoundError("There is no checkpoint.", given=given, do="Check the path.")
    return newest


def _walk(path: str, first: Any, second: Any, ignore: tuple[str, ...]) -> Generator[Difference | None]:
    """Yield the differences of two values and of all entries in them."""
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
    """Stands for an entry that a checkpoint lacks."""


class _Place(NamedTuple):
    """The key of an entry with its type, or the name of an attribute, which may be the same text."""

    kind: object
    name: Any


def _entries(container: Any) -> dict[_Place, Any]:
    """Return the entries of a container by keys or positions, and the attributes of a dictionary."""
    items: Any = container if hasattr(container, "keys") else enumerate(container)
    attributes: dict[str, Any] = getattr(container, "__dict__", {})
    return {
        **{_Place(type(key), key): item for key, item in dict(items).items()},
        **{_Place("attribute", name): value for name, value in attributes.items()},
    }


def _difference(path: str, first: Any, second: Any) -> Difference | None:
    """Return the difference of two values without entries."""
    former, latter = _shown(first), _shown(second)
    if former != latter:
        return Difference(path, f"{former} in the first, {latter} in the second")
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
    """Return a text that identifies a value, except for the elements of tensors and arrays."""
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
    """Return the ``repr`` of a value, even for an integer that has more digits than Python writes out."""
    try:
        return repr(value)
    except ValueError:
        return hex(value) if isinstance(value, int) else written_out(value)
