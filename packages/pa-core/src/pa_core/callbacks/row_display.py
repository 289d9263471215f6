"""The table of a run, which grows by a row an epoch: what each row says, and what is marked in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pa_core.any_trainer import AnyTrainer, TrainerCallback
from pa_core.callbacks.best_metric import BestMetric
from pa_core.callbacks.epoch_rows import EpochRows, format_pairs, is_loss
from pa_core.callbacks.metric_direction import JudgesMetric, direction_in_name
from pa_core.tracking.metric_counts import UpdatedMetrics, values_with_epochs
from pa_core.tracking.metric_prefix import INTERMEDIATE_PREFIX

__all__ = ["EpochTable", "RowDisplay", "known_directions"]


class EpochTable:
    """The rows of one run.

    Args:
        shows: Whether a metric is shown, by its name.
        greater_is_better: For metrics by name, whether a higher value is better, if that is known.

    Attributes:
        is_within_epoch: Whether the next row is of an evaluation within a training epoch.
    """

    def __init__(
        self, shows: Callable[[str], bool] = is_loss, greater_is_better: Mapping[str, bool] = MappingProxyType({})
    ) -> None:
        self.is_within_epoch: bool = False
        self._shows = shows
        self._greater_is_better = greater_is_better
        self._rows = EpochRows()
        self._best: dict[str, BestMetric] = {}
        self._updated: UpdatedMetrics | None = None
        self._metrics: dict[str, float] = {}

    def begin(self, trainer: AnyTrainer) -> None:
        """Note what was recorded before this run, which by its first epoch is reset or restored."""
        if self._updated is None:
            self._updated = UpdatedMetrics(trainer.run_history)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Note what the next row is going to say, by the full names of the metrics."""
        self._metrics.update(metrics)

    def take(self, trainer: AnyTrainer, wanted: Callable[[str], bool] = lambda name: True) -> None:
        """Note for the next row the metrics that were updated since this was done last."""
        if self._updated is not None:
            self.add(self._updated.take(trainer.run_history, lambda name: self._shows(name) and wanted(name)))

    def print_late(self, trainer: AnyTrainer, prefix: str = "") -> None:
        """Print below the last row what was recorded after it.

        Args:
            trainer: The trainer.
            prefix: What the names of these metrics begin with.
        """
        self.take(trainer, lambda name: name.startswith(prefix))
        self.print_pairs(trainer, indent=7)

    def print_pairs(self, trainer: AnyTrainer, indent: int = 2) -> None:
        """Print what was noted as names and values, if anything was."""
        metrics, self._metrics = self._metrics, {}
        if metrics:
            trainer.print("\n".join(format_pairs(metrics, indent=indent)), flush=True)

    def print_row(self, trainer: AnyTrainer, figures: Mapping[str, str]) -> None:
        """Print what was noted as a row, if anything was.

        Args:
            trainer: The trainer.
            figures: The last cells by their titles; the same titles in each row.
        """
        metrics, self._metrics = self._metrics, {}
        is_within_epoch, self.is_within_epoch = self.is_within_epoch, False
        if not metrics:
            return
        directions = known_directions(trainer, self._greater_is_better)
        best = {name for name, value in metrics.items() if self._is_best(trainer, name, value, directions)}
        epoch = str(trainer.run_history.current_epoch)
        if is_within_epoch:
            # They have the columns of the evaluation after the epoch: the same is measured there.
            metrics = {name.removeprefix(INTERMEDIATE_PREFIX): value for name, value in metrics.items()}
            best = {name.removeprefix(INTERMEDIATE_PREFIX) for name in best}
            epoch = _epochs_trained(trainer)
        has_train_loss = is_within_epoch or "train_loss_epoch" in trainer.run_history.get_metric_names()
        expected = ["train_loss_epoch"] if has_train_loss else []
        # Without flush, lines of the progress, which are written at once, would overtake these in a log file.
        trainer.print("\n".join(self._rows.lines(epoch, metrics, best, figures, expected)), flush=True)

    def _is_best(self, trainer: AnyTrainer, name: str, value: float, directions: Mapping[str, bool]) -> bool:
        """Return whether a value is better than in all rows before, including the rows of an interrupted run."""
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


class RowDisplay(TrainerCallback):
    """The callback that prints the rows, to which others add what they know."""

    joins_sanity_evaluation = False

    def __init__(self) -> None:
        self._table = EpochTable()


def known_directions(trainer: AnyTrainer, told: Mapping[str, bool]) -> dict[str, bool]:
    """Return whether a higher value is better, for metrics by name, as callbacks judge or have been told."""
    judges = [one for one in trainer.callback_handler.callbacks if isinstance(one, JudgesMetric)]
    # The first of several decides.
    return {**{judge.watch_metric: judge.greater_is_better for judge in reversed(judges)}, **told}


def _epochs_trained(trainer: AnyTrainer) -> str:
    """How many epochs were trained so far, as "1.25"; of a stream without an end, after which update: "@500"."""
    lengths, completed = trainer.epoch_lengths, trainer.num_epochs_completed
    if not lengths.are_known:
        return f"@{trainer.num_updates_completed}"
    done = trainer.num_updates_completed - lengths.updates_before(completed)
    part = done / lengths.updates_of(completed)
    return f"{trainer.run_history.current_epoch - 1 + part:.2f}"
