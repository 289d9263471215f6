"""Runs that are killed on a CUDA device and started again end with the same bits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.crashes.comparison import Record, differences, first_update
from tests.crashes.configurations import Configuration
from tests.launching import free_port

ROOT = Path(__file__).parents[2]
KILL_AFTER = 26  # in the second epoch, two updates after a state
CONFIGURATIONS = {
    "fp32": Configuration(),
    "bf16": Configuration(precision="bf16"),
    "bf16, in the background": Configuration(precision="bf16", asynchronous=True),
    "fp16": Configuration(precision="fp16", others=("--scale-that-overflows",)),
    "bf16, compiled": Configuration(precision="bf16", others=("--compiled",)),
    "two processes on one device": Configuration(ranks=2),
}
HAS_COMPILER = any(map(shutil.which, ("cc", "gcc", "clang")))  # one of which triton calls


def run(configuration: Configuration, env: Mapping[str, str], folder: Path, attempt: int, *others: str) -> list[int]:
    """Start the script on one process, or on two that share a device, and return how they ended."""
    folder.mkdir(parents=True, exist_ok=True)
    port = str(free_port())
    command = [sys.executable, "-m", "tests.crashes.script", str(folder), *configuration.arguments(), *others]
    running: list[subprocess.Popen[bytes]] = []
    for rank in range(configuration.ranks):
        of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(configuration.ranks)}
        of_launcher = {**of_rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if configuration.ranks > 1 else {}
        environment = {**env, **configuration.environment(), **of_launcher, "ATTEMPT": str(attempt)}
        running.append(subprocess.Popen(command, cwd=ROOT, env=environment))
    return [process.wait() for process in running]


def problems(env: Mapping[str, str], folder: Path, configuration: Configuration) -> list[str]:
    """Compare a run that was killed with one that was not, and two that were not with each other."""
    once, again, killed = (folder / name for name in ("once", "again", "killed"))
    undisturbed = configuration.uninterrupted()
    with ThreadPoolExecutor(3) as pool:
        runs = [
            pool.submit(run, undisturbed, env, once, 1),
            pool.submit(run, undisturbed, env, again, 1),
            pool.submit(run, configuration, env, killed, 1, f"--kill-after={KILL_AFTER}"),
        ]
        statuses = [future.result() for future in runs]
    statuses.append(run(configuration, env, killed, 2))
    expected = [0, 0, -signal.SIGKILL, 0]
    if statuses != [[status] * configuration.ranks for status in expected]:
        return [f"ended with {statuses}"]
    reference = Record.read(once, configuration.ranks)
    if noise := differences(Record.read(again, configuration.ranks), reference):
        return [f"two undisturbed runs differ: {noise}"]
    if not (first := first_update(killed, configuration.ranks, attempt=2)) or first > KILL_AFTER or first == 1:
        return [f"went on with update {first}"]
    return differences(Record.read(killed, configuration.ranks), reference)


@pytest.mark.parametrize(
    ("device", "names"),
    [
        pytest.param("cpu", ("bf16",), marks=pytest.mark.more_cases),
        pytest.param("cuda", tuple(CONFIGURATIONS), marks=pytest.mark.needs_cuda),
    ],
)
def test_killed_runs_end_with_the_same_bits(tmp_path: Path, device: str, names: tuple[str, ...]) -> None:
    """In each precision, with states in the background, compiled, and on two processes that share a device."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    settings = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    env = {**kept, **settings, **({"ACCELERATE_USE_CPU": "true"} if device == "cpu" else {})}
    configurations = {name: CONFIGURATIONS[name] for name in names if HAS_COMPILER or "compiled" not in name}
    folders = [tmp_path / name for name in configurations]
    with ThreadPoolExecutor() as pool:  # all at the same time: nothing is timed here
        found = list(pool.map(partial(problems, env), folders, configurations.values()))
    assert not any(found), dict(zip(configurations, found, strict=True))
