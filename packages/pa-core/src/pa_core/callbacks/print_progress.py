"""Messages about the progress of a run, its epochs as rows, and the table of its metrics at the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from typing_extensions import override

from pa_core.any_trainer import AnyTrainer
from pa_core.callbacks.epoch_rows import format_rate, format_time, is_loss
from pa_core.callbacks.log_metrics import EpochTable, LogMetricsCallback, RowDisplay, known_directions
from pa_core.callbacks.run_summary import describe_trained, format_duration, format_table, summarise
from pa_core.callbacks.terminate_on_nan import TerminateOnNaNCallback
from pa_core.data.custom_loader import innermost, is_keyed, length_of
from pa_core.errors import StopTrainingError
from pa_core.model_tensors import learning_rates_of
from pa_core.tracking.run_history import INTERMEDIATE_PREFIX


class PrintProgressCallback(RowDisplay):
    """Prints a message at the start and the end of a run, and a row for each epoch.

    The message at the start says how long the run is and what it trains: how many of the parameters, and which of them
    are not frozen and yet in no optimizer, such as a head that was forgotten. It names where callbacks write, by their
    attributes ``save_dir``, ``save_path`` and ``upload_to``, and says where no callback watches for a loss that is NaN.

    The row has the losses of the epoch, the learning rate at its end (the highest of the parameter groups of the
    first optimizer, before a scheduler of epochs is stepped), samples per second of the training, and the time that it
    took with its evaluation. ``LogMetricsCallback`` adds the metrics. A value is marked with ``*`` where it is better
    than in all epochs before, including the epochs before a resume, unless ``train`` is in its name. What has no room
    in 80 columns follows on indented lines. An evaluation within an epoch has its own row, whose first cell says how
    many epochs were trained by then: ``1.50``, or ``@200`` after the 200th update of a stream without an end.

    A training run ends with a table: of each metric the last value, the best value and the epoch of the best.
    Of a metric that a callback such as ``SaveBestModelCallback`` judges by, the best value is the one that counts
    there. Of others, which direction is better is told from the name (a loss or an error should be low, an accuracy
    high); where the name does not say, no value is called the best. Samples per second are measured over the training
    epochs alone, without the evaluations, and without the first update of the run, in which workers start and a model
    may be compiled.

    Args:
        greater_is_better: For metrics by name, whether a higher value is better. It overrides what callbacks and names
            say.

    Example:
        >>> import torch
        >>> from pa_core import PrintProgressCallback, Trainer
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> samples = torch.utils.data.TensorDataset(torch.ones(8, 1), torch.ones(8, 1))
        >>> show = PrintProgressCallback(greater_is_better={"my_metric": True})
        >>> _ = Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=[show]).evaluate(samples)
        ... # doctest: +ELLIPSIS
        Evaluation starts: 1 batch; 1 process, device cpu, precision fp32
        Evaluation ended in ... s
          evaluation_loss ...
    """

    def __init__(self, greater_is_better: Mapping[str, bool] = MappingProxyType({})) -> None:
        super().__init__()
        self.greater_is_better = greater_is_better
        self._run_since = self._epoch_since = 0.0
        self._training = _TrainingTime()
        self._learning_rate: float | None = None

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Begin a table, of the losses alone unless a callback wants all metrics printed."""
        loggers = [one for one in trainer.callback_handler.callbacks if isinstance(one, LogMetricsCallback)]
        shows_all = any(one._only_prints for one in loggers)  # pyright: ignore[reportPrivateUsage]  # nobody else needs to know
        self._table = EpochTable((lambda name: True) if shows_all else is_loss, self.greater_is_better)

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print what is going to run, if anything is."""
        self._run_since = self._epoch_since = trainer.run_history.clock.seconds
        self._training = _TrainingTime()
        if trainer.was_complete:
            return
        config = trainer.run_config
        updates = config.num_update_steps_per_epoch
        has_own_batches = trainer.epoch_lengths.updates_per_group > 1
        at_most = "at most " if has_own_batches else ""
        length = f"{_count(config.num_epochs, 'epoch')} of {at_most}{_count(updates, 'update')}"
        if not trainer.epoch_lengths.are_known:
            length = f"{_count(updates, 'update')} of a stream"
        total = config.max_num_train_steps
        whole = trainer.epoch_lengths.updates_before(config.num_epochs)
        if total is not None and total < config.num_epochs * updates:
            length += (
                f", at most {_count(total, 'update')}" if total < whole else f" on average, {_count(total, 'update')}"
            )
        samples = f"{_count(config.train_total_batch_size, 'sample')} per update"
        loader = innermost(trainer.train_dataloader)
        if is_keyed(loader) and loader.given_order.makes_batches:
            samples = f"about {samples}"
        if has_own_batches:
            samples = f"{_count(config.train_per_device_batch_size * config.num_processes, 'sample')} per batch"
        elif config.gradient_accumulation_steps > 1:
            samples += f" ({config.gradient_accumulation_steps:,} batches of {config.train_per_device_batch_size:,}"
            samples += " on each process)" if config.num_processes > 1 else ")"
        trained = describe_trained(trainer.named_models(), trainer.named_optimizers().values())
        lines = [f"Training starts: {length}, {samples}; {trainer.describe_run()}"]
        lines += [f"Trains {trained}{_writes_to(trainer)}{_lacks(trainer)}"] if trained else []
        # Without flush, lines of the progress, which are written at once, would overtake this one in a log file.
        trainer.print("\n".join(lines), flush=True)

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print what was recorded after the last row, and start the clock of the epoch."""
        self._table.begin(trainer)
        self._table.print_late(trainer)
        self._epoch_since = trainer.run_history.clock.seconds
        self._training.start_epoch(trainer)
        self._learning_rate = None

    @override
    def on_train_steps_passed_over(self, trainer: AnyTrainer, steps: int, **kwargs: Any) -> None:
        """Leave out the time in which nothing was trained."""
        self._epoch_since = trainer.run_history.clock.seconds
        self._training.start(trainer)

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        """Note what the first update took, in which workers start and a model may be compiled."""
        if not self._training.is_warm:
            self._training.warm_up(trainer)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Stop the clock of the training, and note its metrics."""
        self._table.print_late(trainer, INTERMEDIATE_PREFIX)
        self._stop_training(trainer)
        self._table.take(trainer, lambda name: "train" in name)

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, *, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Stop the clock of the training."""
        self._table.begin(trainer)
        if is_intermediate and not self._table.is_within_epoch:
            self._table.print_late(trainer, INTERMEDIATE_PREFIX)
        self._stop_training(trainer)

    @override
    def on_eval_epoch_end(
        self, trainer: AnyTrainer, *, is_intermediate: bool = False, num_sets_to_come: int = 0, **kwargs: Any
    ) -> None:
        """Note the metrics, and print the row of an evaluation within the epoch, when all of its sets are evaluated."""
        self._table.take(trainer, lambda name: "train" not in name)
        if not is_intermediate:
            return
        self._table.is_within_epoch = True
        if num_sets_to_come == 0:
            self._print_row(trainer)
        self._training.start(trainer)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print the row of the epoch."""
        self._table.take(trainer)
        self._print_row(trainer)

    @override
    def on_stop_training_error(
        self, trainer: AnyTrainer, *, error: StopTrainingError | None = None, **kwargs: Any
    ) -> None:
        """Print what is known of an epoch that is not complete, and why the run stops."""
        self._print_row(trainer)
        self._stop_training(trainer)
        reason = str(error) or type(error).__name__
        trainer.print(f"Stopping early: {reason.splitlines()[0]}", flush=True)

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        """Print what is known of an epoch that is not complete."""
        self._print_row(trainer)

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print what ran, and the table of the metrics."""
        if not trainer.was_complete:
            self._print_what_ran(trainer)
        table = format_table(summarise(trainer.run_history, known_directions(trainer, self.greater_is_better)))
        if table:
            trainer.print(table, flush=True)

    @override
    def on_evaluation_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print that the evaluation starts."""
        loader = trainer.eval_dataloader
        loaders = [*trainer.eval_dataloaders.values()] or ([] if loader is None else [loader])
        lengths = [length_of(loader) for loader in loaders]
        known = sum(length for length in lengths if length is not None)
        batches = "a stream" if None in lengths else _count(known, "batch", "batches")
        if trainer.eval_sets:
            batches += f" of {', '.join(trainer.eval_sets)}"
        trainer.print(f"Evaluation starts: {batches}; {trainer.describe_run()}", flush=True)
        self._run_since = trainer.run_history.clock.seconds

    @override
    def on_evaluation_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print that the evaluation has ended, and its metrics."""
        seconds = trainer.run_history.clock.seconds - self._run_since
        trainer.print(f"Evaluation ended in {format_duration(seconds)}", flush=True)
        self._table.take(trainer)
        self._table.print_pairs(trainer)

    def _stop_training(self, trainer: AnyTrainer) -> None:
        if self._training.stop(trainer):
            self._learning_rate = _learning_rate(trainer)

    def _print_row(self, trainer: AnyTrainer) -> None:
        """Print a row, with learning rate, samples per second and time of the epoch so far."""
        figures = {
            "lr": "-" if self._learning_rate is None else f"{self._learning_rate:.3g}",
            "samples/s": self._training.rate_of_epoch() or "-",
            "time": format_time(trainer.run_history.clock.seconds - self._epoch_since),
        }
        self._table.print_row(trainer, figures)

    def _print_what_ran(self, trainer: AnyTrainer) -> None:
        ran = f"{_count(trainer.num_epochs_completed, 'epoch')}, {_count(trainer.num_updates_completed, 'update')}"
        rate = self._training.rate_of_run()
        speed = f", {rate} samples/s in training" if rate else ""
        seconds = trainer.run_history.clock.seconds - self._run_since
        trainer.print(f"Training ended: {ran} in {format_duration(seconds)}{speed}", flush=True)


