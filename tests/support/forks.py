"""Functions that run in processes of their own, to be killed there."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def start(function: Callable[[], object], output: Path) -> int:
    """Run a function in a fork of this process, whose output goes to a file; return the number of the process."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        function()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
