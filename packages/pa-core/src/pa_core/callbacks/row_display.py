"""What the callbacks that show epochs as rows have in common: one table, to which each of them adds what it knows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from pa_core.any_trainer import AnyTrainer, TrainerCallback
from pa_core.callbacks.best_metric import BestMetric
from pa_core.callbacks.epoch_rows import EpochRow, EpochRows, format_pairs
from pa_core.callbacks.metric_direction import JudgesMetric, direction_in_name
from pa_core.tracking import InMemoryRunHistory
from pa_core.tracking.metric_prefix import INTERMEDIATE_PREFIX
from pa_core.tracking.metric_values import as_number

__all__ = ["EpochTable", "RowDisplay", "known_directions", "row_displays", "shows_rows"]


class EpochTable:
    """The rows of one run, printed as they are complete.

    Attributes:
        displays: The callbacks that add to the rows, of which the last one prints them.
        is_open: Whether a run is in progress.
        is_summarised: Whether everything that was recorded is printed in another form.
    """

    def __init__(self) -> None:
        self.start_run([])

    def start_run(self, displays: list[RowDisplay]) -> None:
        """Start again, with a header.

        Args:
            displays: The callbacks that add to the rows; none outside of a run.
        """
        self.displays = displays
        self.is_open: bool = bool(displays)
        self.is_summarised = False
        self._rows = EpochRows()
        self._best: dict[str, BestMetric] = {}
        self._metrics: dict[str, float] = {}
        self._late: set[str] = set()
        self._epoch = ""
        self._holds_intermediate = False

    def add(self, trainer: AnyTrainer, metrics: Mapping[str, float], *, late: Collection[str] = ()) -> None:
        """Note what the next row is going to say.

        Args:
            trainer: The trainer.
            metrics: Values by the full names of the metrics.
            late: Names of metrics that were recorded after the row that they belong to: they come below that.
        """
        if not self._holds_intermediate:
            self._late.update(late)
        if metrics and not self._metrics:
            self._epoch = str(trainer.run_history.current_epoch)
        self._metrics.update(metrics)

    def hold_row(self) -> None:
        """Note that the row of an evaluation within a training epoch is not complete: another set is evaluated."""
        self._holds_intermediate = True

    def print_row(self, trainer: AnyTrainer, *, is_intermediate: bool = False) -> None:
        """Print what was noted as a row, if anything was.

        Args:
            trainer: The trainer.
            is_intermediate: Whether the row is of an evaluation within a training epoch.
        """
        is_intermediate, self._holds_intermediate = is_intermediate or self._holds_intermediate, False
        if not self._metrics:
            return
        lines = self._lines_of_late(is_intermediate)
        if self._metrics:
            lines += self._lines_of_row(trainer, is_intermediate)
        # Without flush, lines of the progress, which are written at once, would overtake these in a log file.
        trainer.print("\n".join(lines), flush=True)

    def _lines_of_late(self, is_intermediate: bool) -> list[str]:
        """Take out what belongs to the row before."""
        late: dict[str, float] = {}
        for name in [*self._metrics]:
            if name in self._late or (not is_intermediate and name.startswith(INTERMEDIATE_PREFIX)):
                late[name] = self._metrics.pop(name)
        self._late.clear()
        return format_pairs(late) if late else []

    def _lines_of_row(self, trainer: AnyTrainer, is_intermediate: bool) -> list[str]:
        figures = dict[str, str]()
        for display in self.displays:
            figures.update(display._figures_of_row(trainer))  # pyright: ignore[reportPrivateUsage]  # as below
        best = self._note_best(trainer)
        metrics, self._metrics = self._metrics, {}
        epoch = self._epoch
        if is_intermediate:
            # They have the columns of the evaluation after the epoch: the same is measured there.
            metrics = {name.removeprefix(INTERMEDIATE_PREFIX): value for name, value in metrics.items()}
            best = {name.removeprefix(INTERMEDIATE_PREFIX) for name in best}
            epoch = _epochs_trained(trainer)
        if not self._rows.has_header and (is_intermediate or _has_train_loss(trainer)):
            self._rows.expect("train_loss_epoch")
        return self._rows.lines(EpochRow(epoch, metrics, best, figures))

    def print_pairs(self, trainer: AnyTrainer) -> None:
        """Print what was noted as names and values, unless it is summarised elsewhere; the run is over."""
        self.is_open = False
        metrics, self._metrics = self._metrics, {}
        if metrics and not self.is_summarised:
            trainer.print("\n".join(format_pairs(metrics, indent=2)), flush=True)

    def _note_best(self, trainer: AnyTrainer) -> set[str]:
        """Return which of the metrics are better than in all rows before, including the rows of an interrupted run."""
        directions = known_directions(trainer)
        best = set[str]()
        for name, value in self._metrics.items():
            higher = directions.get(name, None if "train" in name else direction_in_name(name))
            if higher is None:
                continue
            if name not in self._best:
                self._best[name] = BestMetric(greater_is_better=higher)
                for earlier, epoch in _earlier_values(trainer, name):
                    self._best[name].update(earlier, epoch)
            is_first = self._best[name].value is None
            if self._best[name].update(value, trainer.run_history.current_epoch) and not is_first:
                best.add(name)
        return best


class RowDisplay(TrainerCallback):
    """A callback that shows epochs as rows, together with all others of its kind in a run.

    The table belongs to the first of them, and the last one prints a row, so that it has what each of them adds.
    Nothing depends on ``__init__``, which loggers derived from ``LogMetricsCallback`` need not call.
    """

    joins_sanity_evaluation = False
    # The table of the run under way, or of the last one.
    _shared_table: EpochTable | None = None

    @property
    def _table(self) -> EpochTable:
        """The table of the run; a separate one for a callback that was in none."""
        if self._shared_table is None:
            self._shared_table = EpochTable()
        return self._shared_table

    @property
    def _shows_rows(self) -> bool:
        """Whether this callback adds to rows on the console."""
        return True

    def _figures_of_row(self, trainer: AnyTrainer) -> Mapping[str, str]:
        """Return cells to put after the metrics of each row, by their titles; the same titles each time."""
        return MappingProxyType({})

    @override
    def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Begin a table, which the first callback of this kind makes."""
        displays = row_displays(trainer)
        if displays[0] is self:
            self._shared_table = EpochTable()
            self._shared_table.start_run(displays)
        else:
            self._shared_table = displays[0]._table

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print what is left of the epoch before, where a subclass does not end its row."""
        self._table.print_row(trainer)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print the row of the epoch."""
        if self._is_last():
            self._table.print_row(trainer)

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, *, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Print the row of an evaluation within the epoch, when all of its sets are evaluated."""
        if not is_intermediate or not self._is_last():
            return
        if trainer._eval_sets.num_to_come:  # pyright: ignore[reportPrivateUsage]  # nobody else needs to know
            self._table.hold_row()
        else:
            self._table.print_row(trainer, is_intermediate=True)

    @override
    def on_stop_training_error(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print what is known of an epoch that is not complete."""
        self._table.print_row(trainer)

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        """Print what is known of an epoch that is not complete."""
        self._table.print_row(trainer)

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print what was recorded too late for the last row."""
        if self._is_last():
            self._table.print_pairs(trainer)

    @override
    def on_evaluation_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Print the metrics of the evaluation."""
        if self._is_last():
            self._table.print_pairs(trainer)

    def _is_last(self) -> bool:
        return not self._table.displays or self._table.displays[-1] is self


