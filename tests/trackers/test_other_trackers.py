"""Each tracker that the documentation names, with its own package and without a network: written to and read back.

These packages are many and large, so that they have a session of their own in noxfile.py, and no other one runs this.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torch import nn
from torch.optim import SGD
from typing_extensions import override

from pa_callbacks_extra import TrackerCallback
from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_core.testing import make_regression

if TYPE_CHECKING:
    from collections.abc import Iterator

Points = dict[str, list[int]]
"""For each metric the steps at which it has a value."""
Read = Callable[[Path], tuple[Points, dict[str, str]]]
"""Reads metrics and settings of the only run in a folder."""


def package(name: str) -> Any:
    """A package that is installed only where these tests run."""
    return importlib.import_module(name)


def read_mlflow(folder: Path) -> tuple[Points, dict[str, str]]:
    """Read the database of MLflow."""
    client = package("mlflow").MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'digits'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name, run.data.tags["of"]) == ("FINISHED", "lr 0.1", "mine")
    names: list[str] = list(run.data.metrics)
    steps = {name: sorted(point.step for point in client.get_metric_history(run.info.run_id, name)) for name in names}
    return steps, dict(run.data.params)


def read_trackio(folder: Path) -> tuple[Points, dict[str, str]]:
    """Read the database of Trackio."""
    storage = package("trackio.sqlite_storage").SQLiteStorage
    (run,) = storage.get_runs("digits")
    steps: Points = {}
    for row in storage.get_logs("digits", run):
        for name in set(row) - {"step", "timestamp"}:
            steps.setdefault(name, []).append(row["step"])
    return steps, {name: str(value) for name, value in storage.get_run_config("digits", run).items()}


def read_wandb(folder: Path) -> tuple[Points, dict[str, str]]:
    """Read what Weights & Biases would send: one file for each time that the run was opened."""
    record_class = package("wandb.proto.wandb_internal_pb2").Record
    steps: Points = {}
    config: dict[str, str] = {}
    runs: set[str] = set()
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        runs.add(file.stem)
        for content in records_of_wandb(file.read_bytes()):
            record = record_class()
            record.ParseFromString(content)
            config |= {entry.key: str(json.loads(entry.value_json)) for entry in record.config.update}
            for item in record.history.item:
                name: str = item.key or "/".join(item.nested_key)
                steps.setdefault(name, []).append(record.history.step.num)
    assert len(runs) == 1
    return {name: found for name, found in steps.items() if not name.startswith("_")}, config


def records_of_wandb(content: bytes) -> Iterator[bytes]:
    """Take apart a log in the format of LevelDB: blocks of 32 KiB, pieces with a header of seven bytes."""
    position, record = 7, b""
    while position + 7 <= len(content):
        left_in_block = -position % 2**15
        if 0 < left_in_block < 7:
            position += left_in_block
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or its last piece
            yield record
            record = b""


READERS = {"mlflow": read_mlflow, "trackio": read_trackio, "wandb": read_wandb}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "mlflow": {"run_name": "lr 0.1", "tags": {"of": "mine"}},
    "wandb": {"mode": "offline"},
}


@pytest.fixture
def without_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder in which trackers write, told that there is no server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    return tmp_path


class FailOnce(TrainerCallback):
    """Fails in the middle of the first run."""

    fails = True

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update == 2 and self.fails:
            self.fails = False
            raise OSError("disk full")


@pytest.mark.filterwarnings("default")  # what these packages warn of is their own concern
@pytest.mark.parametrize("tracker", READERS)
def test_runs_are_one_run_in_the_tracker(tracker: str, without_network: Path) -> None:
    """A run that failed, another one and an evaluation are one run with one axis, and the settings of the first."""
    arguments = {tracker: ARGUMENTS[tracker]} if tracker in ARGUMENTS else {}
    track = TrackerCallback(tracker, "digits", every_n_updates=2, config={"note": (1, None)}, init_kwargs=arguments)
    model = nn.Linear(4, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[track, FailOnce()])
    dataset = make_regression(30)
    with pytest.raises(OSError, match="disk full"):
        trainer.train(dataset, num_epochs=1, per_device_batch_size=10)
    trainer.train(dataset, num_epochs=2, eval_dataset=dataset, per_device_batch_size=10)
    trainer.evaluate(dataset)

    steps, config = READERS[tracker](without_network)
    assert steps["train/loss"] == [2, 4, 6, 8]
    assert steps["train_loss_epoch"] == steps["eval_loss_epoch"] == [5, 8]
    assert steps["evaluation_loss"] == [8]
    assert config["num_epochs"] == "1"
    assert config["train_dl_kwargs.shuffle"] == "True"
    assert config["gradient_clip_value"] == "None"
    assert config["note"] == "(1, None)"
