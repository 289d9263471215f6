"""What is measured on a GPU can be measured: each part runs on a CPU too, and none takes the others with it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.gpu.figures import Figure
from tools.gpu.marked_tests import arguments_of_pytest, marked_files
from tools.gpu.parts import PARTS
from tools.gpu.report import MeasuredPart, write_report

ROOT = Path(__file__).parents[2]
NOT_THERE = ["hypothesis", "sklearn", "timm", "torchmetrics", "torchvision", "transformers"]


def run(folder: Path, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """The status, the parts and the table, of a start outside of the repository where nothing is installed."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ACCELERATE_USE_CPU")}
    command = [sys.executable, str(ROOT / "tools" / "gpu_check.py"), "--quick", "--output", str(folder), *arguments]
    ended = subprocess.run(
        command, cwd=folder, env={**env, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=False
    )
    assert (folder / "gpu_check.json").is_file(), ended.stderr
    parts: list[dict[str, Any]] = json.loads((folder / "gpu_check.json").read_text("utf-8"))["parts"]
    return ended.returncode, parts, (folder / "gpu_check.md").read_text("utf-8")


def test_what_needs_cuda_is_reported_as_not_measured(tmp_path: Path) -> None:
    """With its reason, in both files; that is no failure."""
    status, parts, table = run(tmp_path, "--parts", "machine", "copies")
    assert [(part["name"], part["outcome"]) for part in parts] == [("machine", "complete"), ("copies", "complete")]
    assert parts[1]["figures"][0]["value"] is None
    assert "| copies | a batch of 2 MiB and four matrix products | - |  | not measured: needs CUDA |" in table
    assert f"torch {importlib.metadata.version('torch')}" in table
    assert status == 0


def test_a_part_that_takes_too_long_is_cut_off_and_the_rest_is_told(tmp_path: Path) -> None:
    """No time is left for the second part; the status says that something is missing."""
    status, parts, table = run(tmp_path, "--parts", "mlp", "copies", "--seconds", "0.5")
    assert [part["outcome"] for part in parts] == ["cut off", "cut off"]
    assert "| copies | **cut off** after 0 s |" in table
    assert status == 1


def test_a_figure_that_breaks_a_promise_stands_out(tmp_path: Path) -> None:
    """In bold; a pipe in a note does not break the table."""
    figures = [Figure("bits", "DIFFERENT", note="a | b", is_wrong=True), Figure("time", 0.12345, "ms", 1.0)]
    parts = [MeasuredPart("one", "complete", 3.0, figures), MeasuredPart("two", "failed", 1.0, output="Error: why\n")]
    write_report(tmp_path, parts, 4.0)
    assert (tmp_path / "gpu_check.md").read_text("utf-8").splitlines()[4:] == [
        "| one | bits | **DIFFERENT** |  | a \\| b |",
        "| one | time | 0.1235 ms | 1.000 |  |",
        "| two | **failed** after 1 s |  |  | Error: why |",
    ]
    assert all(part.is_wrong for part in parts)


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
@pytest.mark.timeout(600)
def test_each_part_measures_on_a_cpu(tmp_path: Path) -> None:
    """What can be measured there is, in about a minute where nothing else runs; killed runs end with the same bits."""
    status, parts, table = run(tmp_path)
    assert [part["name"] for part in parts] == list(PARTS)
    assert {part["outcome"] for part in parts} == {"complete"}, table
    assert "| crashes | killed and resumed, bf16 | the same bits |" in table
    for part in ("mlp", "gpt2", "resnet", "saving", "sharding", "fp32", "bf16"):
        assert any(figure["value"] is not None for one in parts if one["name"] == part for figure in one["figures"])
    assert status == 0, table
