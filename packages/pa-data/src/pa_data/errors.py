"""Errors that tell what was given, what was expected and what to do.

Each error also derives from the built-in exception a Python user would catch for the same mistake, so
``except ValueError`` keeps working:

    >>> issubclass(ConfigurationError, ValueError), issubclass(ArgumentTypeError, TypeError)
    (True, True)
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from typing_extensions import override

__all__ = [
    "ArgumentTypeError",
    "ConfigurationError",
    "EmptyDatasetError",
    "ExplainedError",
    "ShardError",
    "UnsupportedConfigurationError",
    "message_of",
    "safe_cause",
    "without_secrets",
]


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
    """Base of the errors of this module.

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


class ConfigurationError(ExplainedError, ValueError):
    """An argument has a value that cannot work, such as a negative number of epochs.

    Example:
        >>> raise ConfigurationError("num_epochs must be a whole number >= 1, got -1.")
        Traceback (most recent call last):
        ...
        pa_data.errors.ConfigurationError: num_epochs must be a whole number >= 1, got -1.
    """


class ArgumentTypeError(ExplainedError, TypeError):
    """An argument is another kind of thing than the one that is expected, such as a class instead of an instance.

    Example:
        >>> from pa_data.orders import Shuffled, check_order
        >>> check_order(Shuffled)
        Traceback (most recent call last):
        ...
        pa_data.errors.ArgumentTypeError: This is not an order.
          given:    order=Shuffled
          ...
          do:       Pass an instance: Shuffled(...).
    """


class EmptyDatasetError(ConfigurationError):
    """A dataset, or what is left of it after ``drop_last``, holds no batch to run on.

    Example:
        >>> issubclass(EmptyDatasetError, ConfigurationError)
        True
    """


class UnsupportedConfigurationError(ExplainedError, RuntimeError):
    """Every argument is valid, but this environment or combination cannot do what was requested.

    Example:
        >>> issubclass(UnsupportedConfigurationError, RuntimeError)
        True
    """


class ShardError(ExplainedError, ValueError):
    """A file of a dataset is missing, damaged, has changed, or holds something else than its reader expects.

    Example:
        >>> issubclass(ShardError, ValueError)
        True
    """
