"""Compares what must stay the same on all processes with what they exchange anyway."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, cast

from torch import Tensor

import pa_distributed
from pa_core.errors import RanksDifferError

Describe: TypeAlias = Callable[[], Mapping[str, str]]
"""Returns what has to be the same, as short texts by name; not called on one process."""

PLACE: Final = "the run is"
"""The name of the text that says where a process is."""

RUN_END: Final = "at the end of the run"

DIGEST_SIZE: Final = 4
"""How many numbers a digest has."""

_BYTES_OF_NUMBER = 2  # any dtype that is exchanged holds such a number exactly, float32 included


def digest(texts: Mapping[str, str]) -> list[int]:
    """Return small whole numbers that are the same on two processes if, and in practice only if, their texts are.

    Args:
        texts: What is compared, by name.

    Example:
        >>> digest({"num_epochs": "3"}) == digest({"num_epochs": "3"}), digest({"num_epochs": "3"}) == digest({})
        (True, False)
    """
    if not texts:
        return [0] * DIGEST_SIZE
    # Not the built-in hash, which is another one in each process.
    whole = hashlib.sha256(repr(sorted(texts.items())).encode(errors="surrogatepass")).digest()
    starts = range(0, DIGEST_SIZE * _BYTES_OF_NUMBER, _BYTES_OF_NUMBER)
    return [int.from_bytes(whole[start : start + _BYTES_OF_NUMBER], "big") for start in starts]


def require_same_digests(of_each: Tensor, texts: Mapping[str, str]) -> None:
    """Raise the same error on all processes for anything that differs between them; every process must call this.

    Args:
        of_each: The digest of each process, a row each; the same on all processes.
        texts: The texts of this process, whose digest is one of the rows. If where they are differs, the rest belongs
            to something else altogether, and is left out.

    Raises:
        RanksDifferError: The rows differ.
    """
    rows = cast("list[list[float]]", of_each.tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch
    if all(row == rows[0] for row in rows):
        return
    try:
        pa_distributed.require_same({name: text for name, text in texts.items() if name == PLACE})
    except RanksDifferError as error:
        raise RanksDifferError(
            "The processes of this run have gone different ways.", given=error.given, do=advice_for_parted(error.given)
        ) from None
    pa_distributed.require_same(texts)


def advice_for_parted(places: str, has_left: bool = False) -> str:
    """Return what to do about processes that are in different places.

    Args:
        places: Where they are, as text.
        has_left: Whether some have left the run.
    """
    if has_left or RUN_END in places:
        return "Where one process alone decides to stop, call run.request_stop() on it instead of leaving the loop."
    return "Take what only some of the processes come to out of the condition that it depends on."
