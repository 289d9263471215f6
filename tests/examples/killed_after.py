"""Run a script, and kill it with SIGKILL: ``python killed_after.py STEPS SCRIPT [ARGUMENT ...]``.

The kill comes after that many steps of optimizers, at the same place of the run each time.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from itertools import count

from torch.optim.optimizer import register_optimizer_step_post_hook

if __name__ == "__main__":
    steps, script = int(sys.argv[1]), sys.argv[2]
    counted = count(1)

    def kill_in_time(*_: object) -> None:
        """Count a step."""
        if next(counted) == steps:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(kill_in_time)
    sys.argv[:] = sys.argv[2:]
    runpy.run_path(script, run_name="__main__")