def row_displays(trainer: AnyTrainer) -> list[RowDisplay]:
    """Return the callbacks of a trainer that show rows, in their order."""
    return [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, RowDisplay)]


def shows_rows(trainer: AnyTrainer, *, besides: RowDisplay | None = None) -> bool:
    """Return whether the epochs of a trainer are shown as rows.

    Args:
        trainer: The trainer.
        besides: A callback that does not count.
    """
    displays = [one for one in row_displays(trainer) if one is not besides]
    return any(one._shows_rows for one in displays)  # pyright: ignore[reportPrivateUsage]  # as above


def known_directions(trainer: AnyTrainer) -> dict[str, bool]:
    """Return whether a higher value is better, for metrics by name, as callbacks judge or have been told."""
    callbacks = trainer.callback_handler.callbacks
    directions: dict[str, bool] = {}
    for judge in reversed([one for one in callbacks if isinstance(one, JudgesMetric)]):
        directions[judge.watch_metric] = judge.greater_is_better  # the first of several decides
    for display in row_displays(trainer):
        directions.update(getattr(display, "greater_is_better", {}))
    return directions


def _has_train_loss(trainer: AnyTrainer) -> bool:
    return "train_loss_epoch" in trainer.run_history.get_metric_names()


def _earlier_values(trainer: AnyTrainer, name: str) -> list[tuple[float, int]]:
    """The values that rows of earlier epochs, or of earlier evaluations within them, have shown; with their epochs."""
    history = trainer.run_history
    if not isinstance(history, InMemoryRunHistory):
        numbers = [as_number(value) for value in history.get_metric_values(name)]
        return [(number, 0) for number in numbers[:-1] if number is not None]
    records = history.records(name)[:-1]
    if name.startswith(INTERMEDIATE_PREFIX):
        return [(record.value, record.epoch) for record in records]
    last_of_epoch = {record.epoch: record.value for record in records if record.epoch < history.current_epoch}
    return [(value, epoch) for epoch, value in last_of_epoch.items()]


def _epochs_trained(trainer: AnyTrainer) -> str:
    """How many epochs were trained so far, as "1.25"; of a stream without an end, after which update: "@500"."""
    lengths, completed = trainer.epoch_lengths, trainer.num_epochs_completed
    if not lengths.are_known:
        return f"@{trainer.num_updates_completed}"
    done = trainer.num_updates_completed - lengths.updates_before(completed)
    part = done / lengths.updates_of(completed)
    return f"{trainer.run_history.current_epoch - 1 + part:.2f}"
