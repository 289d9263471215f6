"""The ways in which users launch a script, for the tests of the examples."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.launching import Launched, as_a_reader, forked_python, run_command, torchrun

__all__ = ["EXAMPLES", "WAYS", "launch_example", "numbers_in"]

EXAMPLES = Path(__file__).parents[2] / "examples"
WAYS = ("python", "torchrun with two ranks", "accelerate launch", "accelerate launch, bf16")

_BESIDE_TORCHVISION = str(Path(__file__).parents[1] / "support" / "beside_torchvision.py")


def launch_example(
    name: str,
    *arguments: str,
    way: str,
    folder: Path,
    beside_torchvision: bool = False,
    fresh: bool = False,
    timeout: float = 100,
) -> Launched:
    """Run an example to its end, by default in processes that are forked from one that has imported torch.

    Args:
        name: Its file in `examples`, without the suffix.
        *arguments: Of its command line.
        way: How it is launched; one of `WAYS`.
        folder: Where.
        beside_torchvision: Whether it needs a package that imports torchvision.
        fresh: Whether to start new interpreters instead.
        timeout: Seconds after which it is killed, and the test fails.
    """
    python = [sys.executable] if fresh else forked_python()
    accelerate = [*python, "-m", "accelerate.commands.launch", "--no_python"]
    launchers = {
        "python": python,
        "torchrun with two ranks": [*python, *torchrun(2, python)],
        "accelerate launch": [*accelerate, *python, "-u"],
        "accelerate launch, bf16": [*accelerate, "--mixed_precision=bf16", *python, "-u"],
    }
    script = [*([_BESIDE_TORCHVISION] if beside_torchvision else []), str(EXAMPLES / f"{name}.py")]
    environment = {**as_a_reader(folder), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return run_command([*launchers[way], *script, *arguments], folder=folder, env=environment, timeout=timeout)


def numbers_in(output: str, pattern: str) -> list[float]:
    """The numbers that the one group of a pattern finds."""
    return [float(found) for found in re.findall(pattern, output)]
