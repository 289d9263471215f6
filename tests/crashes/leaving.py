"""Runs that are told to leave at a random moment: by a deadline, a signal or a notice, on all processes or on one.

The script of a small run that a test starts twice: it is told in its first start, and continues in its second.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import torch
from torch import nn
from torch.optim import Adam
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    Run,
    SaveAndContinue,
    SaveAndStop,
    SaveTrainingStateCallback,
    Trainer,
    TrainerCallback,
    gather_objects,
)
from tests.crashes.recording import digests

__all__ = ["EPOCHS", "Leaving", "deadline_path", "leave", "outcome_path", "told_path", "updates_path"]

Kind = Literal["deadline", "signal", "notice to stop", "notice to continue"]
Moment = Literal["at a time", "in the training", "in an evaluation", "while a state is saved"]

SaveStates: TypeAlias = Callable[[AnyTrainer], None]

KINDS: tuple[Kind, ...] = ("deadline", "signal", "notice to stop", "notice to continue")
MOMENTS: tuple[Moment, ...] = ("at a time", "in the training", "in an evaluation", "while a state is saved")
EPOCHS, SAMPLES, EVAL_SAMPLES, BATCH, FEATURES = 5, 28, 16, 4, 5
EVERY = 5
"""The updates from one state to the next."""

MARGIN = 1.5
"""The seconds in reserve before the first save; after it, the run keeps one second and three saves."""


@dataclass(frozen=True)
class Leaving:
    """A run, and what tells it to leave.

    Attributes:
        number: The number of the case.
        ranks: The number of processes.
        loop: "trainer", or "own" for a custom loop.
        kind: What tells it to leave.
        told: The processes that are told; the others were not given a deadline, a signal or a notice.
        moment: When; a deadline comes at its time.
        count: The how manieth batch or file it is at which the run is told.
        seconds: The seconds after the start of the run at which it is told; of a deadline, how long the run may train.
        asynchronous: Whether states are written in the background.
        as_time: Whether a deadline is a time, and not a duration.
        disk: The seconds that each flush to the disk takes.
        ask_every: Of notices.
    """

    number: int
    ranks: int
    loop: Literal["trainer", "own"]
    kind: Kind
    told: list[int]
    moment: Moment
    count: int
    seconds: float
    asynchronous: bool
    as_time: bool
    disk: float
    ask_every: int

    @classmethod
    def draw(cls, seed: int, number: int) -> Self:
        """Return a case; each kind, loop, number of processes and moment comes in turn, and the rest is drawn."""
        chance = random.Random(f"{seed} {number}")
        ranks = 1 + number % 2
        kind = KINDS[number // 4 % len(KINDS)]
        only = [chance.randrange(ranks)]
        return cls(
            number=number,
            ranks=ranks,
            loop="trainer" if number // 2 % 2 == 0 else "own",
            kind=kind,
            told=chance.choice([list(range(ranks)), only]),
            moment="at a time" if kind == "deadline" else MOMENTS[number // 16 % len(MOMENTS)],
            count=chance.randint(1, 18),
            seconds=chance.uniform(0.0, 0.5),
            asynchronous=chance.random() < 0.5,
            as_time=chance.random() < 0.5,
            disk=chance.choice([0.0, chance.uniform(0.0, 0.015)]),
            ask_every=chance.choice([1, 1, 2]),
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the case that was written with ``to_json``."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """Return the case as text."""
        return json.dumps(asdict(self))


def told_path(folder: Path, rank: int) -> Path:
    """Where a run writes after how many updates a process was told to leave; the file is there from then on."""
    return folder / f"told_{rank}"


def deadline_path(folder: Path, rank: int) -> Path:
    """Where a process that was given a deadline writes it, in seconds since 1970."""
    return folder / f"deadline_{rank}"


def updates_path(folder: Path, rank: int, attempt: int) -> Path:
    """Where a start of the run writes the update and the samples of each batch, a line each."""
    return folder / f"updates_{rank}_{attempt}.jsonl"


def outcome_path(folder: Path, rank: int, attempt: int) -> Path:
    """Where a start of the run writes digests of all of its parts when it is complete."""
    return folder / f"ended_{rank}_{attempt}.json"


class Told(TrainerCallback):
    """Tells the processes to leave when the moment comes, and takes some time for each batch and each file.

    Args:
        folder: Where the run writes.
        case: The case.
        rank: The rank of this process.
    """

    def __init__(self, folder: Path, case: Leaving, rank: int) -> None:
        self._folder = folder
        self._case = case
        self._rank = rank
        self._chance = random.Random(rank)  # not the stream that the run draws from
        self._counts: dict[Moment, int] = dict.fromkeys(MOMENTS, 0)
        self._pids: list[int] = []
        self._timer: threading.Timer | None = None
        self._flush = os.fsync
        self._updates = 0

    def options(self) -> dict[str, Any]:
        """Return the further arguments of the callback that saves states, on this process."""
        case = self._case
        options: dict[str, Any] = {"deadline_margin": MARGIN, "ask_every": case.ask_every}
        if case.kind == "notice to continue" and case.moment != "while a state is saved":
            options["save_every_n_steps"] = None  # so that a state in between is the one that was asked for
        if self._rank not in case.told:
            return options
        duration = timedelta(seconds=MARGIN + case.seconds)
        if case.kind == "deadline":
            end = datetime.now() + duration
            deadline_path(self._folder, self._rank).write_text(str(end.timestamp()))
            options["deadline"] = end if case.as_time else duration
        elif case.kind == "signal":
            options["stop_on_signals"] = ("SIGTERM",)
        else:
            options["notices"] = [self]
        return options

    def ask(self) -> SaveAndContinue | SaveAndStop | None:
        """Answer that the run has to leave once this process was told so."""
        if not told_path(self._folder, self._rank).exists():
            return None
        return SaveAndStop("told") if self._case.kind == "notice to stop" else SaveAndContinue("told")

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._pids = gather_objects(os.getpid())
        os.fsync = self._flush_slowly
        if self._case.kind == "deadline" and self._rank in self._case.told and not self._case.as_time:
            end = time.time() + MARGIN + self._case.seconds
            deadline_path(self._folder, self._rank).write_text(str(end))

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if self._case.moment == "at a time" and self._timer is None and self._rank == 0:
            self._timer = threading.Timer(self._case.seconds, self._tell)
            self._timer.daemon = True
            self._timer.start()

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self._take_time("in the training")

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self._updates = update

    @override
    def on_eval_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._take_time("in an evaluation")

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _take_time(self, moment: Moment) -> None:
        time.sleep(self._chance.uniform(0.001, 0.012))
        self._come_to(moment)

    def _flush_slowly(self, fd: Any) -> None:
        time.sleep(self._case.disk)
        self._come_to("while a state is saved")
        self._flush(fd)

    def _come_to(self, moment: Moment) -> None:
        self._counts[moment] += 1
        if (moment, self._counts[moment], self._rank) == (self._case.moment, self._case.count, 0):
            self._tell()

    def _tell(self) -> None:
        if self._case.kind == "deadline":
            return
        for rank in self._case.told:
            told_path(self._folder, rank).write_text(str(self._updates))
            if self._case.kind == "signal":
                os.kill(self._pids[rank], signal.SIGTERM)


class Recorder(TrainerCallback):
    """Writes down the update and the samples of each batch.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._lines = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        line = [trainer.num_updates_completed + 1, [round(SAMPLES * number) for number in batch[0][:, 0].tolist()]]
        os.write(self._lines, (json.dumps(line) + "\n").encode())  # in one piece, however the process ends


