"""The matrix notices when it does not run what it says: each check is made to fail on purpose."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.launching import Launched, forked_python, run_command, torchrun

ROOT = Path(__file__).parents[2]
BF16 = {"ACCELERATE_MIXED_PRECISION": "bf16"}
UNCONNECTED = {"ACCELERATE_USE_CPU": "false", "CUDA_VISIBLE_DEVICES": ""}

TRIAL = """
import pytest

def test_that_names_no_cell(): ...

@pytest.mark.runs_on("two_ranks", "bf16")
def test_that_names_two(): ...

@pytest.mark.more_cases
def test_that_runs_on_demand(): ...
"""


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """A folder with the settings and the conftest of this repository, and three tests of its own."""
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
    [
        ("one_process", 1, {}),
        pytest.param("two_ranks", 2, {}, marks=pytest.mark.more_cases),
        pytest.param("bf16", 1, BF16, marks=pytest.mark.more_cases),
        ("two_ranks_bf16", 2, BF16),
    ],
)
def test_a_cell_runs_the_tests_made_for_it(trial: Path, cell: str, ranks: int, env: dict[str, str]) -> None:
    """A test runs in the cells that it names; two_ranks and bf16 together name their common cell, none one process."""
    ran = _run(trial, f"--cell={cell}", ranks=ranks, env=env)
    assert ran.status == 0
    assert ran.output.count("1 passed, 2 deselected") == ranks


def test_more_cases_run_when_they_are_asked_for(trial: Path) -> None:
    """What the short matrix leaves out runs with the option that the full one passes."""
    ran = _run(trial, "--more-cases")
    assert ran.status == 0
    assert "2 passed, 1 deselected" in ran.output


@pytest.mark.parametrize(
    ("cell", "ranks", "env"),
    [
        pytest.param("one_process", 1, BF16, id="in bf16"),
        pytest.param("one_process", 2, {}, id="on two ranks", marks=pytest.mark.more_cases),
        pytest.param("two_ranks", 1, {}, id="one rank", marks=pytest.mark.more_cases),
        pytest.param("two_ranks", 2, UNCONNECTED, id="two unconnected ranks"),
        pytest.param("bf16", 1, {}, id="in fp32", marks=pytest.mark.more_cases),
        pytest.param("bf16", 1, {"ACCELERATE_MIXED_PRECISION": "fp16"}, id="fp16 that is ignored"),
        pytest.param("two_ranks_bf16", 2, {}, id="two ranks in fp32", marks=pytest.mark.more_cases),
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
