"""Which waits are in vain, and what is said of them."""

from __future__ import annotations

import math
import time
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from pa_distributed import HangDetector, _hang_detector
from pa_distributed._hang_detector import find_hang
from pa_distributed._signs import Sign, Signs, describe_signs
from pa_distributed._torch import store_of_processes

EXCHANGES = Sign(
    beat=3, run=1, place="in the training of an epoch", updates=5, begun=20, still=12.0, waits=True, doing="x"
)
COMPUTES = EXCHANGES._replace(waits=False)
STANDS = COMPUTES._replace(blocked=12.0, idle=12.0)
LOOKS_AGAIN = COMPUTES._replace(idle=12.0)
EVALUATES = EXCHANGES._replace(place="in an evaluation")


@pytest.mark.parametrize(
    ("own", "other", "limit", "advice"),
    [
        # which may still come
        (EXCHANGES, COMPUTES, 60.0, None),
        (EXCHANGES, EVALUATES, 60.0, None),
        (EXCHANGES, EXCHANGES, math.inf, None),
        (EXCHANGES, Sign(run=0), 5.0, None),
        # which nobody waits for
        (COMPUTES, EXCHANGES, 10.0, None),
        (LOOKS_AGAIN, COMPUTES, 10.0, None),
        (STANDS, EXCHANGES, 10.0, None),  # the other one says so
        # which may not
        (EXCHANGES, Sign(run=1), 60.0, "all of them decide together"),
        (EXCHANGES, Sign(run=2, place="at the start of the run"), 60.0, "all of them decide together"),
        (EXCHANGES, Sign(run=0, has_ended=True), 60.0, "all of them decide together"),
        (EXCHANGES, EVALUATES, 10.0, "only some of the processes"),
        (EXCHANGES, COMPUTES, 10.0, "raise max_wait_seconds"),
        # which the accelerator of this one waits for
        (COMPUTES._replace(runs_ahead=True), COMPUTES._replace(begun=19), 10.0, "raise max_wait_seconds"),
        # in whatever it may be
        (STANDS, COMPUTES, 10.0, "raise max_wait_seconds"),
        (STANDS, COMPUTES, 60.0, None),
        (STANDS, Sign(run=1), 60.0, None),
        (LOOKS_AGAIN, COMPUTES._replace(begun=19), 10.0, "raise max_wait_seconds"),
        (COMPUTES, COMPUTES._replace(begun=19), 10.0, None),
    ],
)
def test_what_is_a_wait_in_vain(own: Sign, other: Sign, limit: float, advice: str | None) -> None:
    """Nobody is ended for being slow before its time, nor spared when there is nothing left to hope for."""
    found = find_hang(0, {0: own, 1: other}, limit, HangDetector().advise)
    assert (found is None) == (advice is None)
    assert found is None or (advice is not None and advice in str(found))


def test_ranks_in_the_same_place_are_named_together() -> None:
    """Of a thousand processes, those that do the same take one line."""
    signs = dict.fromkeys((0, 1, 2, 4, 5, 6), EXCHANGES) | {3: EVALUATES._replace(waits=False)}
    assert "ranks 0-2, 4-6 waited in x, in the training of an epoch, after 5 updates; rank 3 was" in describe_signs(
        signs, run=1
    )


@pytest.mark.parametrize("seconds", [0, -1.0, math.inf, math.nan, True, "60"])
def test_a_wait_that_is_not_a_time_is_refused(seconds: Any) -> None:
    """It is a positive number of seconds, or None."""
    with pytest.raises(ValueError, match="max_wait_seconds"):
        HangDetector(seconds)
    HangDetector(None)


@pytest.mark.runs_on("two_ranks")
def test_exchanges_in_a_group_of_their_own_are_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that does nothing but exchange in other groups than that of all processes gets on all the same."""
    monkeypatch.setattr(_hang_detector, "SECONDS_BETWEEN_BEATS", 0.02)
    group = cast("Any", dist).new_group()
    signs = Signs(PrefixStore("pa_distributed/watch", store_of_processes()), dist.get_rank(), dist.get_world_size())
    seen: list[float] = []
    started = time.monotonic()
    with HangDetector(60.0).run(lambda: ("in a test", 0)):
        for _ in range(40):
            for _ in range(100):
                dist.all_reduce(torch.zeros(1), group=group)
            seen += [sign.still for sign in signs.of_others().values()]
        dist.barrier()
    dist.destroy_process_group(group)
    assert max(seen) < (time.monotonic() - started) / 2
