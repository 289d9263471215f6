"""What a trial reports: lines of its logger, curves for TensorBoard, and the writer that a trial gets."""

from __future__ import annotations

import logging
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from torch.utils.data import default_collate
from typing_extensions import override

import pa_trial
from pa_trial import Batch, DataLoader
from pa_trial.progress import TrialProgress
from pa_trial.reporting import Reporter
from pa_trial.tensorboard import TensorBoard
from tests.event_files import read_curves, wait_for_the_next_file
from tests.support.trials import TinyTrial, fit, samples, variant

PROGRESS = TrialProgress(batches_trained=6, epoch_length=3)


def reported(tmp_path: Path) -> tuple[Reporter, TensorBoard]:
    """A reporter with a path for TensorBoard."""
    board = TensorBoard(tmp_path)
    return Reporter(board), board


def test_metrics_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Each workload and each validation is a line at the level INFO, with plain numbers of few digits, also NaN."""
    caplog.set_level(logging.INFO)
    reporter = Reporter(TensorBoard(None))
    reporter.training({"loss": 0.5, "own": np.float64(math.nan)}, [], PROGRESS, num_records=64, seconds=0.5)
    reporter.validation({"loss": np.float32(0.25), "thirds": [1 / 3], "matrix": np.eye(1), "what": {1}}, PROGRESS)
    reporter.progress(0.125)
    assert caplog.messages == [
        "training, 6 batches: {'loss': 0.5, 'own': nan}, 128.0 records per second",
        "validation, 6 batches: {'loss': 0.25, 'thirds': [0.333333], 'matrix': [[1.0]], 'what': {1}}",
        "progress: 12.5 %",
    ]
    assert {record.name for record in caplog.records} == {"pa_trial"}


def test_the_beginning_of_a_resumed_training_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A training that begins anew needs no word; one that is complete would end without any."""
    caplog.set_level(logging.INFO)
    reporter = Reporter(TensorBoard(None))
    reporter.beginning(TrialProgress(), is_complete=False)
    reporter.beginning(PROGRESS, is_complete=False)
    reporter.beginning(PROGRESS, is_complete=True)
    assert caplog.messages == ["continuing after 6 batches", "complete after 6 batches, nothing left to train"]


