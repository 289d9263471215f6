"""What a run does on Ray, in a single process without a cluster; `nox -s ray` runs it with workers that are killed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pa_core import ConfigurationError, SaveAndStop, SaveTrainingStateCallback, Trainer, TrainingPreempted
from pa_core.testing import make_regression
from pa_ray import RayPreemptionNotice, ReportToRay, newest_state, train_on_ray

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray", "ignore::FutureWarning:ray")


class Stop:
    """A notice that ends a run after its first update."""

    def ask(self) -> SaveAndStop:
        """End the run."""
        return SaveAndStop("a test")


def train(states: Path, *notices: Any, num_epochs: int = 2, saves: bool = True) -> Trainer[nn.Linear]:
    """Train for some epochs of four updates, and return the trainer."""
    model = nn.Linear(4, 1)
    save = SaveTrainingStateCallback(states, save_every_n_epochs=1, notices=notices)
    callbacks = [save, ReportToRay()] if saves else [ReportToRay()]
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=callbacks)
    trainer.train(
        make_regression(32),
        num_epochs,
        per_device_batch_size=8,
        resume_from=newest_state(states),
        train_dataloader_kwargs={"num_workers": 0},
    )
    return trainer


@pytest.fixture(autouse=True)
def quiet_ray() -> None:
    """Ray logs each report."""
    logging.getLogger("ray").setLevel(logging.ERROR)


def on_ray(function: Any, config: dict[str, Any] | None = None) -> Any:
    """Train in this process, as Ray Train does without workers."""
    return train_on_ray(function, config, num_workers=0)


def test_the_metrics_and_the_state_of_the_end_are_the_result(tmp_path: Path) -> None:
    """The result has the latest metrics, the number of epochs and updates, the last state, and what was returned."""
    result = on_ray(lambda: train(tmp_path).run_history.get_latest_metric("train_loss_epoch"))
    assert result.metrics == {"train_loss_epoch": result.return_value, "epoch": 2, "update": 8}
    assert Path(result.checkpoint.path) == tmp_path / "final"


def test_the_configuration_reaches_a_function_that_takes_it() -> None:
    """It is empty if none was passed."""

    def return_it(config: dict[str, Any]) -> dict[str, Any]:
        return config

    assert on_ray(return_it, {"lr": 0.5}).return_value == {"lr": 0.5}
    assert on_ray(return_it).return_value == {}


def test_a_config_that_the_function_cannot_take_is_refused() -> None:
    """Before Ray starts, since it would have no effect."""
    with pytest.raises(ConfigurationError, match=r"config=\{'lr': 0.5\}[\s\S]*a function with one parameter"):
        on_ray(lambda: None, {"lr": 0.5})


def test_a_preempted_run_ends_the_script_and_continues_when_it_starts_again(tmp_path: Path) -> None:
    """Ray would count it as a failure; here, the script of the driver ends with status 75."""
    with pytest.raises(TrainingPreempted, match="75") as preempted:
        on_ray(lambda: train(tmp_path, Stop()))
    assert preempted.value.reason == "a test"
    assert on_ray(lambda: train(tmp_path).num_updates_completed).return_value == 8


def test_a_callback_that_would_report_nothing_warns(tmp_path: Path) -> None:
    """Without training states, Ray would never get a metric."""
    with pytest.warns(UserWarning, match="no SaveTrainingStateCallback saves states"):
        on_ray(lambda: train(tmp_path, saves=False).num_updates_completed)


def test_the_same_script_runs_without_ray(tmp_path: Path) -> None:
    """It reports nothing, gets no notice, and resumes from its folder."""
    assert newest_state(tmp_path) is None
    train(tmp_path, RayPreemptionNotice(), num_epochs=1)
    assert newest_state(tmp_path) == tmp_path
    assert train(tmp_path, RayPreemptionNotice()).num_updates_completed == 8


def test_the_script_of_the_readme_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script of packages/pa-ray/README.md prints the last loss, here without workers of its own."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    script = readme.partition("```python\n")[2].partition("```")[0]
    assert script.count("num_workers=2") == 1
    exec(script.replace("/shared", str(tmp_path)).replace("num_workers=2", "num_workers=0"), {})
    assert 0 < float(capsys.readouterr().out.splitlines()[-1]) < 1
    assert newest_state(tmp_path / "states") == tmp_path / "states"
