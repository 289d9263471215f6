"""Compares what must be the same on all processes of a run, and shows what differs rank by rank."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, cast

import torch
from torch import Tensor

from pa_core.distributed.collectives import gather_objects, num_processes, values_of_all
from pa_core.distributed.signs import advice_for_parted, name_ranks
from pa_core.errors import RanksDifferError

Describe: TypeAlias = Callable[[], Mapping[str, str]]
"""Returns what has to be the same, as short texts by name; not called on one process."""

PLACE: Final = "the run is"
"""The name of the text that says where a process is, which comes first where it is compared."""

DIGEST_SIZE: Final = 4
"""How many numbers a digest has."""

_BYTES_OF_NUMBER = 2  # any dtype that is exchanged holds such a number exactly, float32 included
_MOST_SHOWN = 8
_LONGEST_TEXT = 120


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


def require_same(describe: Describe, device: torch.device) -> None:
    """Raise the same error on all processes for anything that differs between them; every process must call this.

    It takes one small exchange. The texts themselves are exchanged only where they differ.

    Args:
        describe: Returns what has to be the same.
        device: The device of the run.

    Raises:
        RanksDifferError: Something differs.
    """
    agree_on_integer(0, describe, device)


def agree_on_integer(value: int, describe: Describe, device: torch.device) -> int:
    """Return the value that rank zero gave, once all are known to mean the same run; every process must call this.

    Args:
        value: Any integer of 64 bits.
        describe: As for ``require_same``.
        device: The device of the run.

    Raises:
        RanksDifferError: As ``require_same``.
    """
    if num_processes() == 1:
        return value
    texts = describe()
    of_each = values_of_all(torch.tensor([value, *digest(texts)], dtype=torch.int64, device=device)).cpu()
    require_same_digests(of_each[:, 1:], texts)
    return int(of_each[0, 0].item())


def require_same_digests(of_each: Tensor, texts: Mapping[str, str]) -> None:
    """Raise the same error on all processes for anything that differs between them; every process must call this.

    Args:
        of_each: The digest of each process, a row each; the same on all processes.
        texts: The texts of this process, whose digest is one of the rows.

    Raises:
        RanksDifferError: The rows differ.
    """
    rows = cast("list[list[float]]", of_each.tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch
    if all(row == rows[0] for row in rows):
        return
    found = differences(gather_objects(dict(texts)))
    if found[0].startswith(PLACE):
        raise RanksDifferError(
            "The processes of this run have gone different ways.", given=found[0], do=advice_for_parted(found[0])
        )
    more = f", and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
    raise RanksDifferError(
        "The processes of this run were not given the same.",
        given="; ".join(found[:_MOST_SHOWN]) + more,
        do="Find the line of your script where the rank, the host or the environment decides this.",
    )


def differences(texts_of_each: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a line for each text that is not the same on all processes; last come those that some do not have.

    If the first text of all differs, what follows belongs to something else altogether, and is left out.

    Args:
        texts_of_each: The texts of each process, in the order of the ranks.

    Example:
        >>> differences([{"num_epochs": "3"}, {"num_epochs": "4"}, {"num_epochs": "4"}])
        ['num_epochs: 3 on rank 0, 4 on ranks 1-2']
        >>> differences([{"num_epochs": "3"}, {}])
        ['num_epochs: 3 on rank 0, nothing on rank 1']
    """
    names = list(dict.fromkeys(name for texts in texts_of_each for name in texts))
    found = [name for name in names if len({texts.get(name) for texts in texts_of_each}) > 1]
    if found and found[0] == names[0]:
        del found[1:]
    found.sort(key=lambda name: any(name not in texts for texts in texts_of_each))
    return [_line(name, [texts.get(name, "nothing") for texts in texts_of_each]) for name in found]


def _line(name: str, of_each: Sequence[str]) -> str:
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(of_each):
        ranks.setdefault(text, []).append(rank)
    is_long = max(map(len, ranks)) > _LONGEST_TEXT
    start = len(os.path.commonprefix(list(ranks))) if is_long else 0  # noqa: RUF071  # characters are meant
    shown = [f"{_shortened(text, start)} on {name_ranks(some)}" for text, some in ranks.items()]
    return f"{name}: {', '.join(shown)}"


def _shortened(text: str, start: int) -> str:
    """What is shown of a text: of long ones, the part from where they differ."""
    shown = f"...{text[start:]}" if start else text
    return shown if len(shown) <= _LONGEST_TEXT else f"{shown[:_LONGEST_TEXT]}..."
