"""Starting a run again and again until it is complete, whatever hits it, and comparing it with one that nothing hit."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.crashes.comparison import Record, differences, first_update
from tests.crashes.configurations import Configuration
from tests.crashes.fork_server import Attempt, Ended
from tests.crashes.phases import Phase
from tests.crashes.saved_states import TRIAL, SavedState, saved_states
from tests.crashes.strikes import Strike, kills

__all__ = ["CrashLab", "Run", "Tally"]

ROOT = Path(__file__).parents[2]
PREEMPTED = 75
STRIKES_OF_A_RUN = 5
SOON_KILLED = {-15, -9, -6, 0, 1, PREEMPTED}
"""What may become of a rank while another one is gone, or in a hurry."""


@dataclass
class Tally:
    """What has hit the runs so far, and where.

    Attributes:
        hits: The attempts that were hit, and how the script was called.
        compared: How the script was called for each run that was compared with an uninterrupted one.
        left: What told each small run to leave, and whether it was told before its end; all of them did as promised.
    """

    hits: list[tuple[Configuration, Ended]] = field(default_factory=list[tuple[Configuration, Ended]])
    compared: list[Configuration] = field(default_factory=list[Configuration])
    left: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])

    def describe_left(self) -> str:
        """Return how many runs that were told to leave have kept their promise, by what told them."""
        kinds = Counter(kind for kind, _ in self.left)
        of_each = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
        in_time = sum(is_told for _, is_told in self.left)
        return f"{len(self.left)} runs that were told to leave held ({of_each}), {in_time} of them before their end."

    def of(self, *loops: str | None) -> Tally:
        """Return the part of the runs with one of these loops; None is that of the trainer."""
        hits = [(configuration, ended) for configuration, ended in self.hits if configuration.loop in loops]
        return Tally(hits, [configuration for configuration in self.compared if configuration.loop in loops])

    def killed(self) -> list[Ended]:
        """Return the attempts that SIGKILL ended."""
        return [ended for _, ended in self.hits if -9 in ended.statuses]

    def phases(self) -> Counter[str]:
        """Return how many kills hit each phase; one that hit training and storing at the same time counts for both."""
        return Counter(
            phase for ended in self.killed() for phase in (ended.training, ended.storing) if phase != Phase.NONE.name
        )

    def describe(self) -> str:
        """Return the figures in a few lines."""
        killed = self.killed()
        resumed = sum(ended.is_resumed for ended in killed)
        preempted = sum(PREEMPTED in ended.statuses for _, ended in self.hits)
        phases = ", ".join(f"{name} {number}" for name, number in sorted(self.phases().items()))
        return (
            f"{len(killed)} kills, {resumed} of them of runs that had been resumed; {preempted} preemptions; "
            f"{len(self.compared)} runs compared.\nKills by phase: {phases}"
        )


class CrashLab:
    """Starts runs through a process that has imported everything.

    Args:
        folder: Where the runs write.
        tally: Where hits are counted.
    """

    def __init__(self, folder: Path, tally: Tally) -> None:
        self.folder = folder
        self.tally = tally
        self._numbers = itertools.count(1)
        self._references: dict[Configuration, Record] = {}
        self._seconds: dict[Configuration, float] = {}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.crashes.fork_server"],
            cwd=ROOT,
            env={**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process."""
        self._server.communicate(timeout=60)

    def attempt(self, attempt: Attempt) -> Ended:
        """Start the script once, and wait for its end."""
        requests, answers = self._server.stdin, self._server.stdout
        if requests is None or answers is None:
            raise AssertionError("the process was started with pipes")
        requests.write(json.dumps(asdict(attempt)) + "\n")
        requests.flush()
        return Ended(**json.loads(answers.readline()))

    def new_run(self) -> Run:
        """Return a run that has not been started yet."""
        folder = self.folder / f"run_{next(self._numbers)}"
        folder.mkdir()
        return Run(self, folder)

    def require_ends_as_if_never_killed(self, configuration: Configuration, number: int) -> None:
        """Kill runs until there were so many kills; each of them leaves whole states, and few enough, and the same end.

        Args:
            configuration: How the script is called.
            number: How many kills.
        """
        strikes = kills(configuration, self.seconds(configuration), random.Random(str(configuration)))
        wanted = len(self.tally.killed()) + number
        while len(self.tally.killed()) < wanted:
            run = self.new_run()
            run.survive(configuration, strikes)
            if not run.is_complete:  # a signal that comes with the last batch leaves a trial no time to validate
                run.start(configuration)
            assert run.differences(configuration) == [], run.describe()
            saved = run.saved(configuration)
            assert [state.problem for state in saved] == [None] * len(saved)
            if configuration.max_states is not None and configuration.loop != TRIAL:
                # It may have been killed before it removed the last one.
                assert len(saved) <= configuration.max_states + 1
            run.remove()

    def reference(self, configuration: Configuration) -> Record:
        """Return what a run leaves behind that nothing interrupts or watches, and that saves no states."""
        configuration = configuration.uninterrupted()
        if configuration not in self._references:
            run = self.new_run()
            ended = run.start(configuration, is_watched=False)
            self._references[configuration] = Record.read(run.folder, configuration.ranks)
            self._seconds[configuration] = ended.seconds
        return self._references[configuration]

    def seconds(self, configuration: Configuration) -> float:
        """Return about how long a run takes that is watched."""
        self.reference(configuration)
        return 1.5 * self._seconds[configuration.uninterrupted()]


