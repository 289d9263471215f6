"""Runs that are killed and resumed, in each tracker with its own package and without a network: what they show.

The server of Weights & Biases is a small server on this machine.

Like the tests next to this one, they run in the session `trackers` of noxfile.py.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.event_files import read_curves
from tests.launching import Launch
from tests.trackers.killed_script import EPOCHS, UPDATES_PER_EPOCH
from tests.trackers.offline_runs import package, points_of_swanlab, points_of_wandb, rows_of_trackio
from tests.trackers.wandb_server import serving

Points = Counter[tuple[str, int, float]]
"""How often each metric has a value at a step."""
SCRIPT = Path(__file__).with_name("killed_script.py")
MEASURED = "train/samples_per_second"
LAST_UPDATE = EPOCHS * UPDATES_PER_EPOCH


def read_mlflow(folder: Path) -> Points:
    """Read the only run in the database of MLflow."""
    client = package("mlflow").MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'digits'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    names: list[str] = list(run.data.metrics)
    points = [point for name in names for point in client.get_metric_history(run.info.run_id, name)]
    return counted((point.key, point.step, point.value) for point in points)


def read_trackio(folder: Path) -> Points:
    """Read the only run in the database of Trackio."""
    rows, _ = rows_of_trackio(folder)
    return counted(
        (name, row["step"], value) for row in rows for name, value in row.items() if name not in ("step", "timestamp")
    )


def read_wandb(folder: Path) -> Points:
    """Read the files of all starts, which are one run when they are uploaded."""
    files = list(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert len({file.name for file in files}) == 1
    return counted(points_of_wandb(files))


def read_swanlab(folder: Path) -> Points:
    """Read the files of all starts, which are one run when they are uploaded."""
    files = list(folder.glob("swanlog/run-*/run-*.swanlab"))
    assert len({file.name for file in files}) == 1
    return counted(points_of_swanlab(files))


def read_tensorboard(folder: Path) -> Points:
    """Read what TensorBoard shows of the folder of a run."""
    curves = read_curves(folder / "runs" / "digits")
    return counted((name, step, value) for name, curve in curves.items() for step, value in curve)


def counted(points: Iterator[tuple[str, int, float]]) -> Points:
    """Count points, the speeds, which differ from run to run, without their values."""
    return Counter((name, step, 0.0 if name == MEASURED else round(value, 4)) for name, step, value in points)


READERS: dict[str, Callable[[Path], Points]] = {
    "mlflow": read_mlflow,
    "swanlab": read_swanlab,
    "tensorboard": read_tensorboard,
    "trackio": read_trackio,
    "wandb": read_wandb,
}
SEVERAL_FOLDERS = ("swanlab", "wandb")
"""Have a folder for each start if they are offline."""


def train(tracker: str, folder: Path, kills: Sequence[int], *, seconds: float = 0.0, kind: str = "") -> Points:
    """Train in a folder, killed in some updates and started again each time, and return what the tracker shows."""
    if kind.startswith("online"):
        with serving() as server:
            _train(tracker, folder, kills, seconds, {}, server.environment())
            return counted(server.points())
    arguments = {"mode": "offline"} if tracker in SEVERAL_FOLDERS else {}
    _train(tracker, folder, kills, seconds, arguments, {"MLFLOW_ENABLE_ASYNC_LOGGING": str(bool(kind)).lower()})
    return READERS[tracker](folder)


def _train(
    tracker: str,
    folder: Path,
    kills: Sequence[int],
    seconds: float,
    arguments: dict[str, str],
    settings: dict[str, str],
) -> None:
    folder.mkdir()
    environment = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GRADIO_ANALYTICS_ENABLED": "False",
        "TRACKIO_DIR": str(folder / "trackio"),
        **settings,
    }
    for update in [*kills, 0]:
        options = ["--seconds", str(seconds), "--kill-in", str(update)]
        launched = Launch(folder, environment)(SCRIPT, tracker, json.dumps(arguments), *options, fresh=True)
        assert launched.status == (-9 if update else 0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Points:
    """What a run shows that was not killed."""
    points = train("tensorboard", tmp_path_factory.mktemp("run") / "whole", [])
    assert len({step for name, step, _ in points if name == "train/loss"}) == LAST_UPDATE
    return points


@pytest.mark.filterwarnings("default")  # what these packages warn of is their own concern
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "tracker",
    [
        "mlflow",
        "mlflow, asynchronous",
        "swanlab",
        "tensorboard",
        "trackio",
        "wandb",
        "wandb, online",
        "wandb, online, slowly",
    ],
)
def test_a_run_that_was_killed_shows_each_point(tracker: str, tmp_path: Path, undisturbed: Points) -> None:
    """Killed in two updates, a run lacks no point of an undisturbed one, and shows none twice.

    The first one resumes with the evaluation at the end of an epoch. Where each start has a file, the files together
    have all points. Weights & Biases sends its rows every 15 seconds, so all or a part of them are lost.
    """
    name, _, kind = tracker.partition(", ")
    kills = [UPDATES_PER_EPOCH + 3, random.Random(tracker).randrange(UPDATES_PER_EPOCH + 6, LAST_UPDATE)]
    points = train(name, tmp_path / "killed", kills, seconds=0.8 if "slowly" in kind else 0.02, kind=kind)
    assert points.keys() == undisturbed.keys()
    if name not in SEVERAL_FOLDERS or kind:
        assert points == (Counter([*undisturbed]) if name == "wandb" else undisturbed)  # which keeps a value a step
