"""Runs that are killed on the device and started again end with the same bits."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.gpu.figures import NEEDS_CUDA, attempt, not_measured, publish
from tools.gpu.setting import Setting

__all__ = ["measure"]

MODES = ("fp32", "bf16", "bf16, in the background", "fp16", "bf16, compiled", "fp32, two processes on one device")
ON_CPU = ("bf16", "fp32")
COMPILERS = ("cc", "gcc", "clang")  # one of which triton calls
KILL_AT = 26  # in the second epoch, two updates after a state


def measure(setting: Setting) -> None:
    """Kill all modes at the same time: nothing is timed here."""
    modes: tuple[str, ...] = MODES if setting.on_cuda else ON_CPU[:1] if setting.is_quick else ON_CPU
    if setting.on_cuda and not any(map(shutil.which, COMPILERS)):
        modes = tuple(mode for mode in modes if "compiled" not in mode)
        not_measured(title("bf16, compiled"), "needs a C compiler")
    for mode in MODES if not setting.on_cuda else ():
        if mode not in modes:
            not_measured(title(mode), "left out by --quick" if mode in ON_CPU else NEEDS_CUDA)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(modes)) as pool:
        for _ in pool.map(functools.partial(compare, Path(folder), setting), modes):
            pass


def title(mode: str) -> str:
    """What the report calls it."""
    return f"killed and resumed, {mode}"


def compare(folder: Path, setting: Setting, mode: str) -> None:
    """Compare a run that was killed with one that was not, and two that were not with each other."""
    with attempt(title(mode)):
        with ThreadPoolExecutor(3) as pool:
            once, again, killed = (folder / f"{mode}_{name}" for name in ("once", "again", "killed"))
            runs = [
                pool.submit(run, once, mode),
                pool.submit(run, again, mode),
                pool.submit(run, killed, mode, KILL_AT),
            ]
            first, second, _ = (run.result() for run in runs)
        resumed = run(killed, mode)
        if first["device"] != setting.device.type or not resumed["resumed_at"]:
            message = f"it ran on {first['device']}, and resumed at update {resumed['resumed_at']}"
            raise RuntimeError(message)
        note = f"killed after update {KILL_AT}, resumed after update {resumed['resumed_at']}, in {first['precision']}"
        if first["parts"] != second["parts"]:
            different = differences(first, second)
            publish(title(mode), "not comparable", note=f"two undisturbed runs differ in {different}", is_wrong=True)
        elif first["parts"] != resumed["parts"]:
            publish(title(mode), "DIFFERENT", note=f"{note}: {differences(first, resumed)}", is_wrong=True)
        else:
            scale = first["parts"]["scale"]
            publish(title(mode), "the same bits", note=note + (f"; scaler {scale}" if scale != "{}" else ""))


def differences(first: dict[str, Any], other: dict[str, Any]) -> str:
    """The names of the parts that are not the same."""
    return ", ".join(name for name, value in first["parts"].items() if value != other["parts"][name])


def run(folder: Path, mode: str, kill_at: int | None = None) -> dict[str, Any]:
    """Run the script on one process, or two that share a device, and return its outcome; empty if it was to be killed.

    Raises:
        RuntimeError: It ended in another way than it should.
    """
    folder.mkdir(exist_ok=True)
    ranks = 2 if "two processes" in mode else 1
    arguments = [str(folder), mode, *([] if kill_at is None else [str(kill_at)])]
    port = free_port()
    running: list[subprocess.Popen[str]] = []
    for rank in range(ranks):
        of_launcher = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),  # which accelerate takes modulo the number of devices
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        env = {
            **os.environ,
            **(of_launcher if ranks > 1 else {}),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "OMP_NUM_THREADS": "2",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        command = [sys.executable, "-m", "tools.gpu.crash_script", *arguments]
        running.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    outputs = [process.communicate()[0] for process in running]
    expected = 0 if kill_at is None else -signal.SIGKILL
    for process, output in zip(running, outputs, strict=True):
        if process.returncode != expected:
            print(output)
            message = (
                f"status {process.returncode} instead of {expected}: {' / '.join(output.strip().splitlines()[-3:])}"
            )
            raise RuntimeError(message)
    if kill_at is not None:
        return {}
    found: dict[str, Any] = json.loads((folder / "outcome_0.json").read_text())
    return found


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
