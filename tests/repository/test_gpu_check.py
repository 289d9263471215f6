"""What is measured on a GPU can be measured: everything runs on a CPU too, and nothing takes the rest with it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.comparisons import COMPARISONS
from tools.gpu_check import arguments_of_pytest, marked_files

ROOT = Path(__file__).parents[2]
NOT_THERE = ["hypothesis", "sklearn", "timm", "torchmetrics", "torchvision", "transformers"]


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """The status and the output of a start outside of the repository where nothing is installed and no GPU is found."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ACCELERATE_USE_CPU")}
    command = [sys.executable, str(ROOT / "tools" / "gpu_check.py"), *arguments]
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**env, "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout


def test_without_a_gpu_nothing_is_checked(tmp_path: Path) -> None:
    """The command says so at once, and how to try it out; its status tells this from a check that failed."""
    status, output = run(tmp_path)
    assert "There is no CUDA device here" in output
    assert "--dry-run" in output
    assert status == 2


def test_a_dry_run_writes_figures_and_a_report(tmp_path: Path) -> None:
    """Tests are found, a comparison is measured, and both files name what was measured, on what and with what."""
    status, output = run(tmp_path, "--dry-run", f"--output={tmp_path}", "copied")
    assert status == 0, output
    assert "tests collected" in output
    (name,) = [one.name for one in COMPARISONS if "copied" in one.name]
    table = (tmp_path / "cuda.md").read_text("utf-8")
    assert "no CUDA device, " in table
    assert f"torch {importlib.metadata.version('torch')}" in table
    assert table.count(f"| {name} | ") == 3
    (figures,) = json.loads((tmp_path / "cuda.json").read_text("utf-8"))[name]
    assert min(figures.values()) > 0


def test_a_comparison_without_time_is_told(tmp_path: Path) -> None:
    """Its row says so, and the status that something is missing."""
    arguments = ["--device=cuda", "--dry-run", f"--output={tmp_path}", "--seconds=0.1", "copied", "export"]
    assert main(arguments) == 1
    table = (tmp_path / "cuda.md").read_text("utf-8")
    assert "| **failed**: benchmarks.on_device copies was killed after 0 s |" in table
    assert "| **failed**: no time was left |" in table


def test_tests_of_a_gpu_need_torch_accelerate_and_pytest_alone(tmp_path: Path) -> None:
    """All of them are collected where nothing else is installed."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({NOT_THERE}))"
    script = f"{hidden}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    packages = [str(ROOT), *map(str, ROOT.glob("packages/*/src"))]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(packages)}
    command = [sys.executable, "-c", script, *arguments_of_pytest(), "--collect-only"]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for path in marked_files():
        assert str(path.relative_to(ROOT)) in ended.stdout


@pytest.mark.more_cases
@pytest.mark.timeout(900)
def test_everything_is_measured_on_a_cpu(tmp_path: Path) -> None:
    """What is compared on a GPU can be, in some minutes where nothing else runs, with a figure of each variant."""
    status, output = run(tmp_path, "--dry-run", f"--output={tmp_path}")
    figures = json.loads((tmp_path / "cuda.json").read_text("utf-8"))
    expected = {one.name: {*one.variants} for one in COMPARISONS if one.device == "cuda"}
    assert {name: {*of_round} for name, (of_round,) in figures.items()} == expected, output
    assert status == 0, output
