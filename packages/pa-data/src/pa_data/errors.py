"""The errors of datasets, loaders and orders, which are kinds of ``ValueError``; other errors are Python's."""

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
"""The shortest part of a URL, in characters, that is replaced everywhere: shorter parts occur in any text."""


def without_secrets(text: str, url: str = "") -> str:
    """Return a text without the user names, passwords and queries of its URLs, which may hold signatures and tokens.

    Use it for messages and logs about files in an object store.

    Args:
        text: A message.
        url: The URL that the message is about. Its secret parts are replaced everywhere in the text, since some
            libraries repeat a password without its URL. By default only whole URLs are searched.

    Returns:
        The message with ``***`` in the place of each secret part.

    Example:
        >>> without_secrets("https://me:secret@host/a.tar?signature=1f3a: not found")
        'https://***@host/a.tar?***: not found'
        >>> without_secrets("403: the key 1f3a is too old", "https://host/a.tar?signature=1f3a")
        '403: the key *** is too old'
    """
    text = _QUERY.sub(r"\1***", _USER.sub("***@", text))
    for secret in sorted(_secrets_in(url) if url else (), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets_in(url: str) -> set[str]:
    """Return the secret parts of a URL."""
    users = {part for user in _USER.findall(url) for part in (user, *user.rstrip("@").split(":")[1:])}
    queries = {part for match in _QUERY.finditer(url) for part in re.split("[?#&=]", match[0].removeprefix(match[1]))}
    return {part for secret in users | queries for part in (secret, unquote(secret)) if len(part) >= _SHORTEST_SECRET}


def safe_cause(error: BaseException, url: str) -> BaseException | None:
    """Return an error for use in ``raise ... from``, or None if its traceback could show secret parts of a URL.

    Args:
        error: The error of a library.
        url: The URL that the error is about.

    Returns:
        The error, or None if the URL has a user, a password or a query.

    Example:
        >>> error = OSError("no connection")
        >>> safe_cause(error, "https://host/a.tar") is error, safe_cause(error, "https://me:secret@host/a.tar")
        (True, None)
    """
    return error if without_secrets(url) == url else None


class DataError(ValueError):
    """Report that a dataset, a loader or an order cannot work with its arguments.

    Args:
        message: The problem, and the action that solves it. Users, passwords and queries of URLs in it are replaced.

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
    """Report that a dataset has no samples, or no full batch with ``drop_last=True``.

    Example:
        >>> from pa_data import KeyedDataLoader
        >>> try:
        ...     KeyedDataLoader([], batch_size=4)
        ... except EmptyDatasetError:
        ...     print("the filter of the dataset has removed all samples")
        the filter of the dataset has removed all samples
    """


class ShardError(DataError):
    """Report that a file of a dataset is missing, damaged, changed, or of the wrong kind for its reader.

    Example:
        >>> from pa_data.files import ShardedFiles, TextLines
        >>> try:
        ...     ShardedFiles("no/such/folder/*.txt", TextLines())
        ... except ShardError as error:
        ...     print(str(error).partition(" Got")[0])
        No file fits the pattern.
    """
