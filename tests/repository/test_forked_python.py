"""What stands in for `python`, so that scripts start soon, does what `python` does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launching import forked_python

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux lets a process wait for another one")

TELLS = """
import os, random, sys
print(sys.argv[1:], os.getcwd(), os.environ["COLOUR"], sys.path[0], __name__, __file__)
print(sys.stdin.read(), end="")
print(sys.executable == {executable!r}, sys.modules["__main__"].TELLS)
print("an error", file=sys.stderr)
"""
WAITS = """
import signal, sys, time
if "catches" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    """A script that waits for a signal."""
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    return script


def test_a_script_finds_what_it_finds_under_python(tmp_path: Path) -> None:
    """Arguments, folder, variables, streams, paths, and itself as the main module."""
    script = tmp_path / "scripts" / "tells.py"
    script.parent.mkdir()
    script.write_text("TELLS = 3\n" + TELLS.format(executable=sys.executable))

    def run(python: list[str]) -> tuple[int, str, str]:
        ran = subprocess.run(
            [*python, "scripts/tells.py", "one", "-u"],
            cwd=tmp_path,
            env={**os.environ, "COLOUR": "blue"},
            input="what is typed\n",
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.returncode, ran.stdout, ran.stderr

    assert run(forked_python()) == run([sys.executable])


@pytest.mark.parametrize(
    ("text", "status"),
    [("", 0), ("raise SystemExit(3)", 3), ("raise ValueError", 1), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_it_ends_as_the_script_ends(tmp_path: Path, text: str, status: int) -> None:
    """With its exit status, with 1 after an exception, and by the signal that ended it."""
    script = tmp_path / "ends.py"
    script.write_text(text)
    ran = subprocess.run([*forked_python(), str(script)], capture_output=True, text=True, check=False)
    assert ran.returncode == status
    assert ("ValueError" in ran.stderr) == ("ValueError" in text)


@pytest.mark.parametrize(("arguments", "status"), [([], -signal.SIGTERM), (["catches"], 7)])
def test_signals_reach_the_script(waiting: Path, arguments: list[str], status: int) -> None:
    """It ends by them, or does what it has a handler for."""
    command = [*forked_python(), str(waiting), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(timeout=60) == status


def test_nothing_is_left_when_it_is_killed(waiting: Path) -> None:
    """A test that takes too long has what it started killed: the script too, which closes what it printed to."""
    command = [*forked_python(), str(waiting)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert process.communicate(timeout=60)[0] == ""


def test_a_module_runs_as_the_main_one(tmp_path: Path) -> None:
    """With ``-m``, from the folder it is called in."""
    (tmp_path / "tells.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    ran = subprocess.run(
        [*forked_python(), "-m", "tells", "one"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "__main__ ['one']\n"


def test_a_script_may_replace_its_streams(tmp_path: Path) -> None:
    """Unbuffered ones too, as launchers ask for: what was there before leaves the files open."""
    script = tmp_path / "replaces.py"
    script.write_text("import sys\nsys.stdout = open(1, 'w', closefd=False)\nprint('still open')\n")
    for unbuffered in ([], ["-u"]):
        command = [*forked_python(), *unbuffered, str(script)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "still open\n"


def test_each_script_draws_numbers_of_its_own(tmp_path: Path) -> None:
    """Scripts that seed nothing do not all draw the same."""
    script = tmp_path / "draws.py"
    script.write_text("import random, numpy\nprint(random.random(), numpy.random.rand())\n")
    command = [*forked_python(), str(script)]
    drawn = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)]
    assert len({*drawn[0], *drawn[1]}) == 4
