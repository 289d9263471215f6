"""The errors of datasets, loaders and orders, which derive from ``ValueError``; all other errors are Python's own."""

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

    Use it for your own messages and logs about files in an object store. The errors of this package already call it for
    their messages.

    Args:
        text: A message.
        url: The URL that the message is about. Its secret parts are replaced everywhere in the text, since some
            libraries repeat a password without its URL; parts of fewer than 3 characters are not, since they occur in
            any text. By default, only whole URLs in the text are searched.

    Returns:
        The message with ``***`` in place of each secret part. A text without secrets is returned unchanged.

    Example:
        >>> from pa_data.errors import without_secrets
        >>> without_secrets("https://me:secret@host/a.tar?signature=1f3a: not found")
        'https://***@host/a.tar?***: not found'
        >>> without_secrets("403: the key 1f3a is too old", "https://host/a.tar?signature=1f3a")
        '403: the key *** is too old'
    """
    if "://" in text:
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

    Use it where you replace a library's error with your own error. The library's message may repeat the URL with its
    password, and Python prints the message as the cause. With None, Python prints no cause.

    Args:
        error: The library's error.
        url: The URL or path that the error is about.

    Returns:
        ``error``, or None if the URL has a user name, a password or a query.

    Example:
        >>> from pa_data.errors import ShardError, safe_cause
        >>> url = "https://me:secret@host/a.tar"
        >>> try:
        ...     try:
        ...         raise OSError(f"no connection to {url}")
        ...     except OSError as error:
        ...         raise ShardError(f"Cannot read {url}.") from safe_cause(error, url)
        ... except ShardError as error:
        ...     print(error, error.__cause__)
        Cannot read https://***@host/a.tar. None
    """
    return error if without_secrets(url) == url else None


class DataError(ValueError):
    """A dataset, a loader or an order cannot work with its arguments.

    It is the base class of the errors of this package, and a ``ValueError``, so ``except ValueError`` catches it, too.
    Loaders, orders and datasets raise it when you create them with arguments that are out of range, or that contradict
    each other. ``load_state_dict`` raises it for a state that belongs to different data, and an iterator raises it for
    a dataset that yields fewer samples than its length. The message names the wrong value and says what to do. An
    argument of the wrong type is a ``TypeError``, and a position outside of an epoch is an ``IndexError``.

    Args:
        message: The problem, and the action that solves it. User names, passwords and queries of URLs in it are
            replaced by ``***``.

    Example:
        >>> from pa_data import KeyedDataLoader
        >>> from pa_data.errors import DataError
        >>> loader = KeyedDataLoader(range(10), batch_size=4, seed=0)
        >>> try:
        ...     loader.load_state_dict({**loader.state_dict(), "seed": 1})
        ... except DataError as error:
        ...     print(str(error).partition(" Make")[0])
        The state is not one of this loader. Got seed=1, expected seed=0.
    """

    def __init__(self, message: str) -> None:
        super().__init__(without_secrets(message))


class EmptyDatasetError(DataError):
    """A dataset has no samples, no batch of it is left, or a process would get no sample.

    It is a ``DataError`` and therefore a ``ValueError``. ``KeyedDataLoader`` raises it for a dataset without samples,
    and if ``drop_last=True`` leaves no full global batch or update. With ``split="eval"``, the loader also raises it
    for fewer samples than processes, as ``EvalSplit`` does. ``KeyedDataLoader.num_steps`` raises it for an epoch
    without samples. ``count_samples``, ``ShardedFiles``, ``Mixture``, ``ClassBalanced`` and ``Curriculum`` raise it for
    data without samples. Check the path and the filters of the dataset, choose a smaller batch size or fewer processes,
    or leave out ``drop_last``.

    Args:
        message: The problem, and the action that solves it. User names, passwords and queries of URLs in it are
            replaced by ``***``.

    Example:
        >>> from pa_data import KeyedDataLoader
        >>> from pa_data.errors import EmptyDatasetError
        >>> try:
        ...     KeyedDataLoader([], batch_size=4)
        ... except EmptyDatasetError:
        ...     print("the filter of the dataset has removed all samples")
        the filter of the dataset has removed all samples
    """


class ShardError(DataError):
    """A file of a dataset is missing, damaged, changed, or of the wrong kind for its reader.

    It is a ``DataError`` and therefore a ``ValueError``, not an ``OSError``. ``ShardedFiles`` raises it when it finds
    and counts the files, and when it reads a sample; so do ``ShardFile`` and the readers ``JsonLines``, ``TextLines``,
    ``Parquet`` and ``TarSamples``. The message names the file and, for lines, the line number. Correct the path, write
    the file again, or leave it out of ``paths``.

    Args:
        message: The problem, and the action that solves it. User names, passwords and queries of URLs in it are
            replaced by ``***``.

    Example:
        >>> from pa_data.errors import ShardError
        >>> from pa_data.files import ShardedFiles, TextLines
        >>> try:
        ...     ShardedFiles("no/such/folder/*.txt", TextLines())
        ... except ShardError as error:
        ...     print(str(error).partition(" Got")[0])
        No file fits the pattern.
    """
