"""The example of a README that is killed at random moments, and started again."""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path

from tests.launching import Launch

__all__ = ["run_undisturbed_and_killed"]

# Nothing handles the signal of the timer: it ends the process at once, wherever it is.
_TIMER = "import signal, sys; signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))"


def run_undisturbed_and_killed(readme: Path, line: str, seconds: float, *, kills: int, folder: Path) -> list[Path]:
    """Run the example to its end in two folders, in the second one after some kills, and return the folders.

    Args:
        readme: Its first block of Python is the example.
        line: A line of each update, after which an example that is killed sleeps, so that kills hit it.
        seconds: For how long.
        kills: How many.
        folder: Where the two folders are made.
    """
    (code,) = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    code = code.replace("import torch\n", "import torch\n\ntorch.manual_seed(0)\n", 1)
    (indent,) = re.findall(rf"^( *){re.escape(line)}\n", code, re.MULTILINE)
    slow = code.replace(f"{indent}{line}\n", f"{indent}{line}\n{indent}__import__('time').sleep({seconds})\n")
    doomed = slow.replace("import torch\n", f"import torch\n{_TIMER}\n", 1)
    choice = random.Random(0)
    folders = [folder / "undisturbed", folder / "killed"]
    for place, number in zip(folders, (0, kills), strict=True):
        place.mkdir()
        launch = Launch(place)
        for _ in range(number):
            assert launch(doomed, str(choice.uniform(0.1, 0.9))).status in {0, -signal.SIGALRM}
        assert launch(code).status == 0
    return folders
