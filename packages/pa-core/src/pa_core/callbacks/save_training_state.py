"""Saving training states from time to time, and before the machine is taken away."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from pa_checkpoint import Folder
from pa_core import distributed
from pa_core.callbacks.interruptions import LastWords, SavedState, describe_interruption
from pa_core.callbacks.preemption_notices import OF_DEADLINE, AskedNotice, Deadline, PreemptionNotice, SaveAndStop
from pa_core.callbacks.uploads import Uploads, check_upload_arguments, warn_that_it_continues
from pa_core.engine.any_trainer import AnyTrainer, TrainerCallback
from pa_core.errors import (
    CheckpointError,
    ConfigurationError,
    NonFiniteLossError,
    TrainingPreempted,
    as_configuration_error,
)
from pa_core.run_config import check_count, is_positive
from pa_core.user_warnings import print_once, warn_user
from pa_distributed import SignalWatch


class SaveTrainingStateCallback(TrainerCallback):
    """Save training states, from which ``train(resume_from=save_dir)`` resumes an interrupted run.

    A training state is a directory with everything that the rest of the run depends on: weights, optimizers,
    schedulers, metrics, random generators, and the states of callbacks. Use it for runs that may be killed. For a file
    with the best weights, use ``SaveBestModelCallback``.

    Each state has its own directory in ``save_dir``, which is written atomically: ``epoch_5`` after an epoch,
    ``step_5000`` after an update, ``final`` at the end, or ``final_2`` if another run has a state of that name. An
    error is raised before the first step if an object cannot be saved, or if the folder cannot be written to or is in
    use by another run.

    Args:
        save_dir: The folder of the states, which is created if it is missing. With several nodes, it must be a folder
            that all of them share. A relative path, such as the default, starts at the working directory of the run.
        save_every_n_epochs: The number of epochs from one state to the next. None, the default, sets no such interval,
            because the best interval depends on the length of an epoch. Without any interval, a state is saved only at
            the end of the run.
        save_every_n_steps: The number of optimizer updates from one state to the next. None, the default, sets no such
            interval.
        save_at_end: Whether a state is saved when the run is complete. The default is True, so that a script that is
            started again does not repeat the training. A run that ended with an exception or a non-finite loss is not
            complete.
        max_checkpoints: The number of states of this run to keep; older states are removed. None, the default, keeps
            all. States of other runs in the folder are never removed, even if this run has resumed from one of them.
        save_every_n_seconds: The number of seconds from one state to the next, by the clock of the first process. All
            processes save after one of the next updates. None, the default, sets no such interval.
        asynchronous: Whether the files are written while the training continues. The default, False, waits for them.
            The state is copied to host memory first, which takes as much memory as the state. A write error is raised
            when the next state is saved, or when the run ends.
        stop_on_signals: Signals that announce preemption, such as ``("SIGTERM", "SIGUSR1")``. The run saves a state
            after the current update, or within an evaluation, and ``train()`` raises ``TrainingPreempted``, which ends
            a script with exit status 75. After the first signal, any other signal listed here is ignored while the
            process shuts down. The default leaves all signals to the script. In a thread, where Python delivers no
            signals, a warning is shown, or a note if there are notices or a deadline.
        upload_to: The URL of a folder in an object store, such as ``"s3://bucket/states"``. Each state is sent there
            while the training continues, and ``train(resume_from=...)`` accepts the same URL. It needs ``fsspec`` and
            the package with which fsspec accesses this kind of store. As many states are kept in the store as in
            ``save_dir``. The run does not end until the newest state is sent, even after a signal. An error is raised
            before the first step if the store cannot be used. The default, None, sends nothing.
        upload_errors: What happens if a state could not be sent after several attempts. ``"warn"``, the default, prints
            a warning when the next state is saved (it is sent instead) or when the run ends. ``"raise"`` ends the run
            at that point.
        on_save_error: What happens if a state cannot be written, for example because the disk is full. ``"raise"``, the
            default, ends the run. ``"warn"`` prints a warning, and the run continues without this state and tries again
            when the next state is due.
        notices: Objects that know whether the machine will be taken away (``PreemptionNotice``). Their method ``ask()``
            is called on every process after the same updates, and answers that a state has to be saved, with or
            without the end of the run. The answer of one process is enough. By default, there are no notices.
        ask_every: The number of updates from one question to the next; within an evaluation that may be interrupted,
            the number of batches. The default, 1, asks after each update. Pass a larger number if the answer of a
            notice takes long.
        deadline: When the run has to end: a time (``datetime``, in the local time zone if it has none), a duration from
            the start of each run in this process (``timedelta``), or ``"slurm"``, the end of the Slurm job. Before that
            time, the run saves a state and ends, as after a signal. With ``upload_to``, the state is also sent by then.
            The clock of the first process decides. If the processes have different deadlines, the earliest counts.
            None, the default, sets no deadline.
        deadline_margin: The number of seconds before the deadline at which the run ends as long as no save has been
            measured in this process; the default is 60. After the first save, three times the longest save and one
            second are reserved instead. In both cases, the longest update so far is added.

    Attributes:
        save_dir: The folder that was passed, as a path. The other arguments are also attributes, except
            ``stop_on_signals``, ``notices`` and ``deadline``.

    Raises:
        ArgumentTypeError: A notice has no method ``ask``, or the deadline is of another type.
        ConfigurationError: An interval is not positive, a signal is unknown, or ``save_dir`` is a URL. Or the deadline
            leaves no time, or the end of the Slurm job is unknown; ``train()`` raises it if the deadline has passed.
        CheckpointError: ``train()`` raises it before the first step if the folder or the object store cannot be used,
            or an object of the run cannot be saved, and later if a state cannot be written.
        FolderInUseError: ``train()`` raises it before the first step if another run is saving its states to the folder.
            It is a ``CheckpointError``.

    Example:
        >>> import tempfile, torch
        >>> from pa_core import SaveTrainingStateCallback, Trainer
        >>> def trainer(folder):
        ...     model = torch.nn.Linear(1, 1)
        ...     optimizer = torch.optim.Adam(model.parameters())
        ...     save = SaveTrainingStateCallback(folder, save_every_n_steps=4, max_checkpoints=2)
        ...     return Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[save])
        >>> samples = torch.utils.data.TensorDataset(torch.ones(80, 1), torch.ones(80, 1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = trainer(folder)
        ...     first.train(samples, num_epochs=1)
        ...     again = trainer(folder)
        ...     again.train(samples, num_epochs=2, resume_from=folder)  # doctest: +ELLIPSIS
        Resuming from ...final: at the start of epoch 2, after update 10.
        setting              saved  requested  used
        num_epochs           1      2          2
        max_num_train_steps  10     20         20
        >>> again.num_updates_completed, again.run_history.current_epoch
        (20, 3)
    """

    def __init__(
        self,
        save_dir: str | Path = "training_states",
        save_every_n_epochs: int | None = None,
        save_every_n_steps: int | None = None,
        save_at_end: bool = True,
        max_checkpoints: int | None = None,
        *,
        save_every_n_seconds: float | None = None,
        asynchronous: bool = False,
        stop_on_signals: Iterable[str | int] = (),
        upload_to: str | None = None,
        upload_errors: Literal["warn", "raise"] = "warn",
        on_save_error: Literal["raise", "warn"] = "raise",
        notices: Iterable[PreemptionNotice] = (),
        ask_every: int = 1,
        deadline: datetime | timedelta | Literal["slurm"] | None = None,
        deadline_margin: float = 60.0,
    ) -> None:
        if save_every_n_seconds is not None and not is_positive(save_every_n_seconds):
            raise ConfigurationError(
                f"save_every_n_seconds must be a positive number, or None, got {save_every_n_seconds!r}."
            )
        check_upload_arguments(save_dir, upload_to, upload_errors)
        if on_save_error not in ("raise", "warn"):
            raise ConfigurationError(f'on_save_error must be "raise" or "warn", got {on_save_error!r}.')
        self.save_dir: Path = Path(save_dir)
        self.save_every_n_epochs = save_every_n_epochs
        self.save_every_n_steps = save_every_n_steps
        self.save_every_n_seconds = save_every_n_seconds
        self.save_at_end = save_at_end
        self.max_checkpoints = max_checkpoints
        self.ask_every = ask_every
        for name in ("save_every_n_epochs", "save_every_n_steps", "max_checkpoints", "ask_every"):
            if (count := getattr(self, name)) is not None:
                check_count(name, count)
        self.asynchronous = asynchronous
        self.upload_to: str | None = upload_to
        self.upload_errors: Literal["warn", "raise"] = upload_errors
        self.on_save_error: Literal["raise", "warn"] = on_save_error
        self._signals = tuple(stop_on_signals)
        with as_configuration_error():
            SignalWatch(self._signals, lambda: None)  # raises an error for unknown signals
        if not is_positive(deadline_margin):
            raise ConfigurationError(f"deadline_margin must be a positive number, got {deadline_margin!r}.")
        self.deadline_margin = deadline_margin
        self._deadline = Deadline(deadline, deadline_margin)
        self._notices = [AskedNotice(notice) for notice in notices]
        self._asks = self._asks_deadline = False
        self._num_questions = self._first_update = 0
        self._folder: Path = self.save_dir
        self._last_sequence = 0
        self._last_save = 0.0
        self._has_requested = self._is_lost = False
        self._uploads: Uploads | None = None
        self._newest: SavedState | None = None

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Begin to count the time until the deadline.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            ConfigurationError: Slurm does not know when its job ends.
        """
        self._deadline.start(is_first=distributed.rank() == 0)

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Check that states can be saved, and begin to watch for signals.

        Args:
            trainer: The trainer.
            **kwargs: Not used.

        Raises:
            CheckpointError: The folder or the object store cannot be used, or an object of the run cannot be saved.
            FolderInUseError: Another run is saving its states there.
            ConfigurationError: The deadline has passed.
        """
        ends_early = bool(self._signals or self._notices or self._deadline.is_set)
        of_all = distributed.gather_objects((ends_early, self._deadline.given))  # each may have its own reasons
        trainer.preemptible |= any(ends for ends, _ in of_all)
        if not trainer.was_complete:
            self._deadline.begin((given for _, given in of_all), _updates_until_agreed(trainer))
        self._asks_deadline = self._deadline.is_set and distributed.rank() == 0  # which measures the saves
        self._asks = self._asks_deadline or bool(self._notices)
        self._has_requested = self._is_lost = False
        self._num_questions, self._uploads, self._newest = 0, None, None
        self._first_update = trainer.num_updates_completed
        for notice in self._notices:
            notice.last_answer = None
        self._folder = Path(os.path.realpath(self.save_dir))
        continued = trainer.reserve_state_folder(self._folder, upload_to=self.upload_to)
        if distributed.rank() == 0:
            # A complete run does not save again, so remove the remains of killed processes here.
            _remove(Folder(self._folder).remove_leftovers)
            if continued is not None:
                self._tidy_up(continued)
        self._last_save = time.monotonic()
        self._watch_signals(trainer)
        if self.upload_to is not None:
            # Exited before the watch of signals, so that no signal ends the process while it waits for the last upload.
            uploads = Uploads(self.upload_to, self.max_checkpoints, self.upload_errors, trainer.print)
            uploads.begin(self._folder, continued)
            self._last_sequence = max(self._last_sequence, uploads.next_sequence - 1)
            self._uploads = trainer.enter_run_context(uploads)
        if trainer.resume_from is not None and not trainer.was_complete:
            self._print_updates_at_risk(trainer)

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        """Save after every ``save_every_n_steps`` updates, or request a state after ``save_every_n_seconds``.

        The clock of the first process decides; all processes save after one of the next updates. The notices are asked.

        Args:
            trainer: The trainer.
            update: The number of optimizer updates of this run so far.
            **kwargs: Not used.
        """
        if self.save_every_n_steps is not None and update % self.save_every_n_steps == 0:
            self._save(trainer, f"step_{update}")
        elif self.save_every_n_seconds is not None and not self._has_requested and distributed.rank() == 0:
            self._has_requested = time.monotonic() - self._last_save >= self.save_every_n_seconds
            if self._has_requested:  # all processes know by the next update
                trainer.request_training_state()
        if self._asks:
            self._ask(trainer)

    @override
    def on_preemption_check(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Ask within an evaluation whether the run has to end.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        if self._asks:
            self._ask(trainer)

    @override
    def on_training_state_request(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        """Save a state that a process has requested.

        If several callbacks save states, those with ``save_every_n_seconds`` answer the request.

        Args:
            trainer: The trainer.
            update: The number of optimizer updates of this run so far.
            **kwargs: Not used.
        """
        callbacks = trainer.callback_handler.callbacks
        periods = [
            callback.save_every_n_seconds for callback in callbacks if isinstance(callback, SaveTrainingStateCallback)
        ]
        if self.save_every_n_seconds is not None or not any(periods):
            self._save(trainer, f"step_{update}")

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Save after every ``save_every_n_epochs`` epochs.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        if self.save_every_n_epochs is not None and trainer.num_epochs_completed % self.save_every_n_epochs == 0:
            self._save(trainer, f"epoch_{trainer.num_epochs_completed}")

    @override
    def on_preemption(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Save the last state of this process, before ``TrainingPreempted`` is raised.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._save(trainer, f"step_{trainer.num_updates_completed}")

    @override
    def on_stop_training_error(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Record whether a loss was not finite, because no final state is saved in that case.

        Args:
            trainer: The trainer.
            **kwargs: ``error``, the error that stops the run.
        """
        self._is_lost = isinstance(kwargs["error"], NonFiniteLossError)

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        """Print the name of the newest state after a preemption or Ctrl-C; nothing is saved here.

        Args:
            trainer: The trainer.
            exception: The exception.
            **kwargs: Not used.
        """
        if isinstance(exception, TrainingPreempted):
            by = f" by {exception.signal.name}" if exception.signal is not None else ""
            by = by or (f" ({exception.reason})" if exception.reason else "")
            also = "" if trainer.resume_from is not None else f", with resume_from={str(self.save_dir)!r}"
            do = f"Exit status {exception.STATUS}: start the same command again{also}."
            print_once(trainer, self._describe(trainer, f"Preempted{by}", do))
            made_none = trainer.num_updates_completed == self._first_update
            if exception.reason == OF_DEADLINE and made_none and trainer.is_main_process:
                warn_user(
                    "This run has made no update before its deadline: a job that starts again would make no progress. "
                    "Pass a later deadline, or a smaller deadline_margin."
                )
        elif isinstance(exception, KeyboardInterrupt) and not trainer.was_complete:
            print_once(trainer, self._describe(trainer, "Interrupted by Ctrl-C", _save_on("SIGINT")))

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Save the state of the complete run as ``final``, if ``save_at_end`` is True.

        A run that ended because of a loss that is not finite is not complete.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        if self.save_at_end and not (trainer.was_complete or self._is_lost):
            self._save(trainer, "final")

    def _watch_signals(self, trainer: AnyTrainer) -> None:
        """Watch for the signals that announce preemption, and print a line for SIGTERM otherwise."""
        is_main_thread = threading.current_thread() is threading.main_thread()
        others = ["the notices"] * bool(self._notices) + ["the deadline"] * self._deadline.is_set
        if self._signals and not is_main_thread and others:
            by = " and ".join(others)
            print_once(
                trainer,
                f"Signals do not reach the thread {threading.current_thread().name!r}, so only {by} can end this run.",
            )
        elif self._signals and not is_main_thread:
            warn_user(
                f"stop_on_signals={self._signals!r} has no effect in the thread {threading.current_thread().name!r}: "
                "only the main thread gets signals in Python. Call trainer.request_preemption() when this thread "
                "learns that the run has to end."
            )
        if is_main_thread:

            def request() -> None:
                trainer.request_preemption(signal=watch.received)

            watch = SignalWatch(self._signals, request, ends_by=TrainingPreempted)
            trainer.enter_run_context(watch)
        if trainer.num_processes == 1:
            words = partial(self._describe, trainer, "Ended by SIGTERM", _save_on("SIGTERM"))
            trainer.enter_run_context(LastWords(signal.SIGTERM, words))

    def _ask(self, trainer: AnyTrainer) -> None:
        """Ask the deadline and, after every ``ask_every`` calls, the notices, and tell all processes the answer."""
        if self._asks_deadline and self._deadline.is_near():
            trainer.request_preemption(OF_DEADLINE)
        if not self._notices:
            return
        self._num_questions += 1
        if self._num_questions % self.ask_every == 0:
            for notice in self._notices:
                answer = notice.ask()
                if answer is not notice.last_answer and notice.is_news(answer):
                    if isinstance(answer, SaveAndStop):
                        trainer.request_preemption(answer.reason)
                    else:
                        trainer.request_training_state()

    def _describe(self, trainer: AnyTrainer, what: str, do: str) -> str:
        return describe_interruption(what, trainer.num_updates_completed, self._newest, do)

    def _print_updates_at_risk(self, trainer: AnyTrainer) -> None:
        if (self.save_every_n_epochs, self.save_every_n_steps, self.save_every_n_seconds) == (None, None, None):
            when = "at the end of the run only" if self.save_at_end else "never"
            print_once(
                trainer,
                f"Training states are saved {when}: a killed run loses all progress since update "
                f"{trainer.num_updates_completed}. Pass save_every_n_epochs=1 to SaveTrainingStateCallback, for "
                "example.",
            )

    def _save(self, trainer: AnyTrainer, name: str) -> None:
        self._last_save = time.monotonic()
        self._has_requested = False
        if self._uploads is not None:
            self._uploads.tell_problems()
        folder = Folder(self._folder)
        # The previous state may still be being written.
        self._last_sequence = max(self._last_sequence + 1, folder.next_sequence())
        trainer.save_training_state(
            self._folder / name,
            asynchronous=self.asynchronous,
            sequence=self._last_sequence,
            on_saved=partial(self._on_saved, self._last_save),
            keep_other_runs=True,
            on_error=self.on_save_error,
        )

    def _on_saved(self, began: float, newest: Path) -> None:
        upload = 0.0 if self._uploads is None else self._uploads.longest
        self._deadline.record_save(time.monotonic() - began, upload)
        self._tidy_up(newest)

    def _tidy_up(self, newest: Path) -> None:
        """Remove states that are too old, and incomplete states of an earlier process of this run."""
        folder = Folder(self._folder)
        record = next((record for record in folder.records() if record.path == newest), None)
        if record is None:
            raise CheckpointError(
                f"The training state {newest}, which was just saved, is missing. Keep other programs from "
                "moving the folder, or set max_checkpoints instead of removing states."
            )
        run, self._newest = record.run, SavedState(newest.name, record.update)
        if self._uploads is not None:
            self._uploads.add(newest, run)
        _remove(partial(folder.remove_leftovers, run))
        if self.max_checkpoints is not None:
            unsent = () if self._uploads is None else self._uploads.unsent
            _remove(partial(folder.keep, self.max_checkpoints, run, unsent))


def _updates_until_agreed(trainer: AnyTrainer) -> int:
    """Return the number of updates until all processes act on a request."""
    if trainer.num_processes == 1:
        return 1
    return 2 if trainer.device.type == "cpu" else 4  # an accelerator reads the flags two updates late


def _save_on(name: str) -> str:
    return f'With stop_on_signals=("{name}",), a state is saved first.'


def _remove(what: Callable[[], object]) -> None:
    """Remove states, and warn if that fails."""
    try:
        what()
    except CheckpointError as error:
        warn_that_it_continues(error)
