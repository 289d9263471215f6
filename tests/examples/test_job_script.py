"""The Slurm job of the examples is the one of docs/slurm.md, and requeues itself; Slurm is simulated."""

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

from tests.docs.pages import Page
from tests.launching import as_a_reader, free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "slurm"
SRUN = """#!/bin/bash
echo "$@" >> srun.txt
arguments=("${@/8/2}")  # processes instead of eight GPUs
arguments=("${arguments[@]/#localhost:10017/localhost:PORT}")
echo $$ > pid.txt
exec "${arguments[@]}"
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then echo localhost; else echo "$@" >> requeued.txt; fi
"""
SQUEUE = """#!/bin/bash
[ "$*" = "-h -j 17 -o %T" ] && cat state.txt
"""


def test_page_and_folder_have_the_same_files() -> None:
    """Copy a block of the page into its file after a change."""
    page = Page(ROOT / "docs" / "slurm.md", (ROOT / "docs" / "slurm.md").read_text())
    folder = {path.name: path.read_text() for path in FOLDER.iterdir() if path.name != "README.md"}

    assert folder == {name: block.code for block in page.blocks() if (name := block.says("file"))}


@pytest.mark.whole_proof
@pytest.mark.timeout(300)
@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING"])
def test_a_preempted_job_is_requeued_and_resumes(tmp_path: Path, state: str) -> None:
    """SIGTERM saves a state; unless the job is cancelled, it is requeued once; started again, it runs to the end."""
    _prepare(tmp_path)
    (tmp_path / "state.txt").write_text(f"{state}\n")
    requeued = "requeue 17\n" if state == "RUNNING" else ""
    job = _start(tmp_path)
    _wait_for(tmp_path / "states", job)
    os.kill(int((tmp_path / "pid.txt").read_text()), signal.SIGTERM)
    assert job.wait(timeout=60) != 0

    assert _requeued(tmp_path) == requeued
    assert "Resuming from" not in (tmp_path / "log.txt").read_text()

    assert _start(tmp_path).wait(timeout=100) == 0, (tmp_path / "log.txt").read_text()

    output = (tmp_path / "log.txt").read_text()
    assert "Resuming from states" in output
    assert re.search(r"\n +20 ", output)
    assert _requeued(tmp_path) == requeued
    command = "torchrun --nnodes 1 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint localhost:10017 --rdzv-id 17"
    assert (tmp_path / "srun.txt").read_text() == f"{command} train.py\n" * 2


def _requeued(folder: Path) -> str:
    """What Slurm was told."""
    return (folder / "requeued.txt").read_text() if (folder / "requeued.txt").exists() else ""


def _prepare(folder: Path) -> None:
    """Copy the job, give it more epochs, and put commands in the place of Slurm's."""
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    script = folder / "train.py"
    script.write_text(script.read_text().replace("num_epochs=10,", "num_epochs=20,"))
    tools = folder / "tools"
    tools.mkdir()
    for name, content in {
        "srun": SRUN.replace("PORT", str(free_port())),
        "scontrol": SCONTROL,
        "squeue": SQUEUE,
    }.items():
        (tools / name).write_text(content)
        (tools / name).chmod(0o755)


def _start(folder: Path) -> subprocess.Popen[bytes]:
    """Run the job as Slurm runs it."""
    reader = {name: value for name, value in {**os.environ, **as_a_reader(folder)}.items() if value is not None}
    path = os.pathsep.join([str(folder / "tools"), str(Path(sys.executable).parent), os.environ["PATH"]])
    slurm = {"SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_ID": "17"}
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            ["bash", "job.sbatch"],
            cwd=folder,
            env={**reader, **slurm, "PATH": path},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _wait_for(path: Path, job: subprocess.Popen[bytes]) -> None:
    """Wait until a training state is there."""
    until = time.monotonic() + 100
    while not list(path.glob("*/manifest.json")):
        assert time.monotonic() < until
        assert job.poll() is None, "it has ended"
        time.sleep(0.02)
