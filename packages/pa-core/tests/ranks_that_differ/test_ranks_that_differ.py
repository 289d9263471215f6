"""One process is given something else than the other: all of them end soon, and are told what differs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch.distributed as dist

from pa_core import RanksDifferError, gather_objects
from tests.launching import Launch
from tests.support.pa_core.ranks_that_differ.cases import Door, seeded_case
from tests.support.pa_core.ranks_that_differ.rows import ROWS, Row
from tests.support.pa_core.ranks_that_differ.table import table

PAGE = Path(__file__).parents[4] / "docs" / "maintainers" / "failures.md"
SCRIPT = Path(__file__).with_name("script.py")
ALL = [(row, door) for row in ROWS for door in row.doors]
COMPARED = [(row, door) for row, door in ALL if row.error == "RanksDifferError"]


def name_of(value: object) -> str:
    """The name of a row or a door in the name of a test."""
    return value.what if isinstance(value, Row) else str(value)


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize(("row", "door"), COMPARED, ids=name_of)
def test_both_ranks_are_told_what_differs(row: Row, door: Door) -> None:
    """They raise the same error, which shows what each of them has."""
    case = seeded_case(door)
    row.both(case)
    if dist.get_rank() == 1:
        row.change(case)
    with pytest.raises(RanksDifferError) as caught:
        case.run()
    assert row.shows in str(caught.value)
    assert len(set(gather_objects(str(caught.value)))) == 1


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("door", ["train", "evaluate", "Run"])
def test_ranks_that_are_given_the_same_run(door: Door) -> None:
    """The cases of the table run where nothing differs."""
    seeded_case(door).run()


@pytest.mark.whole_proof
@pytest.mark.parametrize(("row", "door"), ALL, ids=name_of)
def test_processes_end_soon(row: Row, door: Door, launch: Launch) -> None:
    """A script that is launched as users do it ends by its error within the time of its row."""
    started = time.monotonic()
    launched = launch(SCRIPT, row.what, door, ranks=2)
    assert time.monotonic() - started < row.seconds
    assert launched.status != 0
    assert row.error in launched.output
    assert row.shows in launched.output


def test_the_documentation_has_the_table() -> None:
    """Each row is in it, and there are more than fifty.

    `python -m tests.support.pa_core.ranks_that_differ.table` prints it.
    """
    assert table() in PAGE.read_text()
    assert len({row.what for row in ROWS}) == len(ROWS) >= 50
