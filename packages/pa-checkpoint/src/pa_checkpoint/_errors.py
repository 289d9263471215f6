"""Errors that tell what was given, what was expected and what to do."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from typing_extensions import override

_USER = re.compile(r"(?<=://)(?:[^\s/?#]*|[^\s/?#:@]*:(?!:|\d{1,5}(?:[/?#\s]|$))[^\s?#]*)@")
_QUERY = re.compile(r"(://[^\s?#]*[?#])\S*?=\S*?(?=['\")\]}>,;:.]*(?:\s|$))")
_SHORTEST_SECRET = 3
"""Characters of a part of a URL that is replaced wherever it is: shorter ones are found in any text."""


def without_secrets(text: str) -> str:
    """Return a text whose URLs have neither users and passwords nor queries, which may hold signatures and tokens.

    Args:
        text: A message.

    Example:
        >>> without_secrets("https://me:secret@host/a.tar?signature=1f3a: not found")
        'https://***@host/a.tar?***: not found'
    """
    return _QUERY.sub(r"\1***", _USER.sub("***@", text))


def message_of(error: BaseException, url: str) -> str:
    """Return the kind and the text of an error of a library, without what of a URL is secret.

    Args:
        error: The error, whose text may have parts of the URL.
        url: The URL that it is about.
    """
    text = without_secrets(f"{type(error).__name__}: {error}")
    for secret in sorted(_secrets_in(url), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def safe_cause(error: BaseException, url: str) -> BaseException | None:
    """Return an error as the cause of another one; None if its traceback could show what of a URL is secret.

    Args:
        error: The error of a library.
        url: The URL that it is about.
    """
    return error if without_secrets(url) == url else None


def _secrets_in(url: str) -> set[str]:
    users = {part for user in _USER.findall(url) for part in (user, *user.rstrip("@").split(":")[1:])}
    queries = {part for match in _QUERY.finditer(url) for part in re.split("[?#&=]", match[0].removeprefix(match[1]))}
    return {part for secret in users | queries for part in (secret, unquote(secret)) if len(part) >= _SHORTEST_SECRET}


class ExplainedError(Exception):
    """Base of errors that tell what was given, what was expected and what to do.

    Where the sentence says it all, as for a number that is out of its range, the other parts are left out. The parts
    are kept as attributes and in ``args``, so that the error survives the way back from another process.

    Args:
        problem: One sentence that says what is wrong.
        given: What was found, as text; name the argument as well as its value.
        expected: What would have been right, where the sentence does not say so.
        do: What the reader can do about it.

    Example:
        >>> print(ExplainedError("The bag is empty.", given="0 apples", expected="some", do="Buy an apple."))
        The bag is empty.
          given:    0 apples
          expected: some
          do:       Buy an apple.
    """

    __module__ = "pa_checkpoint"  # tracebacks name what one imports

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
        self.args: tuple[Any, ...] = (self.problem, self.given, self.expected, self.do)
        self.errno: int | None = errno.ENOENT
        self.strerror: str | None = self.problem
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
