"""What a trial reports: lines of its logger, and curves for TensorBoard."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pa_trial.progress import TrialProgress
from pa_trial.reporting import Reporter
from pa_trial.tensorboard import TensorBoard
from tests.event_files import read_curves

if TYPE_CHECKING:
    from pathlib import Path

PROGRESS = TrialProgress(batches_trained=6, epoch_length=3)


def reported(tmp_path: Path, **options: Any) -> tuple[Reporter, TensorBoard]:
    """A reporter with a path for TensorBoard."""
    board = TensorBoard(tmp_path)
    return Reporter(board, is_chief=True, **options), board


def test_metrics_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Each workload and each validation is a line at the level INFO, with plain numbers, NaN among them."""
    caplog.set_level(logging.INFO)
    reporter = Reporter(TensorBoard(None), is_chief=True)
    reporter.training({"loss": 0.5, "own": np.float64(math.nan)}, [], PROGRESS, num_records=64, seconds=0.5)
    reporter.validation({"loss": np.float32(0.25), "matrix": np.eye(1), "what": {1}}, PROGRESS)
    reporter.progress(0.125)
    assert caplog.messages == [
        "training, 6 batches: {'loss': 0.5, 'own': nan}, 128.0 records per second",
        "validation, 6 batches: {'loss': 0.25, 'matrix': [[1.0]], 'what': {1}}",
        "progress: 12.5 %",
    ]
    assert {record.name for record in caplog.records} == {"pa_trial"}


def test_the_speed_is_left_out_where_it_is_not_known(caplog: pytest.LogCaptureFixture) -> None:
    """Batches of a kind that has no length are no reason to fail."""
    caplog.set_level(logging.INFO)
    Reporter(TensorBoard(None), is_chief=True).training({}, [], PROGRESS)
    assert caplog.messages == ["training, 6 batches: {}"]


def test_only_the_chief_reports(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Other processes log nothing and write nothing."""
    caplog.set_level(logging.INFO)
    board = TensorBoard(tmp_path / "logs")
    reporter = Reporter(board, is_chief=False)
    reporter.training({"loss": 1.0}, [{"loss": 1.0}], PROGRESS)
    reporter.validation({"loss": 1.0}, PROGRESS)
    reporter.progress(1.0)
    board.close()
    assert caplog.messages == []
    assert not (tmp_path / "logs").exists()


def test_the_curves_of_a_training(tmp_path: Path) -> None:
    """Values of a batch stand at its index, averages without such values at the number of batches."""
    reporter, board = reported(tmp_path)
    batches = [{"loss": np.array(float(index)), "row": np.ones(2), "word": "x"} for index in range(3)]
    reporter.training({"loss": 1.0, "row": 1.0, "word": None, "own": 5, "batches": 6}, batches, PROGRESS)
    board.close()
    assert read_curves(tmp_path) == {
        "Determined/loss": [(3, 0.0), (4, 1.0), (5, 2.0)],
        "Determined/own": [(6, 5.0)],
        "Determined/batches": [(6, 6.0)],
    }


def test_the_curves_of_a_validation(tmp_path: Path) -> None:
    """Names get the prefix val_ unless they begin with val; what is not a single number has no curve."""
    reporter, board = reported(tmp_path)
    reporter.validation({"loss": np.float64(2.0), "validation_error": 1, "value": 3.0, "matrix": np.eye(2)}, PROGRESS)
    board.close()
    assert read_curves(tmp_path) == {
        "Determined/val_loss": [(6, 2.0)],
        "Determined/validation_error": [(6, 1.0)],
        "Determined/value": [(6, 3.0)],
    }


def test_curves_can_be_seen_while_the_training_goes_on(tmp_path: Path) -> None:
    """A report is on the disk when the call returns."""
    reporter, board = reported(tmp_path)
    reporter.validation({"loss": 1.0}, PROGRESS)
    assert read_curves(tmp_path) == {"Determined/val_loss": [(6, 1.0)]}
    board.close()


@pytest.mark.parametrize("enabled", [True, False])
def test_curves_can_be_left_to_the_trial(tmp_path: Path, enabled: bool) -> None:
    """With enable_tensorboard_logging=False only what the trial itself writes is there."""
    reporter, board = reported(tmp_path, enable_tensorboard_logging=enabled)
    writer: Any = board.writer
    writer.add_scalar("mine", 1.0, 0)
    reporter.training({"loss": 1.0}, [], PROGRESS)
    reporter.validation({"loss": 1.0}, PROGRESS)
    board.close()
    assert set(read_curves(tmp_path)) == {"mine", *(["Determined/loss", "Determined/val_loss"] if enabled else [])}


def test_without_a_path_there_are_curves_only_beside_those_of_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody who did not ask for TensorBoard finds a folder of it; who asked for the writer finds the curves there."""
    monkeypatch.chdir(tmp_path)
    board = TensorBoard(None)
    reporter = Reporter(board, is_chief=True)
    reporter.validation({"loss": 1.0}, PROGRESS)
    assert list(tmp_path.iterdir()) == []
    _ = board.writer
    reporter.validation({"loss": 1.0}, PROGRESS)
    board.close()
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_curves(folder) == {"Determined/val_loss": [(6, 1.0)]}