def leave(folder: Path, case: Leaving, attempt: int, resume_from: str | None) -> None:
    """Train, and leave if the run is told so.

    Args:
        folder: Where everything goes that the run writes.
        case: The case.
        attempt: 0 for a run that nothing tells to leave, 1 for the start that is told, 2 for one that continues.
        resume_from: The folder of states from which the run continues, or the state; None for a run without states.
    """
    rank = int(os.environ.get("RANK", "0"))
    told = Told(folder, case, rank)
    callbacks: list[TrainerCallback] = [Recorder(updates_path(folder, rank, attempt))]
    callbacks += [told] if attempt == 1 else []
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
    if attempt > 1:
        torch.manual_seed(attempt)  # a run that continues must not depend on it

    def save_states(trainer: AnyTrainer) -> None:
        options: dict[str, Any] = {"save_every_n_steps": EVERY}
        if attempt == 1:  # a deadline begins when the processes have found each other
            options |= {"asynchronous": case.asynchronous, **told.options()}
        if resume_from is not None:
            trainer.callback_handler.add_callback(SaveTrainingStateCallback(folder / "states", **options))

    ended = (_train_by_own_loop if case.loop == "own" else _train)(
        model,
        callbacks,
        save_states,
        num_epochs=EPOCHS,
        samples_per_update=BATCH,
        resume_from=resume_from,
        resume_missing="start",
    )
    outcome_path(folder, rank, attempt).write_text(json.dumps(digests(ended)))


def _data(length: int) -> TensorDataset:
    numbers = torch.arange(length).unsqueeze(1) / SAMPLES
    inputs = torch.randn(length, FEATURES - 1, generator=torch.Generator().manual_seed(length))
    return TensorDataset(torch.cat((numbers, inputs), dim=1), inputs.sum(1, keepdim=True))


def _train(model: nn.Module, callbacks: list[TrainerCallback], save_states: SaveStates, **options: Any) -> AnyTrainer:
    trainer = Trainer(model, nn.MSELoss(), Adam(model.parameters(), lr=0.01), callbacks=callbacks)
    save_states(trainer)
    trainer.train(_data(SAMPLES), eval_dataset=_data(EVAL_SAMPLES), eval_dataloader_kwargs={"batch_size": 2}, **options)
    return trainer


def _train_by_own_loop(
    model: nn.Module, callbacks: list[TrainerCallback], save_states: SaveStates, **options: Any
) -> AnyTrainer:
    run = Run(model, Adam(model.parameters(), lr=0.01), _data(SAMPLES), callbacks=callbacks, **options)
    save_states(run)
    with run:
        for _ in run.epochs():
            for update in run.updates():
                for inputs, targets in update:
                    update.backward(nn.functional.mse_loss(model(inputs), targets))
                update.step()
            for inputs, targets in run.evaluation_batches(_data(EVAL_SAMPLES), dataloader_kwargs={"batch_size": 2}):
                run.log("loss", nn.functional.mse_loss(model(inputs), targets))
    return run
