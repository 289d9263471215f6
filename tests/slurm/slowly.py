"""A callback that makes the first start of a job last until something happens to it."""

from __future__ import annotations

import os
import time
from typing import Any

from typing_extensions import override

from pa_core import AnyTrainer, TrainerCallback


class Slowly(TrainerCallback):
    """Waits after each update unless Slurm has started the job again."""

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        """Wait.

        Args:
            trainer: The trainer.
            update: The number of the update.
            **kwargs: Not used.
        """
        if "SLURM_RESTART_COUNT" not in os.environ:
            time.sleep(1)
