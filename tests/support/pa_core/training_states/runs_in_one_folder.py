"""Start two to four runs in one folder of states at random moments, kill some of them, and see what is left.

`python -m tests.support.pa_core.training_states.runs_in_one_folder 200` does so 200 times, and prints how the runs
ended. All of them are the same script: whichever finds the folder free resumes from the newest state in it, or begins
anew; one in four resumes from an older one. After each try one more run, alone, has to come to the end, bit for bit as
if nothing had happened.
"""

from __future__ import annotations

import collections
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from pa_checkpoint import Folder, load
from pa_checkpoint import _folder as folder_lock
from pa_checkpoint import _folder as state_folder
from pa_checkpoint import _writer as checkpoint_writer
from pa_checkpoint._checkpoint import write_checkpoint
from pa_checkpoint._files import discard
from pa_checkpoint._manifest import read_manifest
from pa_core import AnyTrainer, CheckpointError, FolderInUseError, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.testing import TinyClassifier, make_classification
from tests.support.forks import start

UPDATES = 12
SECONDS_OF_UPDATE = 0.02
SECONDS_TO_START = 0.4
SECONDS_TO_LIVE = 0.8
COMPLETE, REFUSED, TOO_LATE = 0, 10, 11


@dataclass(frozen=True)
class Deed:
    """What a process did to the folder.

    Attributes:
        process: Its number.
        kind: "wrote", "removed" or, from an older state, "branched off".
        run: The run that the state is of.
        sequence: Its place in the folder.
        acts_as: The run in whose name the process removed it; of what was written, the same as `run`.
    """

    process: int
    kind: str
    run: str
    sequence: int
    acts_as: str


