"""Errors that name the problem, the given value, the expected value and the action to take."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typing_extensions import override

from pa_distributed import without_secrets


def safe_cause(error: BaseException, url: str) -> BaseException | None:
    """Return an error for use as a cause, or None if its traceback could show secret parts of a URL.

    Args:
        error: The error of a library.
        url: The URL that the error is about.
    """
    return error if without_secrets(url) == url else None


class ExplainedError(Exception):
    """Describe a problem together with the given value, the expected value and the action to take.

    It is the base of the errors of this package; your own errors may derive from it. If the first sentence explains
    everything, for example that a number is out of its range, leave out the other parts. The parts are attributes, and
    also in ``args``, so that the error survives pickling between processes. Passwords and queries in URLs are replaced
    by ``***``.

    Args:
        problem: A sentence that names the problem.
        given: The found value, as text, with the name of the argument. The default is an empty text, which is not
            shown.
        expected: A description of a correct value, if the sentence does not contain it. Not shown by default.
        do: The action that solves the problem. Not shown by default.

    Attributes:
        problem: The sentence that names the problem.
        given: The found value, or an empty text.
        expected: The description of a correct value, or an empty text.
        do: The action that solves the problem, or an empty text.

    Example:
        >>> print(ExplainedError("The bag is empty.", given="0 apples", expected="some", do="Buy an apple."))
        The bag is empty.
          given:    0 apples
          expected: some
          do:       Buy an apple.
    """

    __module__ = "pa_checkpoint"  # tracebacks show the public name

    def __init__(self, problem: str, given: str = "", expected: str = "", do: str = "") -> None:
        problem, given, expected, do = map(without_secrets, (problem, given, expected, do))
        super().__init__(problem, given, expected, do)
        self.problem = problem
        self.given = given
        self.expected = expected
        self.do = do

    @override
    def __str__(self) -> str:
        parts = (("given:   ", self.given), ("expected:", self.expected), ("do:      ", self.do))
        return "\n".join([self.problem, *(f"  {name} {text}" for name, text in parts if text)])


class CheckpointError(ExplainedError, RuntimeError):
    """Report that a checkpoint cannot be written or read.

    Typical causes are a full disk, a value that cannot be stored, and a damaged file. Catch it to continue training
    although a save has failed, or to try an older checkpoint.

    Args:
        problem: A sentence that names the problem.
        given: The found value, as text. Not shown if empty.
        expected: A description of a correct value. Not shown if empty.
        do: The action that solves the problem. Not shown if empty.

    Example:
        >>> import tempfile
        >>> from pa_checkpoint import save
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     try:
        ...         save(f"{folder}/step_1", {"callback": print})
        ...     except CheckpointError as error:
        ...         print(error.given)
        callback: builtin_function_or_method <built-in function print>
    """

    __module__ = "pa_checkpoint"  # tracebacks show the public name


class FolderInUseError(CheckpointError):
    """Report that a process that is still alive saves its checkpoints to the same folder.

    ``FolderLock`` raises it. The message names the other process and its machine.

    Example:
        >>> import tempfile
        >>> from pa_checkpoint import FolderLock
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     try:
        ...         with FolderLock(folder):
        ...             print("training")
        ...     except FolderInUseError as error:
        ...         raise SystemExit(str(error))
        training
    """

    __module__ = "pa_checkpoint"  # tracebacks show the public name


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """Report that there is no checkpoint at a path.

    It is also a ``FileNotFoundError``. Catch it to begin a new run where a run might be resumed.

    Example:
        >>> from pa_checkpoint import load
        >>> try:
        ...     step = load("no/such/checkpoint")["step"]
        ... except CheckpointNotFoundError:
        ...     step = 0
        >>> step
        0
    """

    __module__ = "pa_checkpoint"  # tracebacks show the public name

    def __init__(self, problem: str, given: str = "", expected: str = "", do: str = "") -> None:
        super().__init__(problem, given, expected, do)
        # OSError takes several arguments for a number, a text and the name of a file.
        self.args: tuple[Any, ...] = (self.problem, self.given, self.expected, self.do)
        self.errno: int | None = errno.ENOENT
        self.strerror: str | None = self.problem
        self.filename: str | None = None


NOT_OF_THE_FILE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The errors of a process that lacks resources to open or read a file; the file itself may be intact."""


def damage(path: Path, found: str, expected: str = "the written content") -> CheckpointError:
    """Return the error for a file that differs from the manifest or from the format.

    Args:
        path: The file.
        found: The found content in words.
        expected: The expected content in words.
    """
    return CheckpointError(
        "The checkpoint is damaged.",
        given=f"{path}: {found}",
        expected=expected,
        do="Use another checkpoint, such as the one before it.",
    )


def written_out(value: object, write: Callable[[object], str] = repr) -> str:
    """Return the ``repr`` of any value, or its type if Python does not write it out.

    Args:
        value: The value. It may be, or contain, an integer of thousands of digits.
        write: ``repr``, or ``reprlib.repr`` for a short text.
    """
    try:
        return write(value)
    except ValueError:
        return f"<{type(value).__name__} with an integer of thousands of digits>"
