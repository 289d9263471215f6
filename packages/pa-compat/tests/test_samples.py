"""Code samples of the reference run, written as a user writes them, on the names that the reference gives.

The functions that are called here are in ``scripts/reference_samples.py`` and its neighbours.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import write_basic_config
from torch.utils.data import DataLoader

from pa_core import AnyTrainer
from tests.launching import run_command
from tests.support.pa_compat.script_runs import SCRIPTS, names_of

everywhere = pytest.mark.runs_on("one_process", "two_ranks", "bf16")


@pytest.fixture(scope="module")
def samples() -> dict[str, Any]:
    """The samples, by name."""
    return names_of("reference_samples.py")


def tolerance(trainer: AnyTrainer) -> float:
    """How far the metrics of a run may be from those in full precision."""
    return 1e-5 if trainer.run_config.mixed_precision == "no" else 0.02


@everywhere
def test_sample_quickstart() -> None:
    """The first script trains, evaluates after each epoch, and tests at the end: on each sample of the test once."""
    train_losses, eval_losses, trainer, test_dataset = names_of("quickstart.py")["main"]()

    assert len(train_losses) == len(eval_losses) == 8
    assert train_losses[-1] < train_losses[0] / 3
    ((images, labels),) = DataLoader(test_dataset, batch_size=len(test_dataset))
    with torch.no_grad():
        by_hand = torch.nn.functional.cross_entropy(trainer.model(images), labels).item()
    assert by_hand < 0.5
    recorded = trainer.run_history.get_latest_metric("evaluation_loss")
    assert recorded == pytest.approx(by_hand, abs=tolerance(trainer))


def test_sample_launching_with_a_configuration_file(tmp_path: Path) -> None:
    """``accelerate launch --config_file`` starts the same script, with arguments of its own."""
    config = tmp_path / "accelerate_config.yaml"
    write_basic_config(save_location=str(config))  # what `accelerate config default` calls
    accelerate = str(Path(sysconfig.get_path("scripts"), "accelerate"))
    command = [accelerate, "launch", "--config_file", str(config), str(SCRIPTS / "quickstart.py"), "2"]
    launched = run_command(command, folder=tmp_path)

    assert launched.status == 0
    assert "Training ended: 2 epochs" in launched.output


IN_TRAINING = """
create_train_dataloader create_eval_dataloader create_scheduler training_run_start on_training_run_start
train_epoch_start on_train_epoch_start
on_train_step_start calculate_train_batch_loss on_train_step_end
backward_step optimizer_step scheduler_step optimizer_zero_grad
train_epoch_end on_train_epoch_end
eval_epoch_start on_eval_epoch_start on_eval_step_start calculate_eval_batch_loss on_eval_step_end
eval_epoch_end on_eval_epoch_end
training_run_epoch_end on_training_run_epoch_end
training_run_end on_training_run_end
"""
IN_EVALUATION = """
create_eval_dataloader evaluation_run_start on_evaluation_run_start
eval_epoch_start on_eval_epoch_start on_eval_step_start calculate_eval_batch_loss on_eval_step_end
eval_epoch_end on_eval_epoch_end
evaluation_run_end on_evaluation_run_end
"""
NOT_DOCUMENTED = {"on_init_end", "on_optimizer_step_end", "on_prepare_start"}
"""Of these calls, the pseudocode of the reference says nothing."""


@everywhere
def test_sample_what_goes_on_inside_the_trainer(samples: dict[str, Any]) -> None:
    """The methods of the trainer and the events of callbacks are called in the order of the pseudocode."""
    in_training, in_evaluation = samples["calls_of_a_run"]()

    assert [name for name in in_training if name not in NOT_DOCUMENTED] == IN_TRAINING.split()
    assert [name for name in in_evaluation if name not in NOT_DOCUMENTED] == IN_EVALUATION.split()


@everywhere
@pytest.mark.parametrize("sample", ["metrics_in_the_loop", "metrics_in_a_callback"])
def test_sample_metrics_of_torchmetrics(
    samples: dict[str, Any], sample: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Metrics of a subclass or a callback are recorded once an epoch, for the whole dataset, and are shown."""
    trainer, in_training, (of_evaluation, of_test) = samples[sample]()

    assert of_evaluation["accuracy"] > 0.8
    assert len(in_training) == 3
    assert in_training[-1] == pytest.approx(of_evaluation["recall"], abs=tolerance(trainer))
    recorded = {name: float(trainer.run_history.get_latest_metric(name)) for name in of_test}
    assert recorded == pytest.approx(of_test, abs=tolerance(trainer))
    shown = f"{recorded['recall']:.4f}" in capsys.readouterr().out
    assert shown == trainer.run_config.is_local_process_zero


@everywhere
def test_sample_a_custom_logging_callback(samples: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A logger for another platform gets the run config once, and each metric of each epoch from one process."""
    client, trainer = samples["custom_logging"]()

    assert client.uri == "https://tracking.example"
    assert client.tags["num_epochs"] == 2
    assert client.tags["train_total_batch_size"] == 32 * trainer.run_config.num_processes
    train_losses, eval_losses = (
        list(trainer.run_history.get_metric_values(name)) for name in ("train_loss_epoch", "eval_loss_epoch")
    )
    logged = [
        {name: losses[epoch]}
        for epoch in range(2)
        for name, losses in (("train_loss_epoch", train_losses), ("eval_loss_epoch", eval_losses))
    ]
    assert client.logged == (logged if trainer.run_config.is_world_process_zero else [])
    assert capsys.readouterr().out == ""


@everywhere
def test_sample_saving_predictions(samples: dict[str, Any], shared_tmp_path: Path) -> None:
    """The table of predictions has a line for each evaluated sample, once and in order."""
    table, expected = samples["table_of_predictions"](shared_tmp_path / "predictions.csv")

    assert table["label"] == expected["label"]
    differ = sum(one != other for one, other in zip(table["predicted"], expected["predicted"], strict=True))
    assert differ <= 1  # in bf16, two logits may be equal


@everywhere
def test_sample_a_custom_event(samples: dict[str, Any]) -> None:
    """An event of the user's own is called for each batch, and the run config is read by key."""
    num_checked, num_updates = samples["custom_event"](batch_size=16)

    assert num_checked == num_updates


def test_sample_a_custom_event_can_end_a_run(samples: dict[str, Any]) -> None:
    """What a callback finds wrong in an event of the user's own leaves ``train()``, as in any other event."""
    with pytest.raises(AssertionError):
        samples["custom_event"](batch_size=100)  # of 256 samples, the last batch has 56


@everywhere
def test_sample_placeholders_of_one_cycle(samples: dict[str, Any]) -> None:
    """Placeholders stretch one cycle over the run, whose last update is made with next to no rate."""
    rates, updates_per_epoch = samples["one_cycle"]()

    assert len(rates) == 8 * updates_per_epoch
    assert max(rates) == pytest.approx(0.2, rel=0.01)
    assert rates[-1] == pytest.approx(0.2 / 25 / 1e4)
