"""Processes that meet before they exchange anything, and those that wait for one that does not come."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from pa_core.distributed import meeting
from pa_core.distributed.hang_detector import HangDetector
from pa_core.distributed.meeting import Absent, MeetingPoint


def test_one_process_meets_nobody() -> None:
    """There is nobody to wait for."""
    MeetingPoint().meet("somewhere")


@pytest.mark.runs_on("two_ranks")
def test_processes_that_come_to_the_same_places_go_on() -> None:
    """However late one of them comes, and whichever of several points they meet at."""
    first, second = MeetingPoint(), MeetingPoint()
    for place in (first, second, first):
        if dist.get_rank() == 1:
            time.sleep(0.1)
        place.meet("here")


@pytest.mark.runs_on("two_ranks")
def test_processes_in_different_places_are_told_at_once() -> None:
    """Both are, where the other one is."""
    with pytest.raises(Absent, match=f"^rank {1 - dist.get_rank()} is there {1 - dist.get_rank()}$"):
        MeetingPoint().meet(f"is there {dist.get_rank()}")


@pytest.mark.runs_on("two_ranks")
def test_a_process_that_waits_elsewhere_is_not_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is in an exchange already does not come; nor is it disturbed."""
    monkeypatch.setattr(meeting, "SECONDS_UNTIL_ALONE", 0.1)
    with HangDetector(60.0).run(int):
        if dist.get_rank() == 0:
            with pytest.raises(Absent, match=r"^rank 1 \w+ "):
                MeetingPoint().meet("here")
        dist.barrier()
    if dist.get_rank() == 1:  # catches up with the meeting of the other one
        with pytest.raises(Absent):
            MeetingPoint().meet("elsewhere")
