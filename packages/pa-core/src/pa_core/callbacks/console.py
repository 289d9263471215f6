"""What a run shows on the console: progress bars, messages and metrics.

This is the only module that imports tqdm, and it does so when the first bar is drawn.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TextIO, cast

from typing_extensions import override

from pa_core.any_trainer import AnyTrainer
from pa_core.callbacks.base import TrainerCallback
from pa_core.callbacks.epoch_progress import EpochProgress, PlainLines, ProgressDisplay, format_rate
from pa_core.callbacks.metric_direction import JudgesMetric
from pa_core.callbacks.run_summary import format_duration, format_table, summarise
from pa_core.errors import StopTrainingError
from pa_core.tracking import RunHistory
from pa_core.tracking.metric_values import as_number
from pa_core.types import BatchOutput

if TYPE_CHECKING:
    from tqdm import tqdm

__all__ = ["LogMetricsCallback", "PrintProgressCallback", "ProgressBarCallback", "bars_hidden"]


@contextmanager
def bars_hidden() -> Generator[None]:
    """Within the context, progress bars are off the screen, so that printed lines stay whole.

    Bars of tqdm that a program draws itself are taken off as well. Where no bar was ever drawn this does
    nothing.

    Example:
        >>> with bars_hidden():
        ...     print("a line of its own")
        a line of its own
    """
    if "tqdm" not in sys.modules:
        yield
        return
    from tqdm import tqdm

    with tqdm.external_write_mode():
        yield


class ProgressBarCallback(TrainerCallback):
    """Shows the progress of each epoch: mean loss so far, learning rate, samples per second.

    On a terminal and in a notebook this is a progress bar, on standard error. Without a terminal, for example in a
    job, a line is written to standard output every 30 seconds and at the end of each epoch, among the metrics. With
    standard output alone in a file, that file still gets the line at the end of each epoch. Only the first process
    of each machine shows anything. The loss is that of this process, and never waits for an accelerator.

    Example:
        >>> from pa_core import get_default_callbacks
        >>> any(callback is ProgressBarCallback for callback in get_default_callbacks())
        True
    """

    def __init__(self) -> None:
        self._train: EpochProgress | None = None
        self._eval: EpochProgress | None = None
        self._only_evaluates = False

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Take note that evaluation epochs follow training epochs."""
        self._only_evaluates = False

    @override
    def on_evaluation_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Take note that there is no epoch to name."""
        self._only_evaluates = True

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Open the display of a training epoch."""
        title = f"Epoch {trainer.run_history.current_epoch}"
        display = _open_display(trainer, title, _num_batches_to_train(trainer), keeps_last=True)
        self._train = None if display is None else EpochProgress(display, shows_learning_rate=True)

    @override
    def on_train_steps_passed_over(self, trainer: AnyTrainer, steps: int, **kwargs: Any) -> None:
        """Go on from where the epoch was interrupted, or show how far the loader is on its way there."""
        if self._train is not None:
            self._train.pass_over(steps)

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        """Count the batch."""
        if self._train is not None:
            self._train.step(trainer, batch_output["batch_size"])

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the display."""
        self._close_train(trainer, is_complete=True)

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, *, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Open the display of an evaluation epoch, below that of the training epoch if there is one."""
        if self._train is not None:
            self._train.pause()
        if trainer.eval_dataloader is None:
            return
        title = "Evaluation" if self._only_evaluates else f"Epoch {trainer.run_history.current_epoch} eval"
        display = _open_display(trainer, title, len(trainer.eval_dataloader), keeps_last=not is_intermediate)
        self._eval = None if display is None else EpochProgress(display, shows_learning_rate=False)

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        """Count the batch."""
        if self._eval is not None:
            self._eval.step(trainer, batch_output["batch_size"])

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close the display of the evaluation, and go on with that of the training."""
        self._close_eval(trainer, is_complete=True)
        if self._train is not None:
            self._train.resume()

    @override
    def on_stop_training_error(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Close what is open."""
        self._close_eval(trainer, is_complete=False)
        self._close_train(trainer, is_complete=False)

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        """Close what is open, so that the traceback starts on a line of its own."""
        self._close_eval(trainer, is_complete=False)
        self._close_train(trainer, is_complete=False)

    def _close_train(self, trainer: AnyTrainer, is_complete: bool) -> None:
        if self._train is not None:
            self._train.close(trainer, is_complete)
            self._train = None

    def _close_eval(self, trainer: AnyTrainer, is_complete: bool) -> None:
        if self._eval is not None:
            self._eval.close(trainer, is_complete)
            self._eval = None


