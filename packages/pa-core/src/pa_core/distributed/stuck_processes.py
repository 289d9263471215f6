"""Decides by heartbeats whether a process would wait for others forever, and says who waits for whom."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pa_core.distributed.sign_of_life import Place, Sign
from pa_core.errors import OtherProcessError

__all__ = ["SECONDS_UNTIL_CERTAIN", "advice_for_parted", "describe_signs", "find_vain_wait", "name_ranks"]

SECONDS_UNTIL_CERTAIN = 10.0
"""How long processes wait in places that exclude each other before nothing but a mistake can be the reason."""


def find_vain_wait(
    rank: int, own: Sign, others: Mapping[int, Sign], silent: Collection[int], limit: float
) -> OtherProcessError | None:
    """Return why a process would wait forever, None as long as it may continue.

    A process in no run yet may take as long as it likes. One that has left the run that others are in never comes, nor
    do processes come together that wait in different places.

    Args:
        rank: The rank of the process that waits.
        own: Its sign.
        others: The signs of the others.
        silent: The ones that have sent no heartbeat for some seconds.
        limit: For how many seconds it may wait for what may still come.
    """
    certain = min(limit, SECONDS_UNTIL_CERTAIN)
    if not own.place or own.waiting < certain:
        return None
    of_all = {**others, rank: own}
    if any(sign.has_left(own.run) for sign in others.values()):
        return _left(of_all, own)
    shortest_wait = min(sign.waiting for sign in of_all.values())
    if shortest_wait > 0 and len({_where(sign) for sign in of_all.values()}) > 1:
        return _apart(of_all, own) if shortest_wait >= certain or own.waiting >= limit else None
    not_begun = {other for other, sign in others.items() if sign.run < own.run and not sign.place}
    if own.waiting < limit or not_begun - set(silent):
        return None
    return _overdue(of_all, own, silent, limit)


def describe_signs(signs: Mapping[int, Sign], run: int, silent: Collection[int] = ()) -> str:
    """Return what processes are doing, each of them or each group that does the same.

    Args:
        signs: Their signs by rank.
        run: The number of the run that is spoken of.
        silent: The ones that have sent no heartbeat for long.
    """
    by_text: dict[str, list[int]] = {}
    for rank, sign in sorted(signs.items()):
        silence = "has sent no heartbeat since it " if rank in silent else ""
        by_text.setdefault(silence + _describe(sign, run), []).append(rank)
    return "; ".join(f"{name_ranks(ranks)} {text}" for text, ranks in by_text.items())


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words, those that follow each other as one range.

    Args:
        ranks: In ascending order.

    Example:
        >>> name_ranks([1]), name_ranks([0, 2, 3, 4])
        ('rank 1', 'ranks 0, 2-4')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    ranges: list[tuple[int, int]] = []
    for rank in ranks:
        if ranges and ranges[-1][1] == rank - 1:
            ranges[-1] = ranges[-1][0], rank
        else:
            ranges.append((rank, rank))
    return "ranks " + ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def _where(sign: Sign) -> tuple[int, str, int, str]:
    """What is the same on all processes that take part in the same exchange."""
    return sign.run, sign.place, sign.updates, sign.exchange


def advice_for_parted(places: str) -> str:
    """Return what to do about processes that are in different places.

    Args:
        places: Where they are, as text.
    """
    if Place.RUN_END in places:
        return "Where one process alone decides to stop, call run.request_stop() on it instead of leaving the loop."
    return "Take what only some of the processes come to out of the condition that it depends on."


def _describe(sign: Sign, run: int) -> str:
    done = f"after {sign.updates} update{'' if sign.updates == 1 else 's'}"
    if sign == Sign():
        return "was started"
    if sign.end:
        return f"{sign.end}, {done}"
    if sign.run < run and not sign.place:
        return f"was in no run yet{_at(sign)}"
    if sign.has_left(run):
        return f"left the run {done}{_at(sign)}"
    if not sign.doing:
        return f"was {sign.place}, {done}"
    return f"{'waited' if sign.waiting > 0 else 'was'} in {sign.doing}, {sign.place}, {done}"


def _at(sign: Sign) -> str:
    return f", and was in {sign.doing}" if sign.doing else ""


def _left(signs: Mapping[int, Sign], own: Sign) -> OtherProcessError:
    return OtherProcessError(
        "A process waits for another one that has left the run.",
        given=describe_signs(signs, own.run),
        do=advice_for_parted(Place.RUN_END),
    )


def _apart(signs: Mapping[int, Sign], own: Sign) -> OtherProcessError:
    return OtherProcessError(
        "The processes wait for each other in different places.",
        given=describe_signs(signs, own.run),
        do=advice_for_parted(describe_signs(signs, own.run)),
    )


def _overdue(signs: Mapping[int, Sign], own: Sign, silent: Collection[int], limit: float) -> OtherProcessError:
    return OtherProcessError(
        f"A process has waited for another one for {own.waiting:.0f} seconds.",
        given=describe_signs(signs, own.run, silent),
        do="See in the stacks above what the others are doing; if they may take that long, raise max_wait_seconds.",
    )
