"""Notices that the machine will be taken away, and the time at which a run has to have ended."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple, Protocol, TypeGuard, runtime_checkable

from pa_core.errors import ArgumentTypeError, ConfigurationError

OF_DEADLINE: Final = "the deadline"
"""The reason of a run that its deadline has ended."""

_END_OF_SLURM_JOB = "SLURM_JOB_END_TIME"

_SECONDS_FOR_SLURM = 60.0
"""How long Slurm may take to answer: its commands wait for a controller that is busy or starts again."""

_SAVES_IN_RESERVE = 3
"""The save that may be in progress, the last save, and one for a disk that is slower than it was."""

_UPLOADS_IN_RESERVE = 2

_SECONDS_IN_RESERVE = 1.0

_ANSWERS = "SaveAndContinue(reason), SaveAndStop(reason) or None"


@dataclass(frozen=True)
class SaveAndContinue:
    """The answer of a ``PreemptionNotice`` that a training state has to be saved, after which the run continues.

    Return it if the machine will be taken away, but the process need not exit, for example if an engine ends the
    process itself and starts it again elsewhere. The state is saved as after ``trainer.request_training_state()``.

    Args:
        reason: The reason. A notice may repeat its answer; a state is saved again only if the reason has changed, or if
            the notice has answered None in the meantime.

    Example:
        >>> from pa_core import SaveAndContinue
        >>> SaveAndContinue("node 3 will be replaced")
        SaveAndContinue(reason='node 3 will be replaced')
    """

    reason: str


@dataclass(frozen=True)
class SaveAndStop:
    """The answer of a ``PreemptionNotice`` that a training state has to be saved, and the run has to end.

    The run ends as after ``trainer.request_preemption(reason)``: ``train()`` raises ``TrainingPreempted``, so that the
    script ends with status 75.

    Args:
        reason: The reason, which the last line of the run shows; ``TrainingPreempted`` has it as an attribute.

    Example:
        >>> from pa_core import SaveAndStop
        >>> SaveAndStop("the spot instance is reclaimed")
        SaveAndStop(reason='the spot instance is reclaimed')
    """

    reason: str


@runtime_checkable
class PreemptionNotice(Protocol):
    """An object that knows whether the machine will be taken away, for example from a cloud or an engine.

    Any class with this method can be used, and need not derive from ``PreemptionNotice``. Pass its instances to
    ``SaveTrainingStateCallback(notices=[...])``.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from pa_core import SaveAndStop, SaveTrainingStateCallback, Trainer, TrainingPreempted
        >>> from pa_core.testing import make_regression
        >>> class StopFile:
        ...     def __init__(self, path):
        ...         self.path = path
        ...
        ...     def ask(self):
        ...         return SaveAndStop(f"{self.path.name} exists") if self.path.exists() else None
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "stop")
        ...     file.touch()
        ...     save = SaveTrainingStateCallback(f"{folder}/states", notices=[StopFile(file)], ask_every=2)
        ...     try:
        ...         Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[save]).train(make_regression(64), 1)
        ...     except TrainingPreempted as preempted:
        ...         print(preempted.reason)  # doctest: +ELLIPSIS
        Preempted (stop exists) after update 2. The newest training state is step_2: no update is lost. ...
        stop exists
    """

    def ask(self) -> SaveAndContinue | SaveAndStop | None:
        """Return what the run has to do, or None.

        It is called on every process after the same updates, and after the same batches of an evaluation that may be
        interrupted, so it may communicate with the other processes. The answer of one process is enough. Since it is
        called within the training, it should take microseconds, or be asked rarely (``ask_every``).
        """
        ...


class AskedNotice:
    """A notice, and the answer on which the run has acted.

    Args:
        notice: The notice.

    Attributes:
        ask: The method of the notice, which is called without another call in between because it is called so often.
        last_answer: Its last answer; None in a new run.

    Raises:
        ArgumentTypeError: The object has no method ``ask``.
    """

    def __init__(self, notice: PreemptionNotice) -> None:
        _require_notice(notice)
        self.ask: Callable[[], SaveAndContinue | SaveAndStop | None] = notice.ask
        self.last_answer: SaveAndContinue | SaveAndStop | None = None

    def is_news(self, answer: SaveAndContinue | SaveAndStop | None) -> TypeGuard[SaveAndContinue | SaveAndStop]:
        """Return whether an answer requires something that the last answer did not require.

        Args:
            answer: The answer, which is the last answer from now on.

        Raises:
            ArgumentTypeError: The answer is none of the three.
        """
        is_new = answer is not None and answer != self.last_answer
        if is_new:
            _require_known(answer)
        self.last_answer = answer
        return is_new


def _require_notice(notice: object) -> None:
    if not isinstance(notice, PreemptionNotice) or isinstance(notice, type):
        raise ArgumentTypeError(
            "A notice has no method ask().",
            given=repr(notice),
            expected=f"an object whose ask() returns {_ANSWERS}",
            do="Pass an instance of such a class.",
        )


def _require_known(answer: object) -> None:
    if not isinstance(answer, SaveAndContinue | SaveAndStop):
        raise ArgumentTypeError("The answer of a notice is not known.", given=repr(answer), expected=_ANSWERS)


class Limits(NamedTuple):
    """The deadline of a run, as it was given on one process, or the earliest of several processes.

    Attributes:
        end: The time, in seconds since 1970; infinite if none was given.
        duration: The seconds from the start of the run; infinite if none were given.
    """

    end: float = math.inf
    duration: float = math.inf


class Deadline:
    """The time by which the last state of a run has to be on the disk; the first process asks it.

    It expects that the next save and the next update take as long as the longest so far.

    Args:
        given: A time, a duration from the start of each run, ``"slurm"`` for the end of the Slurm job, or None.
        margin: The seconds in reserve until a save was measured.

    Attributes:
        given: The deadline that was given on this process.
        is_set: Whether a deadline was given on any process of the run.

    Raises:
        ConfigurationError: The deadline cannot be met, or Slurm has not set the end of the job.
        ArgumentTypeError: The deadline is of another type.
    """

    def __init__(self, given: datetime | timedelta | Literal["slurm"] | None, margin: float) -> None:
        self.given: Limits = Limits()
        self.is_set: bool = given is not None
        self._started = self._at = self._latest = math.inf
        self._reserve = margin
        self._longest_save = self._longest_interval = self._asked_at = 0.0
        self._later_updates = 0
        self._asks_slurm = False
        if isinstance(given, datetime):
            self.given = Limits(end=given.timestamp())
        elif isinstance(given, timedelta):
            self.given = Limits(duration=given.total_seconds())
            if self.given.duration <= margin:
                raise ConfigurationError(
                    f"deadline={given!r} leaves no time to train, because {margin:g} seconds are reserved for a save.",
                    do="Pass a longer deadline, or a smaller deadline_margin.",
                )
        elif given == "slurm":
            self._asks_slurm = _END_OF_SLURM_JOB not in os.environ and _can_ask_slurm()
            if not self._asks_slurm:
                self.given = Limits(end=_end_of_slurm_job(os.environ.get(_END_OF_SLURM_JOB)))
        elif given is not None:
            raise ArgumentTypeError(
                "The deadline is of a wrong type.",
                given=f"deadline={given!r}",
                expected='a datetime, a timedelta, "slurm" or None',
            )

    def start(self, is_first: bool) -> None:
        """Begin to count a duration, or ask Slurm for the end of its job.

        Args:
            is_first: Whether this is the first process, the only one that asks: a job may have thousands.

        Raises:
            ConfigurationError: Slurm does not know the end of the job.
        """
        if self._asks_slurm and is_first:
            self.given = Limits(end=_end_of_slurm_job(_ask_slurm()))
        self._started = time.monotonic()

    def begin(self, of_all: Iterable[Limits], num_updates: int) -> None:
        """Take the earliest deadline, and begin to measure intervals, when the training begins.

        Args:
            of_all: The deadlines that were given on all processes.
            num_updates: The number of updates until all processes act on an answer, from 1.

        Raises:
            ConfigurationError: The deadline has passed.
        """
        now, clock = time.monotonic(), time.time()  # a clock that is set later has no effect
        ends, durations = zip(*of_all, strict=True)
        self._at = min(now + min(ends) - clock, self._started + min(durations))
        self.is_set = math.isfinite(self._at)
        if self._at <= now:
            end = datetime.fromtimestamp(clock + self._at - now).astimezone()
            raise ConfigurationError(
                "The deadline of the run has passed before its first update.",
                given=end.isoformat(" ", "seconds"),
                do="Pass a later deadline, or a timedelta, which counts from the start of each run.",
            )
        self._later_updates = num_updates - 1
        self._asked_at = self._longest_interval = 0.0
        self._update_latest()

    def record_save(self, seconds: float, upload: float | None) -> None:
        """Record how long a save took, from its request until the state was on the disk.

        Args:
            seconds: The duration.
            upload: The seconds of the longest upload of a state; 0 if states are not sent, and None before the first.
        """
        self._longest_save = max(self._longest_save, seconds)
        if upload is not None:
            self._reserve = _SAVES_IN_RESERVE * self._longest_save + _UPLOADS_IN_RESERVE * upload + _SECONDS_IN_RESERVE
            self._update_latest()

    def is_near(self) -> bool:
        """Return whether the last state has to be saved now; it is called after each update and batch."""
        now = time.monotonic()
        interval = now - (self._asked_at or now)
        self._asked_at = now
        if interval > self._longest_interval:
            self._longest_interval = interval
            self._update_latest()
        return now + self._later_updates * interval >= self._latest

    def _update_latest(self) -> None:
        self._latest = self._at - self._reserve - self._longest_interval


def _can_ask_slurm() -> bool:
    return "SLURM_JOB_ID" in os.environ and shutil.which("squeue") is not None


def _ask_slurm() -> str:
    """Return what Slurm answers to the question when the job of this process ends."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{task}" if array else os.environ["SLURM_JOB_ID"]  # which may be the number of a whole array
    try:
        asked = subprocess.run(
            ["squeue", "--noheader", f"--jobs={job}", "--format=%e"],
            env={**os.environ, "SLURM_TIME_FORMAT": "%s"},
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS_FOR_SLURM,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return asked.stdout.strip()


def _end_of_slurm_job(said: str | None) -> float:
    """Return when the Slurm job of this process ends, in seconds since 1970.

    Args:
        said: What Slurm has said.

    Raises:
        ConfigurationError: It is not a time.
    """
    if said is None or not said.isdecimal() or int(said) == 0:
        raise ConfigurationError(
            'deadline="slurm" needs the time at which the Slurm job ends.',
            given=f"no environment variable {_END_OF_SLURM_JOB}, and no squeue" if said is None else f"{said!r}",
            expected=f"a job with a time limit, for which Slurm has set {_END_OF_SLURM_JOB}, or squeue prints its end",
            do="Pass the time limit of the job as a timedelta, for example deadline=timedelta(hours=4).",
        )
    return float(said)
