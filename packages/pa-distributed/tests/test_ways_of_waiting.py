"""Whatever a loop of one's own waits in, the run ends with a report; whatever takes long otherwise, it does not."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests import launching
from tests.launching import Launch

HERE = Path(__file__).parent
WAITING, HEALTHY = HERE / "ways_of_waiting.py", HERE / "long_but_healthy.py"
WAYS: list[str] = list(runpy.run_path(str(WAITING))["WAYS"])
WORK: list[str] = [work.__name__ for work in runpy.run_path(str(HEALTHY))["WORK"]]
Ends: TypeAlias = dict[str, dict[str, Any]]
OF_TORCH = re.compile(r"^\[W\S+ \S+ socket\.cpp.*\n", re.MULTILINE)
"""A warning of torch where no server of names answers."""


def ends_of(script: Path, folder: Path) -> Ends:
    """How the two ranks ended, by what they did; all pairs of them run at the same time."""
    root = Path(launching.__file__).parents[1]
    assert Launch(folder)(script, env={"PYTHONPATH": str(root)}, timeout=150).status == 0
    ended: Ends = json.loads((folder / "ended.json").read_text())
    return ended


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """How they ended where one of them waits for the other."""
    return ends_of(WAITING, tmp_path_factory.mktemp("waiting"))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """How they ended where something else takes long."""
    return ends_of(HEALTHY, tmp_path_factory.mktemp("healthy"))


@pytest.mark.parametrize("way", WAYS)
def test_no_process_waits_for_ever_whatever_it_waits_in(waiting: Ends, way: str) -> None:
    """The run ends after max_wait_seconds, and says after which update each process is, and in which line."""
    report = "".join(waiting[way]["outputs"])
    assert waiting[way]["statuses"] == [1, 1], report
    assert "OtherProcessError: A process has waited" in report
    assert "rank 1 was in ways_of_waiting.py:" in report
    assert "in its loop, after 3 updates" in report


@pytest.mark.parametrize("work", WORK)
def test_work_that_waits_for_no_process_takes_as_long_as_it_takes(healthy: Ends, work: str) -> None:
    """Longer than max_wait_seconds, too, and with no word."""
    assert healthy[work]["statuses"] == [0, 0]
    assert [OF_TORCH.sub("", output) for output in healthy[work]["outputs"]] == ["", ""]
