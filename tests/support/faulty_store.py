"""An object store on the disk that loses, repeats, delays, truncates and corrupts, as it is told, behind fsspec."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec import AbstractFileSystem
from typing_extensions import override

__all__ = ["KINDS", "Faults", "FaultyFileSystem", "Refused", "fault_rates", "store_url", "use_faults"]

KINDS = ("refused", "refused after", "lost", "late", "repeated", "truncated", "short read", "flipped read", "slow")
"""What may become of a request; each is what some store, or what is between it and here, is known to do."""


class Refused(Exception):
    """What a client of a store raises; like many of them, of no built-in kind."""


@dataclass
class Faults:
    """What goes wrong.

    Attributes:
        rates: How probable each of ``KINDS`` is for a request that it can happen to.
        choice: What decides it.
        listing_lag: For how many requests a listing does not show what has changed.
        broken: Whether each request is refused.
        sent: The names of the objects that were written, in order.
        asked: The number of requests.
        seconds: What a slow request takes.
        dies_at: The number of the request in which the process is killed; half of an object may be written by then.
        happened: What went wrong so far.
        later: What is still to be written, and when.
        changed: What was changed when, and the size before.
    """

    rates: Mapping[str, float] = field(default_factory=dict[str, float])
    choice: random.Random = field(default_factory=lambda: random.Random(0))
    listing_lag: int = 0
    broken: bool = False
    sent: list[str] = field(default_factory=list[str])
    asked: int = 0
    seconds: float = 0.001
    dies_at: int | None = None
    happened: list[str] = field(default_factory=list[str])
    later: list[tuple[int, Path, bytes]] = field(default_factory=list[tuple[int, Path, bytes]])
    changed: dict[Path, tuple[int, int | None]] = field(default_factory=dict[Path, tuple[int, "int | None"]])

    def happens(self, kind: str) -> bool:
        """Decide whether something goes wrong now."""
        does = self.choice.random() < self.rates.get(kind, 0.0)
        if does:
            self.happened.append(kind)
        return does

    def begin_request(self) -> None:
        """Count a request, let what is late arrive, and refuse it perhaps."""
        self.asked += 1
        if self.asked == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        due = [one for one in self.later if one[0] <= self.asked]
        self.later = [one for one in self.later if one[0] > self.asked]
        for _, path, content in due:
            _write(path, content)
        if self.happens("slow"):
            time.sleep(self.seconds)
        if self.broken or self.happens("refused"):
            raise Refused("try again later")


class FaultyFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Objects in a folder of the disk; there are no folders in it that could be missing.

    Attributes:
        faults: What goes wrong in all of them.
    """

    protocol = "faulty"
    root_marker = "/"
    cachable = False
    faults: ClassVar[Faults] = Faults()

    @override
    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """List a folder, as it was a while ago where the listing lags."""
        faults = self.faults
        faults.begin_request()
        folder = _place(path)
        found = (
            {entry: entry.stat().st_size for entry in folder.iterdir() if entry.is_file()} if folder.is_dir() else {}
        )
        for changed, (when, size_before) in faults.changed.items():
            if changed.parent == folder and faults.asked - when <= faults.listing_lag:
                found.pop(changed, None)
                if size_before is not None:
                    found[changed] = size_before
        if not found:
            raise FileNotFoundError(path)
        return [{"name": str(entry), "size": size, "type": "file"} for entry, size in found.items()]

    @override
    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Tell the size of an object."""
        self.faults.begin_request()
        file = _place(path)
        if not file.is_file():
            raise FileNotFoundError(path)
        return {"name": str(file), "size": file.stat().st_size, "type": "file"}

    @override
    def put_file(self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write an object."""
        self.pipe_file(rpath, Path(lpath).read_bytes())

    @override
    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write an object, or something like it."""
        faults = self.faults
        file = _place(path)
        if faults.asked + 1 == faults.dies_at and faults.choice.random() < 0.5:
            _write(file, value[: len(value) // 2])
        faults.begin_request()
        faults.sent.append(file.name)
        faults.changed[file] = faults.asked, file.stat().st_size if file.is_file() else None
        if faults.happens("lost"):
            return
        if faults.happens("late"):
            faults.later.append((faults.asked + faults.choice.randrange(1, 6), file, value))
            return
        if faults.happens("repeated"):
            faults.later.append((faults.asked + faults.choice.randrange(1, 30), file, value))
        _write(file, value[: len(value) // 2] if faults.happens("truncated") else value)
        if faults.happens("refused after"):
            raise Refused("try again later")

    @override
    def get_file(self, rpath: str, lpath: Any = None, callback: Any = None, outfile: Any = None, **kwargs: Any) -> None:
        """Read an object into a file."""
        Path(lpath).write_bytes(self.cat_file(rpath))

    @override
    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        """Read an object, or something like it."""
        faults = self.faults
        faults.begin_request()
        content = _place(path).read_bytes()
        if faults.happens("short read"):
            return content[: len(content) // 2]
        if content and faults.happens("flipped read"):
            where = faults.choice.randrange(len(content))
            return content[:where] + bytes([content[where] ^ 1]) + content[where + 1 :]
        return content

    @override
    def rm_file(self, path: str) -> None:
        """Remove an object."""
        faults = self.faults
        faults.begin_request()
        file = _place(path)
        if not file.is_file():
            raise FileNotFoundError(path)
        faults.changed[file] = faults.asked, file.stat().st_size
        if not faults.happens("lost"):
            file.unlink()


def _place(path: str) -> Path:
    return Path(path.removeprefix("faulty://"))


def _write(file: Path, content: bytes) -> None:
    """Write an object at once, as stores do."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.parent / f".{file.name}.{random.SystemRandom().randrange(2**32)}"
    temporary.write_bytes(content)
    temporary.rename(file)


def use_faults(faults: Faults) -> Faults:
    """Let these things go wrong from now on."""
    fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
    FaultyFileSystem.faults = faults
    return faults


def store_url(folder: Path) -> str:
    """Return the URL of a folder as a store in which things go wrong."""
    return f"faulty://{folder}"


def fault_rates(kinds: Sequence[str], rate: float) -> dict[str, float]:
    """Return how probable these kinds of faults are."""
    return dict.fromkeys(kinds, rate)
