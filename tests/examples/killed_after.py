"""Run a script, and send it a signal: ``python killed_after.py "STEPS [SIGNAL]" SCRIPT [ARGUMENT ...]``.

The signal, SIGKILL if none is named, comes after that many steps of optimizers, at the same place of the run each time.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from itertools import count

from torch.optim.optimizer import register_optimizer_step_post_hook

if __name__ == "__main__":
    steps, name, *_ = (*sys.argv[1].split(), "SIGKILL")
    counted = count(1)

    def kill_in_time(*_: object) -> None:
        """Count a step."""
        if next(counted) == int(steps):
            os.kill(os.getpid(), signal.Signals[name])

    register_optimizer_step_post_hook(kill_in_time)
    sys.argv[:] = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
