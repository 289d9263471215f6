"""Compares what must be the same on all processes, and shows what differs rank by rank."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence

from pa_distributed._descriptions import describe_values
from pa_distributed._errors import RanksDifferError
from pa_distributed._processes import gather_objects, is_alone
from pa_distributed._signs import name_ranks

_MOST_SHOWN = 8
_LONGEST_TEXT = 120


def require_same(values: Mapping[str, object] | Callable[[], Mapping[str, object]]) -> None:
    """Raise the same error on all processes for anything that differs between them; every process must call this.

    It takes one small exchange. What differs is exchanged, as short texts, only if anything does.

    Args:
        values: What has to be the same, by name; or a function that returns it, which is not called on one process.
            Texts and numbers are compared as they are, and so are dictionaries, lists and tuples of them; modules by
            their layers, and the shapes of their parameters and buffers; optimizers by the parameters and settings of
            their groups; of anything else, the class.

    Raises:
        RanksDifferError: Something differs.

    Example:
        >>> require_same({"learning rate": 0.1, "files": "12 in data/"})
    """
    if is_alone():
        return
    own = describe_values(values() if callable(values) else values)
    # Not the built-in hash, which is another one in each process.
    digest = hashlib.sha256(repr(sorted(own.items())).encode(errors="surrogatepass")).hexdigest()
    if len(set(gather_objects(digest))) == 1:
        return
    found = differences(gather_objects(own))
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
