"""Both type checkers agree, on every supported version of Python, with every type and every error written down here."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.launching import Launched
from tests.typing.checkers import PYTHON_VERSIONS, TypedEnvironment

pytestmark = pytest.mark.timeout(400)  # torch is read anew for each version of Python

Runs = dict[tuple[str, str], Future[Launched]]


@pytest.fixture(scope="module")
def runs(environment: TypedEnvironment, code: Path, two_at_once: ThreadPoolExecutor) -> Runs:
    """What each checker says of the code, for each version of Python."""
    checkers = {"mypy": environment.mypy, "pyright": environment.pyright}
    return {
        (name, version): two_at_once.submit(check, code, version)
        for version in PYTHON_VERSIONS
        for name, check in checkers.items()
    }


@pytest.mark.parametrize("version", PYTHON_VERSIONS)
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_strict_checker_finds_the_errors_that_are_marked_and_no_others(
    runs: Runs, checker: str, version: str
) -> None:
    """Types are as asserted, lines that must fail do fail, and nobody else's code needs a word to us."""
    checked = runs[checker, version].result()
    assert checked.output.replace("0 errors, 0 warnings, 0 informations", "").strip() == ""
    assert checked.status == 0
