"""The errors of datasets, loaders and orders: ``ValueError`` with a name; others are Python's own."""

from __future__ import annotations

import re
from urllib.parse import unquote

__all__ = [
    "DataError",
    "EmptyDatasetError",
    "ShardError",
    "safe_cause",
    "without_secrets",
]


_USER = re.compile(r"(?<=://)(?:[^\s/?#]*|[^\s/?#:@]*:(?!:|\d{1,5}(?:[/?#\s]|$))[^\s?#]*)@")
_QUERY = re.compile(r"(://[^\s?#]*[?#])\S*?=\S*?(?=['\")\]}>,;:.]*(?:\s|$))")
_SHORTEST_SECRET = 3
"""Characters of a part of a URL that is replaced wherever it is: shorter ones are found in any text."""


def without_secrets(text: str, url: str = "") -> str:
    """Return a text whose URLs have neither users and passwords nor queries, which may hold signatures and tokens.

    Args:
        text: A message.
        url: The URL that the message is about: parts of it that are secret are replaced wherever they are in the text.

    Example:
        >>> without_secrets("https://me:secret@host/a.tar?signature=1f3a: not found")
        'https://***@host/a.tar?***: not found'
        >>> without_secrets("403: the signature 1f3a is too old", "https://host/a.tar?signature=1f3a")
        '403: the signature *** is too old'
    """
    text = _QUERY.sub(r"\1***", _USER.sub("***@", text))
    for secret in sorted(_secrets_in(url), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets_in(url: str) -> set[str]:
    users = {part for user in _USER.findall(url) for part in (user, *user.rstrip("@").split(":")[1:])}
    queries = {part for match in _QUERY.finditer(url) for part in re.split("[?#&=]", match[0].removeprefix(match[1]))}
    return {part for secret in users | queries for part in (secret, unquote(secret)) if len(part) >= _SHORTEST_SECRET}


def safe_cause(error: BaseException, url: str) -> BaseException | None:
    """Return an error as the cause of another one; None if its traceback could show what of a URL is secret.

    Args:
        error: The error of a library.
        url: The URL that it is about.
    """
    return error if without_secrets(url) == url else None


class DataError(ValueError):
    """A dataset, a loader or an order cannot work with what it was given, such as a negative batch size.

    Args:
        message: What is wrong and what to do; of URLs in it, users, passwords and queries are left out.

    Example:
        >>> from pa_data.orders import epoch_order
        >>> epoch_order(-1, seed=0, epoch=0)
        Traceback (most recent call last):
        ...
        pa_data.errors.DataError: num_samples must be a whole number >= 0, got -1.
    """

    def __init__(self, message: str) -> None:
        super().__init__(without_secrets(message))


class EmptyDatasetError(DataError):
    """A dataset, or what is left of it after ``drop_last``, holds no batch to run on.

    Example:
        >>> issubclass(EmptyDatasetError, DataError)
        True
    """


class ShardError(DataError):
    """A file of a dataset is missing, damaged, has changed, or holds something else than its reader expects.

    Example:
        >>> issubclass(ShardError, ValueError)
        True
    """
