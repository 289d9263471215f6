"""examples/kubernetes/launch.py, with torchrun itself: it ends with 75 after a preemption, with 1 after errors."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launching import as_a_reader

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
SAVES_SLOWLY = """
import signal, sys, time
from pathlib import Path

def save(*_):
    time.sleep(4)
    Path("saved").touch()
    sys.exit(75)

signal.signal(signal.SIGTERM, save)
Path("started").touch()
time.sleep(100)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the example, which trains for longer than a test."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    script = tmp_path / "train.py"
    assert script.read_text().count("num_epochs=10,") == 1
    script.write_text(script.read_text().replace("num_epochs=10,", "num_epochs=100_000,"))
    return tmp_path


def launch(folder: Path, script: str = "train.py", ranks: int = 2, **variables: str) -> subprocess.Popen[bytes]:
    """Start a script as the manifests do."""
    reader = {name: value for name, value in {**os.environ, **as_a_reader(folder)}.items() if value is not None}
    command = ["launch.py", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(ranks), script]
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=reader | variables, stdout=log, stderr=subprocess.STDOUT
        )


def wait_for(pattern: str, folder: Path, launcher: subprocess.Popen[bytes]) -> None:
    """Wait until there is a file."""
    until = time.monotonic() + 60
    while not list(folder.glob(pattern)):
        assert time.monotonic() < until
        assert launcher.poll() is None, (folder / "log.txt").read_text()
        time.sleep(0.02)


def ranks_of(launcher: subprocess.Popen[bytes]) -> list[int]:
    """Return the process numbers of the ranks."""
    return [int(pid) for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.whole_proof), 2])
def test_a_rank_that_is_told_to_end(folder: Path, ranks: int) -> None:
    """All ranks save the same state, and the launcher ends with the status of the run, without a traceback."""
    launcher = launch(folder, ranks=ranks)
    wait_for("states/epoch_*/manifest.json", folder, launcher)
    os.kill(ranks_of(launcher)[0], signal.SIGTERM)
    assert launcher.wait(timeout=60) == 75
    assert len(list(folder.glob("states/step_*/manifest.json"))) == 1
    assert "Traceback" not in (folder / "log.txt").read_text()


@pytest.mark.whole_proof
@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")
@pytest.mark.parametrize(("number", "to_rank"), [(signal.SIGKILL, True), (signal.SIGINT, False)])
def test_another_signal_is_an_error(folder: Path, number: signal.Signals, *, to_rank: bool) -> None:
    """A killed rank, and Ctrl-C, are not a preemption."""
    launcher = launch(folder)
    wait_for("states/epoch_*/manifest.json", folder, launcher)
    os.kill(ranks_of(launcher)[0] if to_rank else launcher.pid, number)
    assert launcher.wait(timeout=60) == 1


def test_a_script_that_fails_is_an_error(tmp_path: Path) -> None:
    """The status is that of torchrun, which prints what has failed."""
    shutil.copy(FOLDER / "launch.py", tmp_path)
    (tmp_path / "fails.py").write_text("import sys\n\nsys.exit(3)\n")
    assert launch(tmp_path, "fails.py").wait(timeout=60) == 1
    assert re.search(r"exitcode +: 3", (tmp_path / "log.txt").read_text())


@pytest.mark.whole_proof
@pytest.mark.parametrize(("seconds", "saved"), [("1", False), ("60", True)])
def test_the_timeout_of_the_manifests_gives_time_to_save(tmp_path: Path, seconds: str, *, saved: bool) -> None:
    """Torchrun waits for its processes as long as the variable says, and its status is 75 in any case."""
    shutil.copy(FOLDER / "launch.py", tmp_path)
    (tmp_path / "slow.py").write_text(SAVES_SLOWLY)
    launcher = launch(tmp_path, "slow.py", ranks=1, TORCH_ELASTIC_SHUTDOWN_TIMEOUT=seconds)
    wait_for("started", tmp_path, launcher)
    launcher.terminate()
    assert launcher.wait(timeout=60) == 75
    assert (tmp_path / "saved").exists() == saved
