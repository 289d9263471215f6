"""The ways in which users launch a script, for the tests of the examples."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from pathlib import Path
from typing import Any

from tests.launching import Launched, as_a_reader, forked_python, run_command, torchrun
from tests.support.beside_torchvision import make_torchvision_importable

__all__ = ["BESIDE_TORCHVISION", "EXAMPLES", "WAYS", "launch_example", "load_example", "numbers_in"]

EXAMPLES = Path(__file__).parents[2] / "examples"
WAYS = ("python", "torchrun with two ranks", "accelerate launch", "accelerate launch, bf16")

BESIDE_TORCHVISION = Path(__file__).parents[1] / "support" / "beside_torchvision.py"


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
    script = [*([str(BESIDE_TORCHVISION)] if beside_torchvision else []), str(EXAMPLES / f"{name}.py")]
    environment = {**as_a_reader(folder), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return run_command([*launchers[way], *script, *arguments], folder=folder, env=environment, timeout=timeout)


def load_example(name: str) -> dict[str, Any]:
    """The names that an example defines, some of which import torchvision through other packages."""
    if importlib.util.find_spec("torchvision"):
        make_torchvision_importable()
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def numbers_in(output: str, pattern: str) -> list[float]:
    """The numbers that the one group of a pattern finds."""
    return [float(found) for found in re.findall(pattern, output)]