class Diary:
    """A file in which each process notes down what it has done, as soon as it is done."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, kind: str, directory: Path, acts_as: str | None = None) -> None:
        """Add a line, which outlives the process."""
        summary = read_manifest(directory).summary
        run, sequence = str(summary["run"]), int(summary["sequence"] or 0)
        line = json.dumps(asdict(Deed(os.getpid(), kind, run, sequence, acts_as or run)))
        with self._path.open("a") as file:
            file.write(line + "\n")

    def read(self) -> list[Deed]:
        """Return the lines in their order."""
        return [Deed(**json.loads(line)) for line in self._path.read_text().splitlines()] if self._path.exists() else []


def keep_diary(diary: Diary) -> None:
    """Have this process note down each state that it writes or removes."""

    def write(directory: str | Path, *arguments: Any, **options: Any) -> None:
        write_checkpoint(directory, *arguments, **options)
        diary.note("wrote", Path(directory))

    def keep(folder: Folder, newest: int, run: str = "", needed: Sequence[Path] = ()) -> object:
        runs.append(run)
        return keep_newest(folder, newest, run, needed)

    def remove(directory: Path) -> None:
        if not directory.name.startswith("."):
            diary.note("removed", directory, runs[-1])
        discard(directory)

    runs, keep_newest = list[str](), Folder.keep
    setattr(Folder, "keep", keep)  # noqa: B010  # it is not to be replaced, but for this
    setattr(checkpoint_writer, "write_checkpoint", write)  # noqa: B010  # as above
    setattr(state_folder, "discard", remove)  # noqa: B010  # as above


class Slow(TrainerCallback):
    """Makes a run take a while."""

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        time.sleep(SECONDS_OF_UPDATE)


def make_trainer(*callbacks: TrainerCallback) -> Trainer:
    """A trainer as the script makes it at each start."""
    torch.manual_seed(1)
    model = TinyClassifier(batch_norm=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks)


def train(folder: Path, result: Path, resume_from: Path, keep: int | None, workers: int, *, asynchronous: bool) -> None:
    """Train as every start of the script does, and leave the weights of the end."""
    saving = SaveTrainingStateCallback(folder, save_every_n_steps=1, max_checkpoints=keep, asynchronous=asynchronous)
    trainer = make_trainer(Slow(), saving)
    trainer.train(
        make_classification(4 * UPDATES // 2),
        num_epochs=2,
        per_device_batch_size=4,
        train_dataloader_kwargs={"num_workers": workers},
        resume_from=resume_from,
        resume_missing="start",
    )
    torch.save(trainer.model.state_dict(), result)


@dataclass
class Contestant:
    """One of the runs of a try: when it starts, how, and when it is killed, in seconds from the beginning."""

    starts_at: float
    dies_at: float | None
    takes_older: bool
    keep: int | None
    asynchronous: bool
    workers: int
    process: int = 0
    status: int | None = None

    def run(self, folder: Path, diary: Diary, result: Path) -> None:
        """Be a run."""
        folder_lock.SECONDS_TO_DIE = 0.3
        keep_diary(diary)
        older = Folder(folder).records()[:-1][:1] if self.takes_older else []
        resume_from = older[0].path if older else folder
        try:
            if older:
                diary.note("branched off", resume_from)
            train(folder, result, resume_from, self.keep, self.workers, asynchronous=self.asynchronous)
        except FolderInUseError:
            os._exit(REFUSED)
        except CheckpointError:
            if not older or resume_from.exists():
                raise
            os._exit(TOO_LATE)  # the run that is alive has removed it


def choose(choice: random.Random, *, with_workers: bool) -> list[Contestant]:
    """The runs of a try."""
    starts = [0.0, *(choice.uniform(0, SECONDS_TO_START) for _ in range(choice.randint(1, 3)))]
    return [
        Contestant(
            starts_at=one,
            dies_at=one + choice.uniform(0, SECONDS_TO_LIVE) if choice.random() < 0.5 else None,
            takes_older=choice.random() < 0.25,
            keep=choice.choice([1, 2, None]),
            asynchronous=choice.random() < 0.5,
            workers=int(with_workers),
        )
        for one in starts
    ]


def contest(contestants: list[Contestant], folder: Path, diary: Diary, outputs: Path) -> None:
    """Start the runs and kill some of them, each at its moment, and wait for all to end."""
    begin = time.monotonic()
    while any(one.status is None for one in contestants):
        now = time.monotonic() - begin
        for number, one in enumerate(contestants):
            if one.status is not None:
                continue
            if not one.process and now >= one.starts_at:
                run = partial(one.run, folder, diary, outputs / f"{number}.pt")
                one.process = start(run, outputs / f"{number}")
            if one.process and one.dies_at is not None and now >= one.dies_at:
                os.kill(one.process, signal.SIGKILL)
                one.dies_at = None
            if one.process and (ended := os.waitpid(one.process, os.WNOHANG))[0]:
                one.status = os.waitstatus_to_exitcode(ended[1])
        assert now < 60, "a run waits for ever"
        time.sleep(0.002)


def check(contestants: list[Contestant], folder: Path, deeds: list[Deed], outputs: Path) -> None:
    """See that every run ended as it should, that none removed a state of another, and that none lost its newest."""
    for number, one in enumerate(contestants):
        assert one.status in (COMPLETE, REFUSED, TOO_LATE, -signal.SIGKILL), (outputs / f"{number}").read_text()
    assert any(one.status not in (REFUSED, TOO_LATE) for one in contestants), "all runs were refused"

    writers = [deed.process for deed in deeds if deed.kind == "wrote"]
    changes = [one for one, before in zip(writers, [0, *writers], strict=False) if one != before]
    assert len(changes) == len(set(changes)), "two runs saved at the same time"
    assert all(deed.run == deed.acts_as for deed in deeds if deed.kind == "removed"), "a run removed a state of another"
    left = {(deed.process, deed.run) for deed in deeds if deed.kind == "branched off"}
    stolen = [deed for deed in deeds if deed.kind == "wrote" and (deed.process, deed.run) in left]
    assert stolen == [], "a run that branched off took the name of the other one"
    runs_of = collections.defaultdict[int, set[str]](set)
    for deed in deeds:
        if deed.kind == "wrote":
            runs_of[deed.process].add(deed.run)
    assert all(len(runs) == 1 for runs in runs_of.values()), "a process took the states of several runs for its own"

    state, skipped = Folder(folder).newest_readable(load)
    assert skipped == [], f"a broken state is visible: {skipped}"
    records = Folder(folder).records()
    assert [record for record in records if record.problem] == []
    there = {(record.run, record.sequence) for record in records}
    keep = {one.process: one.keep for one in contestants}
    for run in {deed.run for deed in deeds if deed.kind == "wrote"}:
        its_own = [deed for deed in deeds if deed.run == run and deed.kind != "branched off"]
        written = [deed for deed in its_own if deed.kind == "wrote"]
        # What one process kept, the next one that continues the run may remove, before it writes anything.
        fewest = min(UPDATES if keep[deed.process] is None else keep[deed.process] or 1 for deed in its_own)
        newest = {(run, deed.sequence) for deed in sorted(written, key=lambda deed: deed.sequence)[-fewest:]}
        assert newest <= there, f"a run has lost states: {newest - there}"
    assert state is None or state.summary["sequence"] == max(sequence for _, sequence in there)


def finish(folder: Path, diary: Diary, outputs: Path, expected: dict[str, torch.Tensor]) -> None:
    """See that one more run is not held up by those that were killed, and ends like one that was always alone."""
    last = Contestant(0.0, None, takes_older=False, keep=2, asynchronous=False, workers=0)
    contest([last], folder, diary, outputs)
    assert last.status == COMPLETE, (outputs / "0").read_text()
    assert all(value.equal(expected[name]) for name, value in torch.load(outputs / "0.pt", weights_only=True).items())
    assert [entry.name for entry in folder.iterdir() if entry.name.startswith(".")] == []


def main() -> None:
    """Make as many tries as the first argument says; the second is the seed."""
    tries = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    torch.set_num_threads(1)
    make_trainer()  # imports what every process would import otherwise
    warnings.simplefilter("ignore", DeprecationWarning)  # of fork: no thread is doing anything here
    choice = random.Random(seed)
    ends: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as temporary:
        alone = Path(temporary, "alone")
        alone.mkdir()
        contest([Contestant(0.0, None, False, None, False, 0)], alone / "states", Diary(alone / "diary"), alone)
        expected: dict[str, torch.Tensor] = torch.load(alone / "0.pt", weights_only=True)
        for number in range(tries):
            outputs = Path(temporary, str(number))
            outputs.mkdir()
            folder, diary = outputs / "states", Diary(outputs / "diary")
            contestants = choose(choice, with_workers=number % 8 == 7)
            try:
                contest(contestants, folder, diary, outputs)
                check(contestants, folder, diary.read(), outputs)
                finish(folder, diary, outputs, expected)
            except AssertionError as error:
                error.add_note(f"seed {seed}, try {number}: {contestants}")
                raise
            names = {COMPLETE: "came to their end", REFUSED: "were refused", TOO_LATE: "found their state removed"}
            ends.update(names.get(one.status or 0, "were killed") for one in contestants)
    sys.stdout.write(f"seed {seed}; {tries} tries; {sum(ends.values())} runs\n")
    for end, count in sorted(ends.items()):
        sys.stdout.write(f"{count:5} {end}\n")


if __name__ == "__main__":
    main()