class PrintProgressCallback(TrainerCallback):
    """Prints a message at the start and the end of a run and at the start of each epoch.

    A training run ends with a table: of each metric the last value, the best value and the epoch of the best.
    Of a metric that a callback such as ``SaveBestModelCallback`` judges by, the best value is the one that counts
    there. Of others, which direction is better is told from the name (a loss or an error should be low, an accuracy
    high); where the name does not say, no value is called the best. Samples per second are those of the training
    epochs alone, without the evaluations.

    Args:
        greater_is_better: For metrics by name, whether a higher value is better. It wins over what callbacks and
            names say.

    Example:
        >>> import torch
        >>> from pa_core import PrintProgressCallback, Trainer
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
        >>> show = PrintProgressCallback(greater_is_better={"my_metric": True})
        >>> Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[show]).evaluate(samples)
        ... # doctest: +ELLIPSIS
        Evaluation starts: 1 batch; 1 process, device cpu, precision fp32
        Evaluation ended in ... s
    """

    def __init__(self, greater_is_better: Mapping[str, bool] = MappingProxyType({})) -> None:
        self.greater_is_better = greater_is_better
        self._start = _Reading(0, 0.0)
        self._training_seconds = 0.0
        self._training_since: float | None = None

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print what is going to run, if anything is."""
        self._start = _Reading.of(trainer)
        self._training_seconds = 0.0
        self._training_since = None
        if trainer.was_complete:
            return
        config = trainer.run_config
        updates = config.num_update_steps_per_epoch
        length = f"{_count(config.num_epochs, 'epoch')} of {_count(updates, 'update')}"
        if config.max_num_train_steps is not None and config.max_num_train_steps < config.num_epochs * updates:
            length += f", at most {_count(config.max_num_train_steps, 'update')}"
        samples = _count(config.train_total_batch_size, "sample")
        _print(trainer, f"Training starts: {length}, {samples} per update; {trainer.describe_run()}")

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print the number of the epoch."""
        _print(trainer, f"Starting epoch {trainer.run_history.current_epoch}")
        self._training_since = trainer.run_history.clock.seconds

    @override
    def on_train_steps_passed_over(self, trainer: AnyTrainer, steps: int, **kwargs: Any) -> None:
        """Leave out the time in which nothing was trained."""
        self._training_since = trainer.run_history.clock.seconds

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Stop the time of the training."""
        self._stop_training_time(trainer)

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Stop the time of the training."""
        self._stop_training_time(trainer)

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, *, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Let the time of the training go on, if the training does."""
        if is_intermediate:
            self._training_since = trainer.run_history.clock.seconds

    @override
    def on_stop_training_error(
        self, trainer: AnyTrainer, *, error: StopTrainingError | None = None, **kwargs: Any
    ) -> None:
        """Print why the run stops."""
        self._stop_training_time(trainer)
        reason = str(error) or type(error).__name__
        _print(trainer, f"Stopping early: {reason.splitlines()[0]}")

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print what ran, and the table of the metrics."""
        if not trainer.was_complete:
            self._print_what_ran(trainer)
        directions = {**_directions_judged_by(trainer.callback_handler.callbacks), **self.greater_is_better}
        table = format_table(summarise(trainer.run_history, directions))
        if table:
            _print(trainer, table)

    def _print_what_ran(self, trainer: AnyTrainer) -> None:
        start, end = self._start, _Reading.of(trainer)
        ran = f"{_count(trainer.num_epochs_completed, 'epoch')}, {_count(trainer.num_updates_completed, 'update')}"
        speed = ""
        if self._training_seconds > 0 and end.samples > start.samples:
            rate = (end.samples - start.samples) / self._training_seconds
            speed = f", {format_rate(rate)} samples/s in training"
        _print(trainer, f"Training ended: {ran} in {format_duration(end.seconds - start.seconds)}{speed}")

    @override
    def on_evaluation_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print that the evaluation starts."""
        batches = _count(0 if trainer.eval_dataloader is None else len(trainer.eval_dataloader), "batch", "batches")
        _print(trainer, f"Evaluation starts: {batches}; {trainer.describe_run()}")
        self._start = _Reading.of(trainer)

    @override
    def on_evaluation_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print that the evaluation has ended."""
        seconds = trainer.run_history.clock.seconds - self._start.seconds
        _print(trainer, f"Evaluation ended in {format_duration(seconds)}")

    def _stop_training_time(self, trainer: AnyTrainer) -> None:
        if self._training_since is not None:
            self._training_seconds += trainer.run_history.clock.seconds - self._training_since
            self._training_since = None


