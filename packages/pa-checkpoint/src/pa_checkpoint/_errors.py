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
    """An error that states the problem, the given value, the expected value and the action to take.

    No function raises this class itself. It is the base of ``CheckpointError`` and of all other errors of this package,
    and your own errors may derive from it: the message then has the same form. It derives from ``Exception`` alone, so
    ``except ValueError`` catches it only if your class derives from ``ValueError`` as well.

    ``str(error)`` is the problem, followed by a line for each further part that is not empty. If the first sentence
    explains everything, for example that a number is out of its range, leave out the other parts. The parts are
    attributes, and also in ``args``, so that the error survives pickling between processes. Passwords and queries in
    URLs are replaced by ``***`` in all parts.

    Args:
        problem: A sentence that names the problem.
        given: The found value, as text, with the name of the argument. The default is an empty text, which is not
            shown.
        expected: A description of a correct value. The default is an empty text, which is not shown, since the sentence
            often contains the description already.
        do: The action that solves the problem. The default is an empty text, which is not shown.

    Attributes:
        problem: The sentence that names the problem.
        given: The found value, or an empty text.
        expected: The description of a correct value, or an empty text.
        do: The action that solves the problem, or an empty text.

    Example:
        >>> from pa_checkpoint import ExplainedError
        >>> class StockError(ExplainedError, ValueError):
        ...     pass
        >>> try:
        ...     raise StockError("The bag is empty.", given="0 apples", expected="some", do="Buy an apple.")
        ... except ValueError as error:
        ...     print(error)
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
    r"""A checkpoint cannot be written, read, listed or removed.

    Nearly all functions and methods of this package raise it, for example ``save``, ``load``, ``verify``,
    ``Writer.save``, ``Writer.wait``, ``Folder.keep`` and ``RemoteFolder.upload``. Typical causes are a full disk, a
    value that cannot be stored, a damaged file, and an object store that cannot be reached. Catch it to continue
    training although a save has failed, or to try an older checkpoint.

    It derives from ``RuntimeError``, so ``except RuntimeError`` catches it, but ``except ValueError`` and ``except
    OSError`` do not. The subclass ``CheckpointNotFoundError`` is also an ``OSError``.

    You may also raise it yourself: ``Folder.newest_readable`` tries the next older checkpoint when your function raises
    it.

    Args:
        problem: A sentence that names the problem.
        given: The found value, as text, for example the path of the damaged file. The default is an empty text, which
            is not shown.
        expected: A description of a correct value. The default is an empty text, which is not shown.
        do: The action that solves the problem. The default is an empty text, which is not shown.

    Attributes:
        problem: The sentence that names the problem.
        given: The found value, or an empty text.
        expected: The description of a correct value, or an empty text.
        do: The action that solves the problem, or an empty text.

    Example:
        >>> import tempfile
        >>> from pa_checkpoint import CheckpointError, save
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     try:
        ...         save(f"{folder}/step_1", {"callback": print})
        ...     except CheckpointError as error:
        ...         print(error.problem, error.given, sep="\n")
        This entry cannot be stored in a checkpoint.
        callback: builtin_function_or_method <built-in function print>
    """

    __module__ = "pa_checkpoint"  # tracebacks show the public name


class FolderInUseError(CheckpointError):
    """Another process, which is still alive, saves its checkpoints to the same folder.

    ``FolderLock(folder)`` raises it after a wait of three seconds. The message names the other process, its machine and
    the time at which it locked the folder. Wait for that process, end it, or choose another folder; do not delete the
    lock file while the process runs.

    It is a ``CheckpointError``, and therefore a ``RuntimeError``; ``except ValueError`` and ``except OSError`` do not
    catch it.

    Args:
        problem: A sentence that names the problem.
        given: The folder, and the process that uses it. The default is an empty text, which is not shown.
        expected: A description of a correct value. The default is an empty text, which is not shown.
        do: The action that solves the problem. The default is an empty text, which is not shown.

    Attributes:
        problem: The sentence that names the problem.
        given: The folder, and the process that uses it.
        expected: Empty when ``FolderLock`` raises the error.
        do: The action that solves the problem.

    Example:
        >>> import tempfile
        >>> from pa_checkpoint import FolderInUseError, FolderLock
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
    """There is no checkpoint at a path or in an object store.

    ``load``, ``verify`` and ``RemoteFolder.upload`` raise it if there is no directory at the path. ``compare`` also
    raises it for a folder without a readable checkpoint. The methods of ``RemoteFolder`` raise it for a checkpoint that
    the store does not have, or that was removed during the request. Catch it to begin a new run if there is none to
    resume. A directory without a manifest is a damaged checkpoint, for which ``load`` raises a plain
    ``CheckpointError``.

    It is a ``CheckpointError`` and a ``FileNotFoundError``, so ``except RuntimeError``, ``except FileNotFoundError``
    and ``except OSError`` catch it; ``except ValueError`` does not. ``errno`` is ``errno.ENOENT``, ``strerror`` is the
    problem, and ``filename`` is None because the path is in ``given``.

    Args:
        problem: A sentence that names the problem.
        given: The path or URL. The default is an empty text, which is not shown.
        expected: A description of a correct value. The default is an empty text, which is not shown.
        do: The action that solves the problem. The default is an empty text, which is not shown.

    Attributes:
        problem: The sentence that names the problem.
        given: A text that contains the path or URL.
        expected: The description of a correct value, or an empty text.
        do: The action that solves the problem, or an empty text.

    Example:
        >>> from pa_checkpoint import CheckpointNotFoundError, load
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
    """Return the ``repr`` of any value, or its type if Python cannot write it out.

    Args:
        value: The value. It may be, or contain, an integer of thousands of digits.
        write: ``repr``, or ``reprlib.repr`` for a short text.
    """
    try:
        return write(value)
    except ValueError:
        return f"<{type(value).__name__} with an integer of thousands of digits>"
