"""What stands in for `python`, so that scripts start soon, does what `python` does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import CompletedProcess, Popen

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


def run(folder: Path, text: str, *options: str, arguments: Sequence[str] = ("script.py",)) -> CompletedProcess[str]:
    """Run a script with what stands in for `python`, in a folder, and return what it has left."""
    (folder / "script.py").write_text(text)
    command = [*forked_python(), *options, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Popen[str]]]:
    """Starts the script that waits for a signal, and returns its process when it does."""
    (tmp_path / "waits.py").write_text(WAITS)
    with ExitStack() as processes:

        def start_script(*arguments: str) -> Popen[str]:
            command = [*forked_python(), str(tmp_path / "waits.py"), *arguments]
            process = processes.enter_context(Popen(command, stdout=subprocess.PIPE, text=True))
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            return process

        yield start_script


def test_a_script_finds_what_it_finds_under_python(tmp_path: Path) -> None:
    """Arguments, folder, variables, streams, paths, and itself as the main module."""
    script = tmp_path / "scripts" / "tells.py"
    script.parent.mkdir()
    script.write_text("TELLS = 3\n" + TELLS.format(executable=sys.executable))

    def outcome(python: list[str]) -> tuple[int, str, str]:
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

    assert outcome(forked_python()) == outcome([sys.executable])


def test_a_module_runs_as_the_main_one(tmp_path: Path) -> None:
    """With ``-m``, from the folder it is called in."""
    text = "import sys\nprint(__name__, sys.argv[1:])\n"
    assert run(tmp_path, text, "-m", arguments=("script", "one")).stdout == "__main__ ['one']\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [("", 0), ("raise SystemExit(3)", 3), ("raise ValueError", 1), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_it_ends_as_the_script_ends(tmp_path: Path, text: str, status: int) -> None:
    """With its exit status, with 1 after an exception, and by the signal that ended it."""
    ran = run(tmp_path, text)
    assert ran.returncode == status
    assert ("ValueError" in ran.stderr) == ("ValueError" in text)


@pytest.mark.parametrize(("arguments", "status"), [([], -signal.SIGTERM), (["catches"], 7)])
def test_signals_reach_the_script(start: Callable[..., Popen[str]], arguments: list[str], status: int) -> None:
    """It ends by them, or does what it has a handler for."""
    process = start(*arguments)
    process.terminate()
    assert process.wait(timeout=60) == status


def test_nothing_is_left_when_it_is_killed(tmp_path: Path) -> None:
    """A test that takes too long has what it started killed: the script too, which closes what it printed to."""
    (tmp_path / "waits.py").write_text(WAITS)
    process = Popen([*forked_python(), str(tmp_path / "waits.py")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    assert process.communicate(timeout=60)[0] == ""
