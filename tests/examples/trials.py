"""The ways in which users launch a trial, for the tests of the examples."""

from __future__ import annotations

from pathlib import Path

from tests.launching import Launched, forked_python, run_command, torchrun

__all__ = ["EXAMPLES", "WAYS", "launch_example"]

EXAMPLES = Path(__file__).parents[2] / "examples"
WAYS = ("python", "torchrun with two ranks", "accelerate launch")


def launch_example(name: str, *arguments: str, way: str, folder: Path) -> Launched:
    """Run an example to its end.

    Args:
        name: Its file in `examples`, without the suffix.
        *arguments: Of its command line.
        way: How it is launched; one of `WAYS`.
        folder: Where.
    """
    python = forked_python()
    launchers = {
        "python": python,
        "torchrun with two ranks": [*python, *torchrun(2, python)],
        "accelerate launch": [*python, "-m", "accelerate.commands.launch", "--no_python", *python, "-u"],
    }
    command = [*launchers[way], str(EXAMPLES / f"{name}.py"), *arguments]
    return run_command(command, folder=folder, env={"HF_HOME": str(folder)})
