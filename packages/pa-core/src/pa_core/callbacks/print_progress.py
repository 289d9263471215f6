"""A callback that prints the progress of a run: messages, a row for each epoch, and a table of metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import nn
from typing_extensions import override

from pa_core._tensors import learning_rates_of
from pa_core.callbacks.epoch_rows import EpochRows, format_pairs, format_rate, format_time, most_telling
from pa_core.callbacks.interruptions import time_of_day
from pa_core.callbacks.run_summary import describe_trained, format_table, trains_some_of
from pa_core.callbacks.terminate_on_nan import TerminateOnNaNCallback
from pa_core.data.custom_loader import innermost, is_keyed, length_of
from pa_core.engine.any_trainer import AnyTrainer, TrainerCallback
from pa_core.engine.best_metric import BestMetric, JudgesMetric, direction_in_name
from pa_core.engine.modes import trained_in_evaluation_mode
from pa_core.errors import StopTrainingError
from pa_core.tracking import RunClock
from pa_core.tracking.metric_values import is_loss
from pa_core.tracking.run_history import INTERMEDIATE_PREFIX, UpdatedMetrics, values_with_epochs
from pa_core.user_warnings import print_once


class PrintProgressCallback(TrainerCallback):
    """Print a message at the start and the end of a run, and a row for each epoch.

    It is a default callback. Name it in ``callbacks=[...]`` to pass ``greater_is_better``, or if your list replaces the
    default callbacks. ``ProgressBarCallback`` shows the progress within an epoch. Only the first process of the run
    prints, to standard output. Nothing is kept in training states.

    The message at the start contains the length of the run and the number of trained parameters, and names parameters
    that are neither frozen nor in an optimizer, for example a head that you forgot. It lists the places where callbacks
    write (from their ``save_dir``, ``save_path`` and ``upload_to`` attributes), and says so if no callback ends the run
    when a loss is NaN. If layers are frozen or unfrozen between epochs, a line names the layers that are trained from
    then on.

    The row contains the losses of the epoch, the learning rate at its end, the training speed in samples per second,
    and the time that the epoch took, including its evaluation. The learning rate is the highest rate of all parameter
    groups, before a scheduler that steps each epoch is stepped; the rates of other optimizers are on a separate line.
    ``LogMetricsCallback`` adds the metrics. A value is marked with ``*`` if it is better than in all previous epochs,
    including the epochs before a resume, unless ``train`` is in its name. Values that do not fit into 80 columns follow
    on indented lines. If there are more than eight metrics, those that callbacks watch come first; a line gives the
    number of the others, which are in the table at the end. An evaluation within an epoch has its own row, whose first
    cell is the number of epochs trained by then, for example ``1.50``. For an endless stream, the cell has the number
    of updates instead, for example ``@200``.

    A training run ends with a table: the last value, the best value and the epoch of the best value of each metric. If
    a callback, for example ``SaveBestModelCallback``, watches a metric, the callback decides which values are better.
    Otherwise, the name decides (a loss or an error should be low, an accuracy high). If the name does not make it
    clear, the table has no best value. Samples per second are measured over the training epochs only, without the
    evaluations, and without the first update of the run, in which workers start and a model may be compiled.

    Args:
        greater_is_better: For metrics by their full names, for example ``{"eval_bleu": True}``, whether a higher value
            is better. It overrides the callbacks and the names. The default, an empty mapping, leaves the decision to
            them.

    Attributes:
        greater_is_better: The value that was passed.

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

    joins_sanity_evaluation = False
    only_observes = True

    def __init__(self, greater_is_better: Mapping[str, bool] = MappingProxyType({})) -> None:
        self.greater_is_better = greater_is_better
        self._run_since = self._epoch_since = 0.0
        self._training = _TrainingTime()
        self._learning_rates: dict[str, float] = {}
        self._updates: set[int] = set()
        self._shows_all = False  # LogMetricsCallback sets it; otherwise the rows have the losses
        self._begin_table()

    def _begin_table(self) -> None:
        self._rows = EpochRows()
        self._shown: set[str] = set()
        self._best: dict[str, BestMetric] = {}
        self._updated: UpdatedMetrics | None = None
        self._metrics: dict[str, float] = {}  # of the next row
        self._is_within_epoch = False  # whether that is of an evaluation within a training epoch

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Begin a table without rows, because a new run starts.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._begin_table()

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print the length and the settings of the run, unless nothing is left to train.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._run_since = self._epoch_since = trainer.run_history.clock.seconds
        self._training = _TrainingTime()
        if trainer.was_complete:
            return
        config, lengths = trainer.run_config, trainer.epoch_lengths
        updates, total = config.num_update_steps_per_epoch, config.max_num_train_steps
        has_own_batches = lengths.updates_per_group > 1
        at_most = "at most " if has_own_batches else ""
        length = f"{_count(config.num_epochs, 'epoch')} of {at_most}{_count(updates, 'update')}"
        if not lengths.are_known:
            length = f"{_count(updates, 'update')} of a stream"
        if total is not None and total < config.num_epochs * updates:
            is_cut = total < lengths.updates_before(config.num_epochs)
            length += f"{', at most' if is_cut else ' on average,'} {_count(total, 'update')}"
        samples = f"{_count(config.train_total_batch_size, 'sample')} per update"
        loader = innermost(trainer.train_dataloader)
        if is_keyed(loader) and loader.given_order.makes_batches:
            samples = f"about {samples}"
        if has_own_batches:
            samples = f"{_count(config.train_per_device_batch_size * config.num_processes, 'sample')} per batch"
        elif config.gradient_accumulation_steps > 1:
            steps, size = config.gradient_accumulation_steps, config.train_per_device_batch_size
            at_most = "at most " if steps * size * config.num_processes > config.train_total_batch_size else ""
            samples += f" ({steps:,} batches of {at_most}{size:,}"
            samples += " on each process)" if config.num_processes > 1 else ")"
        self._updates = _updated_parameters(trainer)
        trained = _describe_trained(trainer)
        lines = [f"Training starts: {length}, {samples}; {trainer.describe_run()}, at {time_of_day()}"]
        lines += [f"Trains {trained}{_evaluates(trainer)}{_writes_to(trainer)}{_lacks(trainer)}"] if trained else []
        print_once(trainer, "\n".join(lines))

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print the metrics recorded after the last row, and start the clock of the epoch.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._skip_earlier_runs(trainer)
        self._print_late(trainer)
        self._print_what_thawed(trainer)
        self._epoch_since = trainer.run_history.clock.seconds
        self._training.start_epoch(trainer.run_history.clock)
        self._learning_rates = {}

    @override
    def on_train_steps_skipped(self, trainer: AnyTrainer, steps: int, **kwargs: Any) -> None:
        """Leave out the time in which a resumed run skips batches.

        Args:
            trainer: The trainer.
            steps: The number of completed steps in the epoch.
            **kwargs: Not used.
        """
        self._epoch_since = trainer.run_history.clock.seconds
        self._training.start(trainer.run_history.clock)

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        """Leave out the time of the first update, in which workers start and a model may be compiled.

        Args:
            trainer: The trainer.
            update: The number of optimizer updates of this run so far.
            **kwargs: Not used.
        """
        if not self._training.is_warm:
            self._training.warm_up(trainer.run_history.clock)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Stop the clock of the training, and keep its metrics for the row.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._print_late(trainer, INTERMEDIATE_PREFIX)
        self._stop_training(trainer)
        self._keep_updated(trainer, lambda name: "train" in name)
        self._updates = _updated_parameters(trainer)  # a step may freeze parameters within an epoch

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, *, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Stop the clock of the training.

        Args:
            trainer: The trainer.
            is_intermediate: Whether the evaluation is within a training epoch.
            **kwargs: Not used.
        """
        self._skip_earlier_runs(trainer)
        if is_intermediate and not self._is_within_epoch:
            self._print_late(trainer, INTERMEDIATE_PREFIX)
        self._stop_training(trainer)

    @override
    def on_eval_epoch_end(
        self, trainer: AnyTrainer, *, is_intermediate: bool = False, num_sets_to_come: int = 0, **kwargs: Any
    ) -> None:
        """Keep the metrics, and print the row of an evaluation within the epoch after the last of its sets.

        Args:
            trainer: The trainer.
            is_intermediate: Whether the evaluation is within a training epoch.
            num_sets_to_come: The number of evaluation sets that are evaluated after the current set.
            **kwargs: Not used.
        """
        self._keep_updated(trainer, lambda name: "train" not in name)
        if not is_intermediate:
            return
        self._is_within_epoch = True
        if num_sets_to_come == 0:
            self._print_row(trainer)
        self._training.start(trainer.run_history.clock)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print the row of the epoch.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        self._keep_updated(trainer)
        self._print_row(trainer)

    @override
    def on_stop_training_error(
        self, trainer: AnyTrainer, *, error: StopTrainingError | None = None, **kwargs: Any
    ) -> None:
        """Print the metrics of an incomplete epoch, and why the run stops.

        Args:
            trainer: The trainer.
            error: The error that stops the run.
            **kwargs: Not used.
        """
        self._print_row(trainer)
        self._stop_training(trainer)
        reason = str(error) or type(error).__name__
        print_once(trainer, f"Stopping early: {reason.splitlines()[0]}")

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        """Print the metrics of an incomplete epoch, before the traceback.

        Args:
            trainer: The trainer.
            exception: The exception.
            **kwargs: Not used.
        """
        self._print_row(trainer)

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print the length and the speed of the run, and the table of the metrics.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        if not trainer.was_complete:
            ran = f"{_count(trainer.num_epochs_completed, 'epoch')}, {_count(trainer.num_updates_completed, 'update')}"
            rate = self._training.rate_of_run()
            speed = f", {rate} samples/s" if rate else ""
            seconds = trainer.run_history.clock.seconds - self._run_since
            print_once(trainer, f"Training ended: {ran} in {_duration(seconds)}{speed}, at {time_of_day()}")
        table = format_table(trainer.run_history, self._known_directions(trainer))
        if table:
            print_once(trainer, table)

    @override
    def on_evaluation_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print the number of batches and the settings of ``evaluate()``.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        lengths = [length_of(loader) for loader in trainer.eval_dataloaders.values()]
        if trainer.eval_dataloader is not None and not lengths:
            lengths = [length_of(trainer.eval_dataloader)]
        batches = "a stream" if None in lengths else _count(sum(filter(None, lengths)), "batch", "batches")
        if trainer.eval_sets:
            batches += f" of {', '.join(trainer.eval_sets)}"
        print_once(trainer, f"Evaluation starts: {batches}; {trainer.describe_run()}")
        self._run_since = trainer.run_history.clock.seconds

    @override
    def on_evaluation_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print the time and the metrics of ``evaluate()``.

        Args:
            trainer: The trainer.
            **kwargs: Not used.
        """
        seconds = trainer.run_history.clock.seconds - self._run_since
        print_once(trainer, f"Evaluation ended in {_duration(seconds)}")
        self._keep_updated(trainer)
        self._print_pairs(trainer, indent=2)

    def _print_what_thawed(self, trainer: AnyTrainer) -> None:
        """Print the trained parameters, if they have changed since the last epoch."""
        before, self._updates = self._updates, _updated_parameters(trainer)
        if before != self._updates:
            print_once(
                trainer, f"From epoch {trainer.run_history.current_epoch} on, trains {_describe_trained(trainer)}"
            )

    def _stop_training(self, trainer: AnyTrainer) -> None:
        if self._training.stop(trainer.run_history.clock):
            self._learning_rates = _learning_rates(trainer)

    def _skip_earlier_runs(self, trainer: AnyTrainer) -> None:
        """Skip the metrics recorded before this run; the history is reset or restored by its first epoch."""
        if self._updated is None:
            self._updated = UpdatedMetrics(trainer.run_history)

    def _keep_updated(self, trainer: AnyTrainer, wanted: Callable[[str], bool] = lambda name: True) -> None:
        """Keep the metrics that were updated since the last call for the next row."""
        if self._updated is not None:
            self._metrics |= self._updated.pop(
                trainer.run_history, lambda name: (self._shows_all or is_loss(name)) and wanted(name)
            )

    def _print_late(self, trainer: AnyTrainer, prefix: str = "") -> None:
        """Below the last row, print the metrics that were recorded after it and whose names begin with the prefix."""
        self._keep_updated(trainer, lambda name: name.startswith(prefix))
        self._print_pairs(trainer, indent=7)

    def _print_pairs(self, trainer: AnyTrainer, indent: int) -> None:
        metrics, self._metrics = self._metrics, {}
        if metrics:
            print_once(trainer, "\n".join(format_pairs(metrics, indent=indent)))

    def _print_row(self, trainer: AnyTrainer) -> None:
        """Print the kept metrics, if any, with learning rate, speed and time of the epoch so far."""
        metrics, self._metrics = self._metrics, {}
        is_within_epoch, self._is_within_epoch = self._is_within_epoch, False
        if not metrics:
            return
        directions = self._known_directions(trainer)
        first = {f"{prefix}{name}" for name in (*directions, *self._shown) for prefix in ("", INTERMEDIATE_PREFIX)}
        shown = most_telling(metrics, first)
        self._shown.update(name.removeprefix(INTERMEDIATE_PREFIX) for name in shown)
        num_more = len(metrics) - len(shown)
        if num_more:
            shown.sort(key=lambda name: name.removeprefix(INTERMEDIATE_PREFIX) not in directions)
        metrics = {name: metrics[name] for name in shown}
        best = {name for name, value in metrics.items() if self._is_best(trainer, name, value, directions)}
        epoch = str(trainer.run_history.current_epoch)
        if is_within_epoch:
            # They share the columns of the evaluation after the epoch, which has the same metrics.
            metrics = {name.removeprefix(INTERMEDIATE_PREFIX): value for name, value in metrics.items()}
            best = {name.removeprefix(INTERMEDIATE_PREFIX) for name in best}
            epoch = _epochs_trained(trainer)
        has_train_loss = is_within_epoch or "train_loss_epoch" in trainer.run_history.get_metric_names()
        expected = ["train_loss_epoch"] if has_train_loss else []
        rates = (f"{rate:.3g}" for rate in self._learning_rates.values())
        figures = {
            "lr": next(rates, "-"),
            "samples/s": self._training.rate_of_epoch() or "-",
            "time": format_time(trainer.run_history.clock.seconds - self._epoch_since),
        }
        lines = self._rows.lines(epoch, metrics, best, figures, expected)
        others = [f"lr of {name} {rate}" for name, rate in zip([*self._learning_rates][1:], rates, strict=True)]
        lines += [f"       {', '.join(others)}"] if others else []
        print_once(trainer, "\n".join([*lines, f"       and {num_more} more"] if num_more else lines))

    def _is_best(self, trainer: AnyTrainer, name: str, value: float, directions: Mapping[str, bool]) -> bool:
        """Return whether a value is better than in all earlier rows, including the rows of an interrupted run."""
        higher = directions.get(name, None if "train" in name else direction_in_name(name))
        if higher is None:
            return False
        epoch = trainer.run_history.current_epoch
        if name not in self._best:
            self._best[name] = BestMetric(greater_is_better=higher)
            for earlier, of_epoch in values_with_epochs(trainer.run_history, name)[:-1]:
                if of_epoch < epoch or name.startswith(INTERMEDIATE_PREFIX):
                    self._best[name].update(earlier, of_epoch)
        is_first = self._best[name].value is None
        return self._best[name].update(value, epoch) and not is_first

    def _known_directions(self, trainer: AnyTrainer) -> dict[str, bool]:
        """Return whether a higher value is better, for metrics by name, from the callbacks or the argument."""
        # Most callbacks lack the attribute, and isinstance() takes some time with a protocol.
        judges = [
            callback
            for callback in trainer.callback_handler.callbacks
            if hasattr(callback, "watch_metric") and isinstance(callback, JudgesMetric)
        ]
        # The first callback decides.
        return {**{judge.watch_metric: judge.greater_is_better for judge in reversed(judges)}, **self.greater_is_better}