def test_only_the_chief_reports(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Other processes log nothing and write nothing."""
    caplog.set_level(logging.INFO)
    reporter = Reporter(TensorBoard(tmp_path / "logs", rank=1))
    reporter.training({"loss": 1.0}, [{"loss": 1.0}], PROGRESS)
    reporter.validation({"loss": 1.0}, PROGRESS)
    reporter.progress(1.0)
    assert caplog.messages == []
    assert not (tmp_path / "logs").exists()


def test_the_curves_of_a_training(tmp_path: Path) -> None:
    """Numbers of a batch stand at its index, averages without such numbers at the number of batches."""
    reporter, board = reported(tmp_path)
    batches = [{"loss": np.array(float(index)), "row": np.ones(2), "word": "x"} for index in range(3)]
    reporter.training({"loss": 1.0, "row": 1.0, "word": None, "own": 5, "batches": 6}, batches, PROGRESS)
    board.close()
    assert read_curves(tmp_path) == {
        "Determined/loss": [(3, 0.0), (4, 1.0), (5, 2.0)],
        "Determined/row": [(6, 1.0)],
        "Determined/own": [(6, 5.0)],
        "Determined/batches": [(6, 6.0)],
    }


def test_the_curves_of_a_validation(tmp_path: Path) -> None:
    """Names get the prefix val_ unless they begin with val; what is not a single number has no curve."""
    reporter, board = reported(tmp_path)
    metrics: dict[Any, Any] = {"loss": np.float64(2.0), "validation_error": 1, "value": 3.0, "matrix": np.eye(2), 5: 4}
    reporter.validation(metrics, PROGRESS)
    assert read_curves(tmp_path) == {  # on the disk when the call returns
        "Determined/val_loss": [(6, 2.0)],
        "Determined/validation_error": [(6, 1.0)],
        "Determined/value": [(6, 3.0)],
        "Determined/val_5": [(6, 4.0)],
    }
    board.close()


def test_without_a_path_there_are_curves_only_beside_those_of_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody who did not ask for TensorBoard finds a folder of it; who asked for the writer finds the curves there."""
    monkeypatch.chdir(tmp_path)
    board = TensorBoard(None)
    reporter = Reporter(board)
    reporter.validation({"loss": 1.0}, PROGRESS)
    assert list(tmp_path.iterdir()) == []
    _ = board.writer
    reporter.validation({"loss": 1.0}, PROGRESS)
    board.close()
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_curves(folder) == {"Determined/val_loss": [(6, 1.0)]}


class Counted(TinyTrial):
    """Has a reducer; its batches may be of a kind whose records cannot be counted."""

    def __init__(self, context: pa_trial.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.total = context.wrap_reducer(sum, "total", for_validation=False)

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.total.update(1)
        return {**super().train_batch(batch, epoch_idx, batch_idx), "index": batch_idx}


def run(
    folder: Path, max_length: int, trial_class: type[TinyTrial] = Counted, latest: str | None = None, **settings: Any
) -> str:
    """Train to a length, with a report after every second batch; return the last checkpoint."""
    asked: dict[str, Any] = {"reporting_period": Batch(2), "checkpoint_period": Batch(2), "latest_checkpoint": latest}
    settings = {"tensorboard_path": folder / "logs", "seed": None, **settings}
    trial = fit(trial_class, folder / "saved", settings=settings, max_length=Batch(max_length), **asked)
    return trial.heard.folders[-1]


def test_the_reports_of_a_trial(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lines and curves of a training that resumes twice from one checkpoint: what came after it is drawn anew."""
    caplog.set_level(logging.INFO)
    first = run(tmp_path, 2)
    wait_for_the_next_file()
    run(tmp_path, 4, latest=first)
    wait_for_the_next_file()
    run(tmp_path, 6, latest=first)
    curves = read_curves(tmp_path / "logs")
    assert sorted({*curves["Determined/index"]}) == [(index, float(index)) for index in range(6)]
    assert len(curves["Determined/index"]) == 7, "the first batch after the checkpoint has two equal points"
    assert curves["Determined/total"] == [(2, 2.0), (4, 2.0), (6, 2.0)]
    assert [step for step, _ in curves["Determined/val_loss"]] == [2, 6]
    trained = [message for message in caplog.messages if message.startswith("training")]
    assert [message.partition(":")[0] for message in trained] == [f"training, {n} batches" for n in (2, 4, 4, 6)]
    assert all(re.search(r"'total': 2, .*, [\d.]+ records per second$", message) for message in trained)


def test_nothing_is_trained_before_it_is_known_that_reports_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A path for TensorBoard, which is not installed, is an error at once, unless logging is switched off."""
    caplog.set_level(logging.INFO)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(RuntimeError, match=r"pip install 'pa-trial\[tensorboard\]'"):
        run(tmp_path, 2)
    assert caplog.messages == []
    run(tmp_path, 2, enable_tensorboard_logging=False)
    assert not (tmp_path / "logs").exists()


class Uncountable(Counted):
    """Yields batches that the stock get_batch_length cannot count."""

    def __init__(self, context: pa_trial.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.experimental.disable_auto_to_device()

    @override
    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(samples(8), batch_size=2, collate_fn=lambda rows: {"id": 0, "rows": default_collate(rows)})

    @override
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        return super().train_batch(batch["rows"], epoch_idx, batch_idx)


def counted_wrongly(_self: Uncountable, batch: Any) -> int:
    """Count batches oneself, in a way that cannot be."""
    return pa_trial.data_length(batch)


def test_batches_that_cannot_be_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Their speed is left out; an error of the trial's own get_batch_length is told as any other."""
    caplog.set_level(logging.INFO)
    run(tmp_path, 2, Uncountable)
    assert not any("records per second" in message for message in caplog.messages)
    with pytest.raises(TypeError, match="cannot be counted"):
        run(tmp_path, 4, variant(Uncountable, get_batch_length=counted_wrongly))


def draw(board: TensorBoard, steps: range, name: str = "mine") -> None:
    """Add a point at each step: the step itself."""
    writer: Any = board.writer
    for step in steps:
        writer.add_scalar(name, step, step)


def test_the_curves_of_other_processes_do_not_mix_with_those_of_the_chief(tmp_path: Path) -> None:
    """Each process but the chief writes to a folder of its own."""
    for rank in (0, 1):
        board = TensorBoard(tmp_path, rank)
        draw(board, range(rank, rank + 1))
        board.close()
    assert read_curves(tmp_path) == {"mine": [(0, 0.0)]}
    assert read_curves(tmp_path / "rank_1") == {"mine": [(1, 1.0)]}


def test_a_trial_may_close_the_writer(tmp_path: Path) -> None:
    """What comes later is written to another file, and TensorBoard shows both."""
    board = TensorBoard(tmp_path)
    board.add_scalars({"a": 0.5, "b": float("inf")}, 0)
    board.writer.close()
    wait_for_the_next_file()
    board.add_scalars({"a": 1.5}, 1)
    board.close()
    assert read_curves(tmp_path) == {"a": [(0, 0.5), (1, 1.5)], "b": [(0, float("inf"))]}
