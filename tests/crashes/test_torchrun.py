"""Launched by torchrun, a run goes on by itself when a rank is killed, and leaves when torchrun is told to."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pa_checkpoint import Folder
from tests.crashes.comparison import Record, differences
from tests.crashes.configurations import Configuration
from tests.crashes.harness import ROOT, CrashLab
from tests.crashes.phases import Phase, Watch
from tests.crashes.script import states_path, watch_path
from tests.docs.pages import printed_commands
from tests.launching import free_port

pytestmark = [pytest.mark.whole_proof, pytest.mark.timeout(300)]

PAGES = ("docs/several-machines.md", "docs/maintainers/crash-tests.md")
CONFIGURATION = Configuration(ranks=2, workers=1)
ADVERSARIES = Configuration(ranks=2, workers=1, loop="adversaries")


def _launch(
    folder: Path, *, restarts: int = 0, configuration: Configuration = CONFIGURATION, page: str = PAGES[0]
) -> subprocess.Popen[bytes]:
    """Start the script on two ranks, with the printed line for nodes that may fail, and what a page has before it."""
    (line,) = printed_commands(page, "--max-restarts")
    before = printed_commands(page, "export TORCH")
    address = f"localhost:{free_port()}"
    here = {"1:2": "1", "8": "2", "10": str(restarts), "node1:29400": address, "localhost:29400": address}
    words = [here.get(word, word) for word in shlex.split(line)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = ["--local-addr=127.0.0.1", "-m", "tests.crashes.script", str(folder), *configuration.arguments()]
    return subprocess.Popen(
        ["sh", "-c", "; ".join([*before, 'exec "$@"']), "sh", "env", *words[:-1], *script],
        cwd=ROOT,
        env={**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PATH": path},
    )


def _wait_until_held(watch: Watch) -> None:
    until = time.monotonic() + 100
    while not watch.is_held:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("configuration", "page"),
    [(CONFIGURATION, PAGES[0]), (CONFIGURATION, PAGES[1]), (ADVERSARIES, PAGES[0])],
    ids=str,
)
def test_a_rank_that_is_killed_is_started_again(
    lab: CrashLab, tmp_path: Path, configuration: Configuration, page: str
) -> None:
    """With --max-restarts, SIGKILL for one of two ranks makes both start again, resume, and end as if nothing was."""
    watches = [Watch(watch_path(tmp_path, rank)) for rank in range(2)]
    watches[1].aim(Phase.FORWARD, 14)
    launcher = _launch(tmp_path, restarts=3, configuration=configuration, page=page)
    _wait_until_held(watches[1])
    os.kill(watches[1].pid, signal.SIGKILL)
    watches[1].release()

    assert launcher.wait(timeout=200) == 0
    assert [watch.is_resumed for watch in watches] == [True, True]
    assert differences(Record.read(tmp_path, ranks=2), lab.reference(configuration)) == []


@pytest.mark.parametrize("reaches_all", [False, True], ids=["torchrun", "torchrun and all others"])
def test_a_launcher_that_is_asked_to_end_leaves_a_state(lab: CrashLab, tmp_path: Path, reaches_all: bool) -> None:
    """SIGTERM to torchrun, or to all processes, makes the ranks save; started again, the run comes to its end."""
    watches = [Watch(watch_path(tmp_path, rank)) for rank in range(2)]
    watches[1].aim(Phase.FORWARD, 14)
    launcher = _launch(tmp_path)
    _wait_until_held(watches[1])
    if reaches_all:
        for watch in watches:
            os.killpg(watch.pid, signal.SIGTERM)  # torchrun gives each rank a group of its own, with its workers
        time.sleep(0.2)
    launcher.send_signal(signal.SIGTERM)
    time.sleep(1.0)
    watches[1].release()
    assert launcher.wait(timeout=60) != 0
    assert Folder(states_path(tmp_path)).records()[-1].update == 14

    assert _launch(tmp_path).wait(timeout=100) == 0
    assert [watch.is_resumed for watch in watches] == [True, True]
    assert differences(Record.read(tmp_path, ranks=2), lab.reference(CONFIGURATION)) == []
