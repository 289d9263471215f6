"""Each tracker that the documentation names, with its own package and without a network: written to and read back.

These packages are many and large, so that they have a session of their own in noxfile.py, and no other one runs this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from PIL import Image

from tests.trackers.offline_runs import Point, package, points_of_swanlab, points_of_wandb, records_of, rows_of_trackio

if TYPE_CHECKING:
    from tests.launching import Launch

Points = dict[str, list[int]]
"""For each metric the steps at which it has a value."""
Read = Callable[[Path], tuple[Points, dict[str, str]]]
"""Reads metrics and settings of the only run in a folder."""


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
    rows, config = rows_of_trackio(folder)
    points = ((name, row["step"], value) for row in rows for name, value in row.items())
    steps = steps_of(point for point in points if point[0] not in ("step", "timestamp"))
    return steps, {name: str(value) for name, value in config.items()}


def read_wandb(folder: Path) -> tuple[Points, dict[str, str]]:
    """Read what Weights & Biases would send: a file for each time that a run is opened, here once."""
    record: Any = package("wandb.proto.wandb_internal_pb2").Record()
    config: dict[str, str] = {}
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    for content in records_of(file.read_bytes()):
        record.ParseFromString(content)
        config |= {entry.key: str(json.loads(entry.value_json)) for entry in record.config.update}
    return steps_of(points_of_wandb([file])), config


def read_swanlab(folder: Path) -> tuple[Points, dict[str, str]]:
    """Read what SwanLab would send: a folder for each time that a run is opened, here once."""
    (file,) = folder.glob("swanlog/run-*/run-*.swanlab")
    config: dict[str, Any] = yaml.safe_load((file.parent / "files" / "config.yaml").read_text())
    return steps_of(points_of_swanlab([file])), {name: str(entry["value"]) for name, entry in config.items()}


def steps_of(points: Iterable[Point]) -> Points:
    """The steps of each metric."""
    steps: Points = {}
    for name, step, _ in points:
        steps.setdefault(name, []).append(step)
    return steps


READERS = {"mlflow": read_mlflow, "swanlab": read_swanlab, "trackio": read_trackio, "wandb": read_wandb}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "mlflow": {"run_name": "lr 0.1", "tags": {"of": "mine"}},
    "swanlab": {"mode": "offline"},
    "wandb": {"mode": "offline"},
}


SCRIPT = Path(__file__).with_name("digits_script.py")


def without_network(folder: Path) -> dict[str, str]:
    """The variables that have trackers write to a folder, told that there is no server."""
    return {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GRADIO_ANALYTICS_ENABLED": "False",
        "TRACKIO_DIR": str(folder / "trackio"),
    }


@pytest.mark.filterwarnings("default")  # what these packages warn of is their own concern
@pytest.mark.parametrize("tracker", READERS)
def test_a_script_is_one_run_in_the_tracker(
    tracker: str, tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that failed, another one and an evaluation are one run, which ends with the script; an image is in it."""
    for name, value in without_network(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    launched = launch(SCRIPT, tracker, json.dumps(ARGUMENTS.get(tracker, {})), fresh=True)
    assert launched.status == 0
    table, _, afterwards = launched.output.partition("runs: ")
    assert "wandb sync" not in table  # nor what comes with it
    assert afterwards.count("wandb sync") == int(tracker == "wandb")
    assert "ERROR" not in launched.output

    steps, config = READERS[tracker](tmp_path)
    assert steps["train/loss"] == [2, 4, 6, 8]
    assert steps["train_loss_epoch"] == steps["eval_loss_epoch"] == [5, 8]
    assert steps["evaluation_loss"] == [8]
    assert config["num_epochs"] == "1"
    assert config["train_dl_kwargs.shuffle"] == "True"
    assert config["gradient_clip_value"] == "None"
    assert config["note"] == "(1, None)"
    shown = [image for path in tmp_path.rglob("*.png") for image in [Image.open(path)] if image.size == (7, 5)]
    assert any(image.convert("RGB").getpixel((0, 0)) == (255, 0, 51) for image in shown)


@pytest.mark.parametrize("tracker", READERS)
def test_each_trainer_has_a_run_of_its_own(
    tracker: str, tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trainers of one process, as in a search for settings, are two runs: the second does not join the first."""
    for name, value in without_network(tmp_path).items():
        monkeypatch.setenv(name, value)
    arguments = json.dumps({"mode": "offline"} if tracker in ("swanlab", "wandb") else {})
    launched = launch(SCRIPT, tracker, arguments, "--twice", fresh=True)
    assert launched.status == 0
    (ids,) = [line.removeprefix("runs: ") for line in launched.output.splitlines() if line.startswith("runs: ")]
    assert len(set(ids.split())) == 2


def test_a_script_that_fails_is_a_run_that_has_failed(
    tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights & Biases is told the exit status of the script."""
    monkeypatch.chdir(tmp_path)
    assert launch(SCRIPT, "wandb", '{"mode": "offline"}', "--fail", fresh=True).status == 1
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    record = package("wandb.proto.wandb_internal_pb2").Record()
    codes: list[int] = []
    for content in records_of(file.read_bytes()):
        record.ParseFromString(content)
        if record.HasField("exit"):
            codes.append(record.exit.exit_code)
    assert codes == [1]
