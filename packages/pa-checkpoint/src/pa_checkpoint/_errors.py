"""Errors that tell what was given, what was expected and what to do."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typing_extensions import override

__all__ = [
    "NOT_OF_THE_FILE",
    "CheckpointError",
    "CheckpointNotFoundError",
    "FolderInUseError",
    "InvalidArgumentError",
    "damage",
    "written_out",
]


class _Explained(Exception):
    def __init__(self, problem: str, given: str = "", expected: str = "", do: str = "") -> None:
        super().__init__(problem, given, expected, do)
        self.problem = problem
        self.given = given
        self.expected = expected
        self.do = do

    @override
    def __str__(self) -> str:
        parts = (("given:   ", self.given), ("expected:", self.expected), ("do:      ", self.do))
        return "\n".join([self.problem, *(f"  {name} {text}" for name, text in parts if text)])


class CheckpointError(_Explained, RuntimeError):
    """A checkpoint cannot be written so that it loads again, or the one on disk is not whole.

    Args:
        problem: One sentence that says what is wrong.
        given: What was found.
        expected: What would have been right, where the sentence does not say so.
        do: What the reader can do about it.

    Example:
        >>> print(CheckpointError("The bag is empty.", given="0 apples", expected="some", do="Buy an apple."))
        The bag is empty.
          given:    0 apples
          expected: some
          do:       Buy an apple.
    """

    __module__ = "pa_checkpoint"  # tracebacks name what one imports


class InvalidArgumentError(_Explained, ValueError):
    """An argument has a value that cannot work."""


class FolderInUseError(CheckpointError):
    """Another process, which is alive, saves its checkpoints into the same folder.

    Example:
        >>> issubclass(FolderInUseError, CheckpointError)
        True
    """

    __module__ = "pa_checkpoint"  # tracebacks name what one imports


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no checkpoint where one was to be read.

    Example:
        >>> issubclass(CheckpointNotFoundError, CheckpointError), issubclass(CheckpointNotFoundError, FileNotFoundError)
        (True, True)
    """

    __module__ = "pa_checkpoint"  # tracebacks name what one imports

    def __init__(self, problem: str, given: str = "", expected: str = "", do: str = "") -> None:
        super().__init__(problem, given, expected, do)
        # OSError takes several arguments for a number, a text and the name of a file.
        self.args: tuple[Any, ...] = (problem, given, expected, do)
        self.errno: int | None = errno.ENOENT
        self.strerror: str | None = problem
        self.filename: str | None = None


NOT_OF_THE_FILE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What the process lacks when it opens or reads a file, which may be whole."""


def damage(path: Path, found: str, expected: str = "what was written") -> CheckpointError:
    """Return the error for a file that is not as the manifest, or the format, says.

    Args:
        path: The file.
        found: What is in it.
        expected: What should be.
    """
    return CheckpointError(
        "The checkpoint is damaged.",
        given=f"{path}: {found}",
        expected=expected,
        do="Use another checkpoint, such as the one before it.",
    )


def written_out(value: object, write: Callable[[object], str] = repr) -> str:
    """Return the ``repr`` of a value of any kind, or its type where Python does not write it out.

    Args:
        value: It may be an integer of thousands of digits, or hold some.
        write: ``repr``, or ``reprlib.repr`` for a short one.
    """
    try:
        return write(value)
    except ValueError:
        return f"<{type(value).__name__} with an integer of thousands of digits>"