class Run:
    """One training run, in a folder of its own.

    Args:
        lab: What starts it.
        folder: Where it writes.
    """

    def __init__(self, lab: CrashLab, folder: Path) -> None:
        self._lab = lab
        self.folder = folder
        self.is_complete = False
        self._story: list[str] = []

    @property
    def states(self) -> Path:
        """The folder of its training states."""
        return self.folder / "states"

    def start(self, configuration: Configuration, strike: Strike | None = None, *, is_watched: bool = True) -> Ended:
        """Start the script, for the first time or again.

        Raises:
            AssertionError: It ended in a way that the strike does not explain.
        """
        attempt = Attempt(
            folder=str(self.folder),
            arguments=configuration.arguments(),
            environment={**configuration.environment(), "ATTEMPT": str(len(self._story) + 1)},
            ranks=configuration.ranks,
            strike=strike,
            is_watched=is_watched,
        )
        newest = self._newest_state(configuration)
        ended = self._lab.attempt(attempt)
        self._story.append(f"{strike} -> {ended.statuses} in {ended.training}, {ended.storing}")
        if ended.is_hit:
            self._lab.tally.hits.append((configuration, ended))
        if not _is_explained(strike, ended, self._newest_state(configuration), configuration):
            raise AssertionError(f"{self.describe()}\n{ended}\n{ended.output}")
        self._check_states(newest, configuration)
        self.is_complete = ended.statuses == [0] * configuration.ranks
        return ended

    def saved(self, configuration: Configuration) -> list[SavedState]:
        """Return what it has saved, called in this way."""
        return saved_states(self.states, configuration.loop, configuration.ranks)

    def _newest_state(self, configuration: Configuration) -> SavedState | None:
        return max(self.saved(configuration), key=lambda state: state.sequence, default=None)

    def _check_states(self, newest: SavedState | None, configuration: Configuration) -> None:
        """Whatever has hit the run, all states are whole, and it went on from the newest one.

        Args:
            newest: The newest state before the last start.
            configuration: How the script was called the last time.
        """
        damaged = [state for state in self.saved(configuration) if state.problem is not None]
        first = first_update(self.folder, configuration.ranks, attempt=len(self._story))
        after = self._newest_state(configuration)
        is_older = newest is not None and (after is None or after.sequence < newest.sequence)
        if damaged or is_older or first not in (None, 1 + (newest.update if newest else 0)):
            raise AssertionError(
                f"{self.describe()}\nnewest before: {newest}\nnewest after: {after}\ndamaged: {damaged}\n"
                f"first update that was trained: {first}"
            )

    def survive(self, configuration: Configuration, strikes: Iterator[Strike]) -> None:
        """Let strikes hit the run, starting it again after each of them, and let it come to its end."""
        for strike in itertools.islice(strikes, STRIKES_OF_A_RUN):
            self.start(configuration, strike)
            if self.is_complete:
                return
        self.start(configuration)

    def differences(self, configuration: Configuration) -> list[str]:
        """Say in what the complete run differs from one that nothing interrupted."""
        self._lab.tally.compared.append(configuration)
        return differences(Record.read(self.folder, configuration.ranks), self._lab.reference(configuration))

    def copy(self) -> Run:
        """Return another run that has come as far as this one."""
        other = self._lab.new_run()
        shutil.copytree(self.folder, other.folder, dirs_exist_ok=True)
        other._story = list(self._story)
        return other

    def remove(self) -> None:
        """Remove what the run has written."""
        shutil.rmtree(self.folder)

    def describe(self) -> str:
        """Return what happened to the run."""
        return "\n".join([str(self.folder), *self._story])


def _is_explained(strike: Strike | None, ended: Ended, newest: SavedState | None, configuration: Configuration) -> bool:
    """Whether the exit statuses are those that the strike should lead to.

    Args:
        strike: What hit the run, if it came to that.
        ended: How it ended.
        newest: The newest state that it has left.
        configuration: How the script was called.
    """
    statuses = set(ended.statuses)
    if ended.hangs or "is skipped" in ended.output:
        return False
    if strike is None or not ended.is_hit:
        return statuses == {0}
    if strike.kill_after is not None or strike.signal == "SIGKILL":
        return statuses <= (SOON_KILLED if strike.kill_after is not None else {-9, 0})
    if strike.phase is None or Phase.END.name in (strike.phase, ended.training):
        return statuses <= SOON_KILLED  # the run may just begin, or be about to end, and not look for signals any more
    if configuration.loop == TRIAL:  # a signal may come after the last look for one
        return statuses in ({0}, {PREEMPTED})
    is_complete = newest is not None and newest.complete  # by the number of epochs, or because it stopped early
    return statuses == ({0} if is_complete else {PREEMPTED})