class _TrainingTime:
    """The samples and the seconds of the training only, without evaluations and the first update of the run."""

    def __init__(self) -> None:
        self.is_warm = False
        self._since: tuple[int, float] | None = None
        # of each epoch, the current one last
        self._samples, self._seconds = [0], [0.0]

    def start_epoch(self, clock: RunClock) -> None:
        self._samples.append(0)
        self._seconds.append(0.0)
        self.start(clock)

    def start(self, clock: RunClock) -> None:
        self._since = clock.samples, clock.seconds

    def stop(self, clock: RunClock) -> bool:
        """Stop the clock; return whether it was running."""
        if self._since is None:
            return False
        self._samples[-1] += clock.samples - self._since[0]
        self._seconds[-1] += clock.seconds - self._since[1]
        self._since = None
        return True

    def warm_up(self, clock: RunClock) -> None:
        """Leave out the time until the end of the first update."""
        self.is_warm = True
        self.start(clock)

    def rate_of_epoch(self) -> str:
        """Return samples per second; empty if unknown."""
        return _rate(self._samples[-1], self._seconds[-1])

    def rate_of_run(self) -> str:
        """Return the samples per second of all epochs."""
        return _rate(sum(self._samples), sum(self._seconds))


def _rate(samples: int, seconds: float) -> str:
    return format_rate(samples / seconds) if samples > 0 and seconds > 0 else ""


