"""Runs on Ray end with the weights of a run of torchrun, whatever happens to their workers; docs/ray.md says so."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import Page
from tests.launching import Launch, run_command

pytestmark = [pytest.mark.whole_proof, pytest.mark.timeout(1800)]

SCRIPT = Path(__file__).with_name("script.py")
PAGE = Path(__file__).parents[2] / "docs" / "ray.md"
GUARD = 'if __name__ == "__main__":\n'
PATIENT = {
    "RAY_AUTH_MODE": "disabled",  # or Ray writes a token to the home directory
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "400",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}
"""Variables for a machine that is busy."""


@dataclass
class Started:
    """A script that runs, with its output in a file."""

    process: subprocess.Popen[bytes]
    output: Path

    def wait(self) -> str:
        """Wait for the end, and return the output."""
        self.process.wait(1600)
        return self.output.read_text()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    """`run(workers, **config)` starts the script on Ray."""
    started: list[Started] = []

    def start(workers: object, **config: object) -> Started:
        text = json.dumps({"failures": 0, **config, "workers": workers, "folder": str(tmp_path)})
        output = tmp_path / f"output_{len(started)}.txt"
        with output.open("wb") as file:
            command = [sys.executable, str(SCRIPT), text]
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, cwd=tmp_path, env={**os.environ, **PATIENT}
            )
        started.append(Started(process, output))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGINT)  # Ray ends its processes
            one.process.wait(60)
        print(one.output.read_text()[-6000:])  # noqa: T201 - shown when a test fails


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the weights after a run that torchrun has started on two processes."""
    folder = tmp_path_factory.mktemp("torchrun")
    text = json.dumps({"workers": None, "folder": str(folder), "seconds": 0})
    launched = Launch(folder)(SCRIPT, text, ranks=2, timeout=400)
    assert launched.status == 0
    return digest_in(launched.output)


def digest_in(output: str) -> str:
    """The digest that a run has printed."""
    return str(re.findall(r"DIGEST (\w+)", output)[-1])


def workers_since(folder: Path, known: set[str], number: int) -> list[Path]:
    """Wait for new workers, and return the files that they have written; each is named after its process."""
    end = time.monotonic() + 300
    while True:
        found = [path for path in (folder / "pids").glob("*") if path.name not in known and path.read_text()]
        if len(found) >= number:
            return found
        assert time.monotonic() < end, "no workers"
        time.sleep(0.1)


def test_weights_are_those_of_torchrun_and_metrics_arrive(run: Any, tmp_path: Path, digest: str) -> None:
    """The result of Ray has the latest metrics, and a run that stopped itself ends the script with status 75.

    It continues with another number of workers, and with the same weights.
    """
    stopped = run(2, stop_at=5)
    output = stopped.wait()
    assert stopped.process.returncode == 75, output
    assert (tmp_path / "states" / "step_5").exists()
    resumed = run(1, seconds=0)
    output = resumed.wait()
    assert resumed.process.returncode == 0
    assert re.search(r"Resuming from \S+step_5", output)
    assert digest_in(output) == digest
    metrics = json.loads(re.findall(r"METRICS (.*)", output)[-1])
    assert (metrics["epoch"], metrics["update"]) == (4, 40)
    assert metrics["eval_loss_epoch"] > 0


def test_killed_workers_are_started_again_and_change_nothing(run: Any, tmp_path: Path, digest: str) -> None:
    """Five times, a worker gets SIGKILL at a random moment."""
    draws = random.Random(0)
    started = run(2, failures=5, every=3, seconds=0.3)
    known: set[str] = set()
    for _ in range(5):
        workers = workers_since(tmp_path, known, 2)
        known |= {path.name for path in workers}
        time.sleep(draws.uniform(0, 2.5))
        os.kill(int(draws.choice(workers).name), signal.SIGKILL)
    output = started.wait()
    assert started.process.returncode == 0
    assert digest_in(output) == digest
    assert len(list((tmp_path / "pids").iterdir())) == 12


def test_a_lost_folder_of_states_is_replaced_by_the_checkpoint_of_ray(run: Any, tmp_path: Path, digest: str) -> None:
    """As on a machine that has replaced another one."""
    assert run(1, stop_at=5).wait()
    shutil.rmtree(tmp_path / "states")
    output = run(1, seconds=0).wait()
    assert re.search(r"Resuming from \S+/ray/run/checkpoint_\S+ in epoch 1, after update 5", output), output
    assert digest_in(output) == digest


def test_a_search_with_a_killed_trial_completes(run: Any, tmp_path: Path) -> None:
    """Bad trials are stopped early, the killed trial resumes, and the best trial has trained to its end."""
    started = run("tune", seconds=0.2)
    victim = workers_since(tmp_path, set(), 2)[0]
    time.sleep(4)
    os.kill(int(victim.name), signal.SIGKILL)
    output = started.wait()
    assert started.process.returncode == 0
    assert "ERRORS 0" in output
    epochs: list[int] = json.loads(re.findall(r"EPOCHS (.*)", output)[-1])
    assert (len(epochs), max(epochs)) == (4, 4)
    assert min(epochs) < 4
    assert re.search(r"BEST 0.0[13] True", output)


INIT = """
    import ray

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, _node_ip_address="127.0.0.1")
"""


def test_the_page_runs_as_printed(tmp_path: Path) -> None:
    """The script of docs/ray.md trains on two workers, prints what the page shows, and its search finds a trial."""
    blocks = Page(PAGE, PAGE.read_text()).blocks()
    functions, guard, script = next(block.code for block in blocks if block.language == "python").partition(GUARD)
    search = next(block.code for block in blocks if "def search" in block.code)
    code = f"{functions}{search}\n\n{guard}{INIT}{script}    search()\n"
    (tmp_path / "train.py").write_text(code.replace('"/shared/digits"', repr(str(tmp_path))))
    ran = run_command([sys.executable, "train.py"], folder=tmp_path, env=PATIENT, timeout=1600)
    assert ran.status == 0
    printed = {without_numbers(line) for line in ran.output.replace(str(tmp_path), "/shared/digits").splitlines()}
    output = next(block.code for block in blocks if block.language == "console" and "RayTrainWorker" in block.code)
    shown = [line for line in output.splitlines() if line != "..." and not line.startswith("$")]
    assert len(shown) > 6
    assert [line for line in shown if without_numbers(line) not in printed] == []
    assert "{'lr': 0.01} 0.0" in ran.output


def without_numbers(line: str) -> str:
    """A line of output with a sign in place of each number, and without colours and stars."""
    return re.sub(r"[\d*][\w,.:/-]*", "#", re.sub(r"\x1b\[\d+m| +", " ", line)).strip()
