"""Processes that wait for another one in vain: all of them end, and say who waited for whom."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from pa_core import ConfigurationError, Trainer
from pa_core.testing import TinyClassifier
from tests.launching import Launch

SCRIPT = Path(__file__).with_name("waiting_in_vain.py")
SLOW = ["sleeps", "gathers", "is_frozen", "trains_once_more", "is_busy_between_runs"]
APART = ["breaks", "stops", "evaluates"]
BETWEEN = ["breaks after an epoch", "stops after an epoch", "evaluates after an epoch"]
TOGETHER = ["all stop", "all break"]

Ends: TypeAlias = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """How each pair of ranks ended; all pairs wait at the same time."""
    folder = tmp_path_factory.mktemp("pairs")
    names = [*SLOW, *APART, *BETWEEN, *TOGETHER]
    assert Launch(folder)(SCRIPT, json.dumps(names)).status == 0
    ended: Ends = json.loads((folder / "ended.json").read_text())
    return ended


def statuses(ends: Ends, names: list[str]) -> dict[str, list[int | None]]:
    """The exit statuses of the ranks of some pairs."""
    for name in names:
        print(name, ends[name]["statuses"], *ends[name]["outputs"], sep="\n")  # noqa: T201 - shown when a test fails
    return {name: ends[name]["statuses"] for name in names}


def test_processes_that_wait_in_vain_end_with_a_report(ends: Ends) -> None:
    """Each prints its stack, one of them who waits for whom, and none lives on; between two runs, there is time."""
    assert statuses(ends, SLOW) == {
        "sleeps": [1, 1],
        "gathers": [1, 1],
        "is_frozen": [1, None],
        "trains_once_more": [0, 1],
        "is_busy_between_runs": [0, 0],
    }
    reports = {name: "".join(ends[name]["outputs"]) for name in SLOW}

    assert "rank 1 was in on_optimizer_step_end of Late (waiting_in_vain.py" in reports["sleeps"]
    assert "rank 0 waited in the exchange of gradients" in reports["sleeps"]
    assert "time.sleep(1000)" in ends["sleeps"]["outputs"][1]
    assert "raise max_wait_seconds" in reports["sleeps"]

    assert "rank 1 waited in all_gather, in on_optimizer_step_end of Late" in reports["gathers"]
    assert "rank 1 has sent no heartbeat since it was " in reports["is_frozen"]

    assert "OtherProcessError: Another process is gone" in reports["trains_once_more"]
    assert "rank 0 ended its script, after 1 update;" in reports["trains_once_more"]
    assert "Begin as many runs on each process as on the others." in reports["trains_once_more"]

    assert "rank" not in reports["is_busy_between_runs"]


def test_ranks_that_part_in_a_loop_of_ones_own_end_with_an_error(ends: Ends) -> None:
    """One that breaks, stops or evaluates alone is named; where all do the same, nothing is wrong."""
    names = [*APART, *BETWEEN]
    assert statuses(ends, names) == {name: [1, 1] for name in names}
    assert statuses(ends, TOGETHER) == {name: [0, 0] for name in TOGETHER}
    reports = {name: "".join(ends[name]["outputs"]) for name in [*names, *TOGETHER]}
    for name in APART:
        assert "OtherProcessError: A process has waited for another one" in reports[name]
    for name in BETWEEN:
        assert "RanksDifferError: The processes of this run have gone different ways." in reports[name]
    assert "rank 1 waited in all_gather" in reports["breaks"]
    assert "at the end of the run, after 3 updates" in reports["stops"]
    assert "in an evaluation, after 3 updates" in reports["evaluates"]
    assert "in an evaluation, after 5 updates on rank 1" in reports["evaluates after an epoch"]
    for name, report in reports.items():
        leaves = name.startswith(("breaks", "stops"))
        assert ("call run.request_stop() on it instead of leaving the loop" in report) == leaves
    assert ends["all stop"]["outputs"] == ["3 updates\n", "3 updates\n"]
    assert ends["all break"]["outputs"] == ["5 updates\n", "5 updates\n"]


@pytest.mark.parametrize("seconds", [0, -1.0, math.inf, math.nan, True, "60"])
def test_a_wait_that_is_not_a_time_is_refused(seconds: Any) -> None:
    """It is a positive number of seconds, or None."""
    with pytest.raises(ConfigurationError, match="max_wait_seconds"):
        Trainer(TinyClassifier(), None, None, callbacks=[], max_wait_seconds=seconds)
    Trainer(TinyClassifier(), None, None, callbacks=[], max_wait_seconds=None)
