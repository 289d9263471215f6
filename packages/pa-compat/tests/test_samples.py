"""Code samples of the reference run, written as a user writes them, on the names that the reference gives.

The functions that are called here are in ``scripts/reference_samples.py``.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import pytest
from accelerate.utils import write_basic_config

from pa_core import AnyTrainer
from tests.launching import run_command
from tests.support.pa_compat.script_runs import names_of

EXAMPLE = Path(__file__).parents[3] / "examples" / "porting" / "from_pytorch_accelerated.py"

everywhere = pytest.mark.runs_on("one_process", "two_ranks", "bf16")


@pytest.fixture(scope="module")
def samples() -> dict[str, Any]:
    """The samples, by name."""
    return names_of("reference_samples.py")


def tolerance(trainer: AnyTrainer) -> float:
    """How far the metrics of a run may be from those in full precision."""
    return 1e-5 if trainer.run_config.mixed_precision == "no" else 0.02


def test_sample_launching_with_a_configuration_file(tmp_path: Path) -> None:
    """``accelerate launch --config_file`` starts a script, with arguments of its own."""
    config = tmp_path / "accelerate_config.yaml"
    write_basic_config(save_location=str(config))  # what `accelerate config default` calls
    accelerate = str(Path(sysconfig.get_path("scripts"), "accelerate"))
    command = [accelerate, "launch", "--config_file", str(config), str(EXAMPLE), "--epochs=2"]
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
def test_sample_metrics_of_torchmetrics(samples: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Metrics of a callback are recorded once an epoch, for the whole dataset, and are shown."""
    trainer, in_training, (of_evaluation, of_test) = samples["metrics_in_a_callback"]()

    assert of_evaluation["accuracy"] > 0.8
    assert len(in_training) == 3
    assert in_training[-1] == pytest.approx(of_evaluation["recall"], abs=tolerance(trainer))
    recorded = {name: float(trainer.run_history.get_latest_metric(name)) for name in of_test}
    assert recorded == pytest.approx(of_test, abs=tolerance(trainer))
    shown = f"{recorded['recall']:.4f}" in capsys.readouterr().out
    assert shown == trainer.run_config.is_local_process_zero
