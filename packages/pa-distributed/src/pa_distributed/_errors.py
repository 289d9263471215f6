"""Errors that users catch, and texts without the secret parts of URLs."""

from __future__ import annotations

import re
from collections.abc import Sized
from urllib.parse import unquote

_USER = re.compile(r"(?<=://)(?:[^\s/?#]*|[^\s/?#:@]*:(?!:|\d{1,5}(?:[/?#\s]|$))[^\s?#]*)@")
_QUERY = re.compile(r"(://[^\s?#]*[?#])\S*?=\S*?(?=['\")\]}>,;:.]*(?:\s|$))")
_SHORTEST_SECRET = 3
"""The shortest part of a URL, in characters, that is replaced everywhere: shorter parts occur in any text."""


class OtherProcessError(RuntimeError):
    """A different process has failed, is gone or did not arrive in time.

    The functions of this package raise it on the ranks that were waiting: functions decorated with ``rank_zero_only``,
    ``run_while_others_wait``, the methods of ``RankMessages``, and ``HangDetector.run`` and ``HangDetector.explaining``
    for a lost connection. ``gather_objects`` and ``run_while_others_wait`` also raise it at once where the other
    processes would never answer, for example within ``rank_local``. The message names the rank, if it is known, its
    last known position, and the action to take.

    It is a ``RuntimeError``, so ``except RuntimeError`` catches it, but ``except ValueError`` does not. The cause is in
    the traceback of the other process, so it is rarely useful to catch this error: let it end the script, and let the
    launcher restart the run. Its only argument is the message.

    Example:
        >>> from pa_distributed import OtherProcessError, rank_zero_only
        >>> @rank_zero_only()
        ... def save() -> None:
        ...     print("saved")
        >>> try:
        ...     save()  # on the other ranks, if rank 0 fails in it
        ... except OtherProcessError as error:
        ...     raise SystemExit(f"The checkpoint is not complete: {error}")
        saved
    """

    __module__ = "pa_distributed"  # tracebacks show the public name


class RanksDifferError(ValueError):
    """Processes were given different values where all of them need the same value.

    ``require_same`` raises it on all processes at once, so that no rank waits for the others. The message lists each
    differing value with the ranks that have it, for example ``lr: 0.1 on rank 0, 0.2 on ranks 1-3``. Look for the line
    of your script where this value depends on the rank, the host or the environment.

    It is a ``ValueError``, so ``except ValueError`` catches it. Since all processes raise it, each of them may catch it
    and continue. Its only argument is the message.

    Example:
        >>> from pa_distributed import RanksDifferError, require_same
        >>> try:
        ...     require_same({"learning rate": 0.1})
        ... except RanksDifferError as error:
        ...     raise SystemExit(f"Start all ranks with the same settings: {error}")
    """

    __module__ = "pa_distributed"  # tracebacks show the public name


def require_count(values: Sized, num_values: int) -> None:
    """Raise an error if there are more or fewer numbers to add up than a gradient exchange was created for.

    Raises:
        ValueError: There are more or fewer numbers.
    """
    if len(values) != num_values:
        raise ValueError(
            f"finish() adds up num_values={num_values} numbers, got {len(values)}. Pass exactly `num_values` "
            "numbers on every process."
        )


def without_secrets(text: str, url: str = "") -> str:
    """Return a text without the user names, passwords and queries of its URLs, which may hold signatures and tokens.

    Use it for messages and logs about files in an object store, before you print or raise them.

    Args:
        text: A message.
        url: The URL that the message is about. Its secret parts of at least three characters are replaced everywhere in
            the text, since some libraries repeat a password without its URL. By default, with an empty text, only the
            URLs in ``text`` are searched.

    Returns:
        The message with ``***`` in place of each secret part.

    Example:
        >>> from pa_distributed import without_secrets
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
