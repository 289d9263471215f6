"""The matrix notices when it does not run what it says: each check is made to fail on purpose."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.launching import Launched, forked_python, run_command, torchrun

ROOT = Path(__file__).parents[2]
BF16 = {"ACCELERATE_MIXED_PRECISION": "bf16"}

TRIAL = """
import pytest

def test_that_names_no_cell(): ...

@pytest.mark.runs_on("two_ranks", "bf16")
def test_that_names_two(): ...
"""


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """A folder with the settings and the conftest of this repository, and two tests of its own."""
    (tmp_path / "tests").mkdir()
    for path in (ROOT / "tests").glob("*.py"):
        shutil.copy(path, tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests" / "test_trial.py").write_text(TRIAL)
    return tmp_path


def _run(folder: Path, *options: str, ranks: int = 1, env: dict[str, str] | None = None) -> Launched:
    python = forked_python()
    command = [*python, *torchrun(ranks, python), "-m", "pytest", "tests", *options]
    return run_command(command, folder=folder, env={"ACCELERATE_MIXED_PRECISION": "no", **(env or {})})


@pytest.mark.parametrize(
    ("cell", "ranks", "env"),
    [("one_process", 1, {}), ("two_ranks", 2, {}), ("bf16", 1, BF16), ("two_ranks_bf16", 2, BF16)],
)
def test_a_cell_runs_the_tests_made_for_it(trial: Path, cell: str, ranks: int, env: dict[str, str]) -> None:
    """A test runs in the cells that it names; two_ranks and bf16 together name their common cell, none one process."""
    ran = _run(trial, f"--cell={cell}", ranks=ranks, env=env)
    assert ran.status == 0
    assert ran.output.count("1 passed, 1 deselected") == ranks


@pytest.mark.parametrize(
    ("cell", "ranks", "env"),
    [
        ("one_process", 1, BF16),
        ("one_process", 2, {}),
        ("two_ranks", 1, {}),
        ("two_ranks", 2, {"ACCELERATE_USE_CPU": "false", "CUDA_VISIBLE_DEVICES": ""}),
        ("bf16", 1, {}),
        ("bf16", 1, {"ACCELERATE_MIXED_PRECISION": "fp16"}),
        ("two_ranks_bf16", 2, {}),
    ],
    ids=[
        "in bf16",
        "on two ranks",
        "one rank",
        "two unconnected ranks",
        "in fp32",
        "fp16 that is ignored",
        "two ranks in fp32",
    ],
)
def test_a_cell_that_is_not_what_it_claims_fails(trial: Path, cell: str, ranks: int, env: dict[str, str]) -> None:
    """No test runs when processes, backend or precision are not those of the cell."""
    ran = _run(trial, f"--cell={cell}", ranks=ranks, env=env)
    assert ran.status != 0
    assert f"the cell {cell} is" in ran.output
    assert "passed" not in ran.output


def test_a_cell_without_tests_fails(trial: Path) -> None:
    """A distribution that has no test for a cell is seen, not counted as tested."""
    ran = _run(trial, "--cell=bf16", "-k", "names_no_cell", env=BF16)
    assert ran.status == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_marker_that_names_an_unknown_cell_fails(trial: Path) -> None:
    """A misspelt cell does not leave its test unrun."""
    (trial / "tests" / "test_trial.py").write_text(TRIAL.replace("bf16", "bf61"))
    ran = _run(trial)
    assert ran.status == pytest.ExitCode.USAGE_ERROR
    assert "bf61" in ran.output


@pytest.mark.parametrize("claim", ["--installed=pa-nothing", "--versions=torch==0.1"])
def test_an_installation_that_is_not_what_is_claimed_fails(trial: Path, claim: str) -> None:
    """Siblings that are not declared, and versions that are not the declared floors, stop the run."""
    ran = _run(trial, claim)
    assert ran.status == pytest.ExitCode.USAGE_ERROR
    assert "passed" not in ran.output