class LogMetricsCallback(TrainerCallback):
    """Logs the latest value of every metric that was updated since it was logged last, and is a number.

    Metrics with ``train`` in their name are logged when a training epoch ends, all others after an
    evaluation, and those that are updated later still at the end of the epoch. Callbacks that record metrics belong
    before this one: what they record behind it at the end of an epoch is logged with the next epoch, or when the run
    ends. This class prints metrics, once on each machine. Derive from it and override ``log_metrics`` to send them
    elsewhere.

    Example:
        >>> from pa_core import AnyTrainer, LogMetricsCallback
        >>> class LogToList(LogMetricsCallback):
        ...     def __init__(self) -> None:
        ...         self.logged: list[dict[str, float]] = []
        ...     def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        ...         if trainer.run_config.is_world_process_zero:
        ...             self.logged.append(metrics)
    """

    # How many values of each metric were there when it was logged last; None before the first epoch of a run.
    # It is not set in __init__, since loggers derived from this class need not call that.
    _logged: dict[str, int] | None = None

    def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        """Log the latest values; override this to send them to a tracker.

        It is called on every process.

        Args:
            trainer: The trainer.
            metrics: The value of each metric that was updated.
        """
        _print(trainer, "\n".join(f"{name}: {value:.6g}" for name, value in metrics.items()))

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Take note that a run begins."""
        self._logged = None

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Take note of what was recorded before this run, which by now is reset or restored."""
        self._pass_over_earlier_runs(trainer)

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Take note of what was recorded before this run, if it only evaluates."""
        self._pass_over_earlier_runs(trainer)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log the metrics of the training."""
        self._log_updated(trainer, [name for name in trainer.run_history.get_metric_names() if "train" in name])

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log all other metrics."""
        self._log_updated(trainer, [name for name in trainer.run_history.get_metric_names() if "train" not in name])

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log what was updated after the metrics had been logged, or without an evaluation."""
        self._log_updated(trainer, trainer.run_history.get_metric_names())

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log what a callback behind this one has recorded at the end of the last epoch."""
        self._log_updated(trainer, trainer.run_history.get_metric_names())

    @override
    def on_evaluation_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Log what was updated after the metrics had been logged."""
        self._log_updated(trainer, trainer.run_history.get_metric_names())

    def _pass_over_earlier_runs(self, trainer: AnyTrainer) -> None:
        if self._logged is None:
            self._logged = _numbers_of_values(trainer.run_history)

    def _log_updated(self, trainer: AnyTrainer, names: Iterable[str]) -> None:
        history = trainer.run_history
        logged, counts = self._logged or {}, _numbers_of_values(history)
        updated = [name for name in names if counts[name] != logged.get(name, 0)]
        if updated:
            self._logged = {**logged, **{name: counts[name] for name in updated}}
            latest = {name: as_number(history.get_latest_metric(name)) for name in updated}
            numbers = {name: number for name, number in latest.items() if number is not None}
            if numbers:
                self.log_metrics(trainer, numbers)


class _Reading(NamedTuple):
    """What the clock of the run history says at one moment."""

    samples: int
    seconds: float

    @classmethod
    def of(cls, trainer: AnyTrainer) -> _Reading:
        clock = trainer.run_history.clock
        return cls(clock.samples, clock.seconds)


