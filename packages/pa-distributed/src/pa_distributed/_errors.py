"""Errors that tell what was given and what to do."""

from __future__ import annotations

import re
from typing import Protocol, runtime_checkable

from typing_extensions import override

__all__ = [
    "ExplainedError",
    "InvalidArgumentError",
    "NotConnectedError",
    "OtherProcessError",
    "RanksDifferError",
    "without_secrets",
]


_USER = re.compile(r"(?<=://)(?:[^\s/?#]*|[^\s/?#:@]*:(?!:|\d{1,5}(?:[/?#\s]|$))[^\s?#]*)@")
_QUERY = re.compile(r"(://[^\s?#]*[?#])\S*?=\S*?(?=['\")\]}>,;:.]*(?:\s|$))")


def without_secrets(text: str) -> str:
    """Return a text whose URLs have neither users and passwords nor queries, which may hold signatures and tokens.

    Args:
        text: A message.

    Example:
        >>> without_secrets("https://me:secret@host/a.tar?signature=1f3a: not found")
        'https://***@host/a.tar?***: not found'
    """
    return _QUERY.sub(r"\1***", _USER.sub("***@", text))


class _Explained(Exception):
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


class OtherProcessError(_Explained, RuntimeError):
    """Another process has failed, is gone, or did not come, while this one waited for it.

    Example:
        >>> print(OtherProcessError("Another process is gone.", given="rank 1 ended its script"))
        Another process is gone.
          given:    rank 1 ended its script
    """

    __module__ = "pa_distributed"  # tracebacks name what one imports


class RanksDifferError(_Explained, ValueError):
    """Processes were not given the same; raised on all of them, with the ranks that differ.

    Args:
        problem: One sentence that says what is wrong.
        given: What each process has, by rank.
        expected: What would have been right, where the sentence does not say so.
        do: What the reader can do about it.

    Example:
        >>> error = RanksDifferError(
        ...     "The processes of this run were not given the same.",
        ...     given="num_epochs: 3 on rank 0, 4 on ranks 1-2",
        ...     do="Find the line of your script where the rank, the host or the environment decides this.",
        ... )
        >>> print(error)
        The processes of this run were not given the same.
          given:    num_epochs: 3 on rank 0, 4 on ranks 1-2
          do:       Find the line of your script where the rank, the host or the environment decides this.
    """

    __module__ = "pa_distributed"  # tracebacks name what one imports


class InvalidArgumentError(_Explained, ValueError):
    """An argument has a value that cannot work."""


class NotConnectedError(_Explained, RuntimeError):
    """A launcher has started several processes, and they are not connected, or not in a way that is needed."""


@runtime_checkable
class ExplainedError(Protocol):
    """An error that tells what was given and what to do: of this library, or of one that does so too."""

    problem: str
    given: str
    expected: str
    do: str
