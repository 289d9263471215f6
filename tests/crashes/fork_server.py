"""A process that has imported everything, starts the script by forking itself, and kills it as it is told.

Importing takes seconds, the run itself hardly one. It reads each `Attempt` as a line of JSON, and answers with an
`Ended`.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import accelerate  # noqa: F401  # pyright: ignore[reportUnusedImport]  # here, or each process would import it
import torch
import torch._dynamo  # pyright: ignore[reportUnusedImport]  # as above

from tests.crashes import script
from tests.crashes.phases import Phase, Watch
from tests.crashes.strikes import Strike
from tests.launching import free_port

__all__ = ["Attempt", "Ended"]

_SECONDS_BETWEEN_LOOKS = 0.0005
_SECONDS_FOR_THE_OTHERS = 10.0
"""After one rank has failed, as a launcher grants them."""


@dataclass(frozen=True)
class Attempt:
    """One start of the script.

    Attributes:
        folder: Where the run writes.
        arguments: Its further arguments.
        environment: Its further variables.
        ranks: The number of processes.
        strike: What happens to it; None lets it end by itself.
        is_watched: Whether it notes down its phases.
        seconds: The time after which it is taken to hang.
    """

    folder: str
    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    ranks: int = 1
    strike: Strike | None = None
    is_watched: bool = True
    seconds: float = 60.0

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the attempt with these values."""
        strike = values.pop("strike")
        return cls(**values, strike=None if strike is None else Strike(**strike))


@dataclass(frozen=True)
class Ended:
    """How an attempt ended.

    Attributes:
        statuses: By rank: the exit status, or minus the number of the signal that ended it.
        is_hit: Whether it was still running when the strike came.
        training: The phase of the training that was hit.
        storing: The phase of storing that was hit, "NONE" if none was going on.
        is_resumed: Whether the run that was hit had gone on from a state.
        hangs: Whether it had to be ended because it took too long.
        seconds: How long it took.
        output: What it printed.
    """

    statuses: list[int]
    is_hit: bool
    training: str
    storing: str
    is_resumed: bool
    hangs: bool
    seconds: float
    output: str


class _BecomeScript(BaseException):  # it is no error
    """Leaves the loop of the server in a forked process, which goes on as the script and ends as scripts do."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments


class _Processes:
    """The ranks of one attempt, in a process group of their own."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._output = Path(attempt.folder, "output.txt")
        self._output.write_text("")
        self._pids: list[int] = []
        self._statuses: dict[int, int] = {}
        self._others_end_at: float | None = None
        port = str(free_port())
        for rank in range(attempt.ranks):
            of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1"}
            of_rank |= {"WORLD_SIZE": str(attempt.ranks), "LOCAL_WORLD_SIZE": str(attempt.ranks)}
            self._pids.append(self._fork(of_rank if attempt.ranks > 1 else {}))

    def _fork(self, environment: dict[str, str]) -> int:
        group = self._pids[0] if self._pids else 0
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, group)
            _redirect(self._output)
            os.environ.update(environment | self._attempt.environment)
            raise _BecomeScript([self._attempt.folder, *self._attempt.arguments])
        os.setpgid(pid, group)  # here as well: the forked process may come to it too late for the next one
        return pid

    @property
    def are_running(self) -> bool:
        """Whether one of them is still there."""
        for rank, pid in enumerate(self._pids):
            # Not to be forgotten by the system yet: their numbers must stay theirs until the group is killed.
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._statuses[rank] = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return len(self._statuses) < len(self._pids)

    def end_before(self, deadline: float) -> bool:
        """Wait for the end of all of them, and return whether it came; one that failed is soon followed by the others.

        Args:
            deadline: On the clock of ``time.monotonic``.
        """
        while self.are_running and time.monotonic() < deadline:
            if any(self._statuses.values()) and not self._others_end_at:
                self._others_end_at = time.monotonic() + _SECONDS_FOR_THE_OTHERS
            if self._others_end_at and time.monotonic() > self._others_end_at:
                self.send(signal.SIGKILL)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return not self.are_running

    def send(self, number: int, rank: int | None = None) -> None:
        """Send a signal to one rank, or to all processes of the group, the workers of loaders too."""
        if rank is None:
            os.killpg(self._pids[0], number)
        else:
            os.kill(self._pids[rank], number)

    def clean_up(self) -> tuple[list[int], str]:
        """Kill what is left, workers too, and return the statuses and what was printed."""
        self.send(signal.SIGKILL)
        while self.are_running:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        for pid in self._pids:
            os.waitpid(pid, 0)
        return [self._statuses[rank] for rank in range(len(self._pids))], self._output.read_text(errors="replace")


def _redirect(output: Path) -> None:
    nothing, file = os.open(os.devnull, os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_APPEND)
    for ours, theirs in ((0, nothing), (1, file), (2, file)):
        os.dup2(theirs, ours)


def _run(attempt: Attempt) -> Ended:
    """Start the script, let the strike hit it, and wait for its end."""
    watches = _make_watches(attempt)
    started = time.monotonic()
    processes = _Processes(attempt)
    strike, phases, is_hit = attempt.strike, (Phase.NONE, Phase.NONE), False
    if strike is not None:
        is_hit = _wait_for(strike, attempt, processes, watches)
        phases = watches[strike.rank].phases
        if is_hit:
            _hit(strike, processes, watches[strike.rank])
    hangs = not processes.end_before(started + attempt.seconds)
    statuses, output = processes.clean_up()
    if strike is not None and -signal.SIGKILL in statuses:
        phases = watches[strike.rank].phases  # where it really was
    return Ended(
        statuses=statuses,
        is_hit=is_hit,
        training=phases[0].name,
        storing=phases[1].name,
        is_resumed=bool(watches) and watches[0].is_resumed,
        hangs=hangs,
        seconds=time.monotonic() - started,
        output=output,
    )


def _make_watches(attempt: Attempt) -> list[Watch]:
    paths = [script.watch_path(Path(attempt.folder), rank) for rank in range(attempt.ranks)]
    for path in paths:
        path.unlink(missing_ok=True)
    watches = [Watch(path) for path in paths] if attempt.is_watched else []
    if attempt.strike is not None and attempt.strike.phase is not None:
        watches[attempt.strike.rank].aim(Phase[attempt.strike.phase], attempt.strike.occurrence)
    return watches


def _wait_for(strike: Strike, attempt: Attempt, processes: _Processes, watches: list[Watch]) -> bool:
    """Wait for the moment of a strike; return whether it came before all processes had ended."""
    watch = watches[strike.rank]
    until = time.monotonic() + (attempt.seconds if strike.after is None else strike.after)
    while processes.are_running and time.monotonic() < until and not watch.is_held:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return processes.are_running and (strike.after is not None or watch.is_held)


def _hit(strike: Strike, processes: _Processes, watch: Watch) -> None:
    processes.send(signal.Signals[strike.signal], None if strike.hits == "group" else strike.rank)
    watch.release()
    if strike.kill_after is not None:
        time.sleep(strike.kill_after)
        processes.send(signal.SIGKILL)


def _requests() -> Iterator[Attempt]:
    for line in sys.stdin:
        yield Attempt.from_dict(json.loads(line))


def _serve() -> None:
    torch.set_num_threads(1)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise RuntimeError("There is a second thread, which a fork would not take along: set OMP_NUM_THREADS=1.")
    gc.freeze()  # or each process would copy all of this memory when it ends, to look for garbage in it
    for attempt in _requests():
        sys.stdout.write(json.dumps(asdict(_run(attempt))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        _serve()
    except _BecomeScript as start:
        script.main(start.arguments)