def _epochs_trained(trainer: AnyTrainer) -> str:
    """Return the number of trained epochs as in "1.25", or, for an endless stream, of updates as in "@500"."""
    lengths, completed = trainer.epoch_lengths, trainer.num_epochs_completed
    if not lengths.are_known:
        return f"@{trainer.num_updates_completed}"
    done = trainer.num_updates_completed - lengths.updates_before(completed)
    part = done / lengths.updates_of(completed)
    return f"{trainer.run_history.current_epoch - 1 + part:.2f}"


def _updated_parameters(trainer: AnyTrainer) -> set[int]:
    """Return the ids of the parameters that the optimizers update, without parameters of unknown size."""
    return {
        id(parameter)
        for optimizer in trainer.named_optimizers().values()
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    }


def _describe_trained(trainer: AnyTrainer) -> str:
    optimizers, modules = trainer.named_optimizers().values(), dict[str, nn.Module](trainer.named_models())
    if isinstance(trainer.loss_func, nn.Module) and trains_some_of(trainer.loss_func, optimizers):
        modules["loss_func"] = trainer.loss_func
    return describe_trained(modules, optimizers)


def _evaluates(trainer: AnyTrainer) -> str:
    """Describe the parts that are trained in evaluation mode because the script chose this mode."""
    names = [*trained_in_evaluation_mode(trainer.named_models())]
    more = f" and {len(names) - 1} more" if names[1:] else ""
    return f"; {names[0].removeprefix('model.')}{more} in evaluation mode" if names else ""


def _writes_to(trainer: AnyTrainer) -> str:
    """Describe the places where callbacks write, from attributes that the callbacks of this package have."""
    places: list[object] = [
        getattr(callback, attribute, None)
        for callback in trainer.callback_handler.callbacks
        for attribute in ("save_dir", "save_path", "upload_to")
    ]
    named = dict.fromkeys(str(place) for place in places if isinstance(place, str | Path))
    return f"; writes to {', '.join(named)}" if named else ""


def _lacks(trainer: AnyTrainer) -> str:
    has_guard = any(isinstance(callback, TerminateOnNaNCallback) for callback in trainer.callback_handler.callbacks)
    return "" if has_guard else "; no TerminateOnNaNCallback"


def _learning_rates(trainer: AnyTrainer) -> dict[str, float]:
    """Return the highest learning rate of the groups of each optimizer, by its name."""
    rates = {
        name: [*map(float, learning_rates_of(optimizer))] for name, optimizer in trainer.named_optimizers().items()
    }
    return {name: max(of_groups) for name, of_groups in rates.items() if of_groups}


def _duration(seconds: float) -> str:
    return format_time(seconds) if seconds >= 60 else f"{seconds:.3g} s"  # noqa: PLR2004  # a minute


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