class _Reading(NamedTuple):
    """Samples and seconds, of the clock of the run history at one moment or since another one."""

    samples: int
    seconds: float

    @classmethod
    def of(cls, trainer: AnyTrainer) -> _Reading:
        clock = trainer.run_history.clock
        return cls(clock.samples, clock.seconds)


class _TrainingTime:
    """The samples and the seconds of the training alone, without evaluations.

    Attributes:
        is_warm: Whether the first update is over.
    """

    def __init__(self) -> None:
        self.is_warm = False
        self._total = self._warm_up = self._before_epoch = _Reading(0, 0.0)
        self._since: _Reading | None = None

    def start_epoch(self, trainer: AnyTrainer) -> None:
        self._before_epoch = self._total
        self.start(trainer)

    def start(self, trainer: AnyTrainer) -> None:
        self._since = _Reading.of(trainer)

    def stop(self, trainer: AnyTrainer) -> bool:
        """Stop the clock; return whether it was running."""
        if self._since is None:
            return False
        now = _Reading.of(trainer)
        samples, seconds = now.samples - self._since.samples, now.seconds - self._since.seconds
        self._total = _Reading(self._total.samples + samples, self._total.seconds + seconds)
        self._since = None
        return True

    def warm_up(self, trainer: AnyTrainer) -> None:
        """Note that the first update is over."""
        self.is_warm = True
        if self.stop(trainer):
            self._warm_up = self._total
            self.start(trainer)

    def rate_of_epoch(self) -> str:
        """Return samples per second, without the first update of the run unless there is no other; empty if unknown."""
        return self._rate_since(max(self._before_epoch, self._warm_up)) or self._rate_since(self._before_epoch)

    def rate_of_run(self) -> str:
        """Return the same of all epochs."""
        return self._rate_since(self._warm_up) or self._rate_since(_Reading(0, 0.0))

    def _rate_since(self, before: _Reading) -> str:
        samples, seconds = self._total.samples - before.samples, self._total.seconds - before.seconds
        return format_rate(samples / seconds) if samples > 0 and seconds > 0 else ""


def _writes_to(trainer: AnyTrainer) -> str:
    """Where callbacks write: callbacks of this package, and all others with attributes of the same names."""
    places: list[object] = [
        getattr(callback, attribute, None)
        for callback in trainer.callback_handler.callbacks
        for attribute in ("save_dir", "save_path", "upload_to")
    ]
    named = dict.fromkeys(str(place) for place in places if isinstance(place, str | Path))
    return f"; writes to {', '.join(named)}" if named else ""


def _lacks(trainer: AnyTrainer) -> str:
    has_guard = any(isinstance(one, TerminateOnNaNCallback) for one in trainer.callback_handler.callbacks)
    return "" if has_guard else "; no TerminateOnNaNCallback"


def _learning_rate(trainer: AnyTrainer) -> float | None:
    """The highest learning rate of the groups of the first optimizer; None without one."""
    optimizer = next(iter(trainer.named_optimizers().values()), None)
    return max(map(float, learning_rates_of(optimizer)), default=None) if optimizer is not None else None


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