class _TerminalBar(ProgressDisplay):
    """A bar of tqdm, on a terminal or in a notebook.

    Args:
        title: What the bar starts with.
        total: The number of batches of the epoch.
        stream: Where it is drawn.
        keeps_last: Whether it stays on the screen after the epoch.
        log: Gets the line at the end of the epoch as well, where standard output is not on the screen.
    """

    seconds_between: float = 0.1

    def __init__(self, title: str, total: int, stream: TextIO, keeps_last: bool, log: ProgressDisplay | None) -> None:
        self._log = log
        assumed = _size_if_unknown(stream)
        self._bar = _bar_class()(
            desc=title,
            total=total,
            file=stream,
            leave=keeps_last,
            # The last column and the last line are left free, as tqdm does itself.
            ncols=None if assumed is None else assumed.columns - 1,
            nrows=None if assumed is None else assumed.lines - 1,
            dynamic_ncols=assumed is None,
            # It is told when to refresh, and does so each time.
            mininterval=0,
            miniters=1,
            bar_format="{desc} |{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]",
        )

    @override
    def show(self, batches: int, figures: str) -> None:
        self._bar.set_postfix_str(figures, refresh=False)
        self._bar.update(batches - self._bar.n)

    @override
    def resume(self) -> None:
        self._bar.unpause()

    @override
    def close(self, batches: int, figures: str) -> None:
        self.show(batches, figures)
        self._bar.close()
        if self._log is not None:
            self._log.close(batches, figures)


@cache
def _bar_class() -> type[tqdm[NoReturn]]:
    from tqdm import tqdm

    # An interval of 0: no thread in the background that looks after bars which nobody refreshes.
    return cast("type[tqdm[NoReturn]]", type("Bar", (tqdm,), {"monitor_interval": 0}))


def _size_if_unknown(stream: TextIO) -> os.terminal_size | None:
    """Return the size to assume for a terminal that reports none, as in some containers; None where it is known.

    A bar of 0 columns would be invisible, and so would one that lies below the last of 0 lines.
    """
    try:
        reported = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # not a terminal, but a notebook for example
        return None
    return None if all(reported) else shutil.get_terminal_size()


def _open_display(trainer: AnyTrainer, title: str, total: int, keeps_last: bool) -> ProgressDisplay | None:
    """Return what suits the place where the output goes; None where nothing is shown."""
    if not trainer.run_config.is_local_process_zero:
        return None
    screen: TextIO | None = sys.stderr
    log: TextIO | None = sys.stdout
    lines = None if log is None else PlainLines(title, total, log, keeps_last)
    if screen is not None and _is_notebook(screen):
        return _TerminalBar(title, total, screen, keeps_last, log=None)
    if screen is not None and _is_terminal(screen):
        return _TerminalBar(title, total, screen, keeps_last, log=None if log is None or log.isatty() else lines)
    return lines


def _is_notebook(stream: TextIO) -> bool:
    return type(stream).__module__.startswith("ipykernel")


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _directions_judged_by(callbacks: Iterable[object]) -> dict[str, bool]:
    """For metrics by name, what the callbacks of a run take for better; the first of several decides."""
    judges = [one for one in callbacks if isinstance(one, JudgesMetric)]
    return {judge.watch_metric: judge.greater_is_better for judge in reversed(judges)}


def _num_batches_to_train(trainer: AnyTrainer) -> int:
    """Return the length of the epoch that begins, which may be the one that ``max_num_train_steps`` cuts."""
    config, whole = trainer.run_config, len(trainer.train_dataloader)
    if config.max_num_train_steps is None:
        return whole
    updates_left = config.max_num_train_steps - trainer.num_updates_completed
    # A run that goes on in mid-epoch has some of the epoch's updates behind it.
    updates_done = max(
        0, trainer.num_updates_completed - trainer.num_epochs_completed * config.num_update_steps_per_epoch
    )
    return min(whole, (updates_left + updates_done) * config.gradient_accumulation_steps)


def _print(trainer: AnyTrainer, text: str) -> None:
    with bars_hidden():
        # Without flush, these lines would stand in a log file behind those of the progress, written at once.
        trainer.print(text, flush=True)


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def _numbers_of_values(history: RunHistory) -> dict[str, int]:
    return {name: history.count_metric_values(name) for name in history.get_metric_names()}
