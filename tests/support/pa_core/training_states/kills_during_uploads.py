"""Kill runs that send their states to an unreliable object store, at random moments, until they are complete.

`python -m tests.support.pa_core.training_states.kills_during_uploads 200` kills 200 of them. After each kill the run is
started again, half of the time on another machine, which has nothing but the store. It has to resume from the newest
state that was sent (or saved, on the same machine), and each complete run has to end bit for bit as one that nothing
hit.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import accelerate  # noqa: F401  # pyright: ignore[reportUnusedImport]  # here, or each process would import it
import fsspec  # noqa: F401  # pyright: ignore[reportUnusedImport]  # as above
import torch
import torch._dynamo  # pyright: ignore[reportUnusedImport]  # as above
from typing_extensions import override

from pa_checkpoint import Folder
from pa_checkpoint import _remote_folder as object_store
from pa_checkpoint._remote_folder import RemoteCheckpoint, RemoteFolder
from pa_core import AnyTrainer, SaveTrainingStateCallback, TrainerCallback
from tests.support.faulty_store import KINDS, Faults, fault_rates, store_url, use_faults
from tests.support.forks import start
from tests.support.pa_core.training_states.small_runs import make_trainer, train

_RATE = 0.02
_MOST_SECONDS = 0.6
_MOST_REQUESTS = 220


class Board:
    """What a run tells about itself while it lives: memory shared with it, which outlives it.

    Attributes:
        begun: Whether it began to look for a state.
        resumed: The update at which it began, plus 1; 0 before it began.
        sent: The update of the last state that was sent.
        saved: The update of the last state that was saved.
    """

    def __init__(self) -> None:
        values = (multiprocessing.RawValue(ctypes.c_uint64) for _ in range(4))
        self.begun, self.resumed, self.sent, self.saved = values


class Tell(TrainerCallback):
    """Tells where the run begins, and what it has saved."""

    def __init__(self, board: Board) -> None:
        self._board = board

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if not self._board.resumed.value:
            self._board.resumed.value = trainer.num_updates_completed + 1


class _Saving(SaveTrainingStateCallback):
    """Tells what was saved."""

    board: Board

    @override
    def _tidy_up(self, newest: Path) -> None:
        records = {record.path: record.update for record in Folder(newest.parent).records()}
        self.board.saved.value = max(self.board.saved.value, records[newest])
        super()._tidy_up(newest)


def run(folder: Path, machine: Path, board: Board, faults: Faults | None) -> None:
    """Run the script once, to its end."""
    url, upload = store_url(folder / "store"), RemoteFolder.upload

    def told(store: RemoteFolder, directory: str | Path) -> RemoteCheckpoint:
        state = upload(store, directory)
        board.sent.value = max(board.sent.value, state.update)
        return state

    setattr(RemoteFolder, "upload", told)  # noqa: B010  # a plain assignment is a type error
    object_store.PAUSES = (0.0,) * 4
    use_faults(Faults() if faults is None else faults)
    saving = _Saving(machine, save_every_n_steps=2, max_checkpoints=2, asynchronous=True, upload_to=url)
    saving.board = board
    board.begun.value = 1
    end = train(make_trainer(saving, Tell(board)), num_epochs=3, resume_from=url, resume_missing="start")
    (folder / "end.json").write_text(json.dumps(end))


def attempt(folder: Path, machine: Path, board: Board, choice: random.Random) -> bool:
    """Start the script, kill it perhaps, and return whether it was killed."""
    from_outside = choice.random() < 0.5
    seconds, requests = choice.uniform(0, _MOST_SECONDS), choice.randrange(1, _MOST_REQUESTS)
    faults = Faults(fault_rates(KINDS, _RATE), random.Random(choice.random()), listing_lag=4)
    faults.dies_at = None if from_outside else requests
    output = folder / "output.txt"
    process = start(partial(run, folder, machine, board, faults), output)
    if from_outside:
        while not board.begun.value and os.waitpid(process, os.WNOHANG) == (0, 0):
            time.sleep(0.001)
        time.sleep(seconds)
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, output.read_text()
    return os.WIFSIGNALED(status)


def survive(folder: Path, board: Board, choice: random.Random, most_kills: int) -> Counter[str]:
    """Start a run again until it is complete; return how many kills hit it, by what was left."""
    hits: Counter[str] = Counter()
    machines = 1
    lost = False  # the machine
    board.sent.value = board.saved.value = 0
    while True:
        least = board.sent.value if lost else max(board.sent.value, board.saved.value)
        if lost:
            board.saved.value = board.sent.value
        board.begun.value = board.resumed.value = 0
        last = hits.total() >= most_kills
        if last:
            run_to_end(folder, folder / f"machine_{machines}", board)
            is_killed = False
        else:
            is_killed = attempt(folder, folder / f"machine_{machines}", board, choice)
        began = board.resumed.value - 1
        assert began < 0 or began >= least, f"resumed after update {began} though {least} was there; lost: {lost}"
        if not is_killed:
            return hits
        lost = choice.random() < 0.5
        hits["another machine" if lost else "the same machine"] += 1
        if lost:
            shutil.rmtree(folder / f"machine_{machines}", ignore_errors=True)
            machines += 1


def run_to_end(folder: Path, machine: Path, board: Board) -> None:
    """Run the script in a process that nothing hits."""
    process = start(partial(run, folder, machine, board, None), folder / "output.txt")
    _, status = os.waitpid(process, 0)
    assert status == 0, (folder / "output.txt").read_text()


def main() -> None:
    """Kill as many runs as the first argument says; the second is the seed."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)  # of fork: no thread is doing anything here
    choice, board = random.Random(seed), Board()
    hits: Counter[str] = Counter()
    runs = 0
    with tempfile.TemporaryDirectory() as temporary:
        reference = Path(temporary, "reference")
        reference.mkdir()
        run_to_end(reference, reference / "machine", board)
        expected = json.loads((reference / "end.json").read_text())
        while hits.total() < kills:
            folder = Path(temporary, f"run_{runs}")
            folder.mkdir()
            hits += survive(folder, board, choice, min(8, kills - hits.total()))
            assert json.loads((folder / "end.json").read_text()) == expected
            runs += 1
            shutil.rmtree(folder)
    sys.stdout.write(f"seed {seed}; {hits.total()} kills of {runs} runs, all of which ended as one that nothing hit\n")
    for kind, count in sorted(hits.items()):
        sys.stdout.write(f"{count:5} continued on {kind}\n")


if __name__ == "__main__":
    main()
