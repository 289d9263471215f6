"""What stands in for `python`, so that scripts start soon, does what `python` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from subprocess import Popen

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
WAITS = 'import time; print("ready", flush=True); time.sleep(60)'


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


def test_nothing_is_left_when_it_is_killed(tmp_path: Path) -> None:
    """A test that takes too long has what it started killed: the script too, which closes what it printed to."""
    (tmp_path / "waits.py").write_text(WAITS)
    process = Popen([*forked_python(), str(tmp_path / "waits.py")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    assert process.communicate(timeout=60)[0] == ""
