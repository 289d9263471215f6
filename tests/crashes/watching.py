"""How a training process notes down where it is: by the events of its run, and by what it does to its files."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from typing_extensions import override

from pa_core import AnyTrainer, TrainerCallback
from tests.crashes.phases import Phase, Watch

__all__ = ["WatchCallback"]


class WatchCallback(TrainerCallback):
    """Notes down the phases of a run, and now and then takes its time in one of them.

    It needs no help from what it watches: Python tells it of each file that is opened and each folder that is renamed.

    Args:
        watch: Where the phases go.
        states: The folder of the training states.
    """

    def __init__(self, watch: Watch, states: Path) -> None:
        self._watch = watch
        self._states = states.resolve()
        self._random = random.Random(0)  # not the stream that the run draws from
        self._writer: threading.Thread | None = None
        self._is_first_step = False
        self._batches_of_update = 0
        watch.begin(os.getpid())
        sys.addaudithook(self._on_audit)

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if trainer.num_updates_completed > 0:
            self.note_resume()

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._batches_of_update = 0
        self.enter(Phase.EPOCH_EDGE)

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        in_group = Phase.FORWARD if self._batches_of_update == 0 else Phase.GROUP
        self.enter(Phase.FIRST_STEP if self._is_first_step else in_group)

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self._batches_of_update += 1
        self._take_time()

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self._batches_of_update = 0
        self._is_first_step = False
        self.enter(Phase.UPDATED)

    @override
    def on_eval_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._take_time()

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, *, is_intermediate: bool = False, **kwargs: Any) -> None:
        self.enter(Phase.INTERMEDIATE_EVALUATION if is_intermediate else Phase.EVALUATION)

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, *, is_intermediate: bool = False, **kwargs: Any) -> None:
        self.enter(Phase.UPDATED if is_intermediate else Phase.EPOCH_EDGE)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.enter(Phase.EPOCH_EDGE)

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.enter(Phase.END)

    def note_resume(self) -> None:
        """Say that the run goes on from a state."""
        self._watch.note_resume()
        self._is_first_step = True

    def enter(self, phase: Phase) -> None:
        """Say what comes now, and take some time perhaps."""
        if self._writer is threading.current_thread() or (self._writer and not self._writer.is_alive()):
            self._watch.end_storing()
        self._watch.enter(phase)
        self._take_time()

    def _take_time(self) -> None:
        """Be slow in a quarter of all places, so that a kill at a random time hits all of them."""
        if self._random.random() < 0.25:
            time.sleep(self._random.uniform(0.005, 0.02))

    def _on_audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | Path):
            self._on_open(Path(arguments[0]), arguments[2])
        elif event == "os.rename" and Path(arguments[1]).parent == self._states:
            self._store(Phase.REMOVING if Path(arguments[1]).name.startswith(".") else Phase.RENAME)

    def _on_open(self, path: Path, flags: int) -> None:
        if path.parent.parent == self._states and flags & (os.O_WRONLY | os.O_RDWR):
            self._store(Phase.WRITING)
            if threading.current_thread() is not threading.main_thread():
                time.sleep(0.01)  # a slow disk, so that the training goes on meanwhile
        elif path == self._states and self._watch.phases[1] is Phase.RENAME:
            self._store(Phase.RENAMED)

    def _store(self, phase: Phase) -> None:
        self._writer = threading.current_thread()
        self._watch.enter(phase)
