"""The callbacks on two processes: one decision for both, one voice for a machine, nobody waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from typing_extensions import override

from pa_core import (
    DEFAULT_CALLBACKS,
    AnyTrainer,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
    SaveBestModelCallback,
    StepBasedEvaluationCallback,
    TrainerCallback,
)
from pa_core.testing import RecordingCallback, make_regression
from tests.support.pa_core.scripted_scores import Script
from tests.support.trainers import linear_trainer

pytestmark = pytest.mark.runs_on("two_ranks")


def test_ranks_agree_on_the_limit_where_their_loaders_differ() -> None:
    """Of three steps the last has a sample for one rank only; a limit of two ends both after two updates."""
    trainer = linear_trainer(LimitBatchesCallback(2))
    trainer.train(make_regression(33), num_epochs=2)
    assert trainer.run_config.max_num_train_steps == 4
    assert trainer.num_updates_completed == 4


def test_ranks_evaluate_together_within_an_epoch() -> None:
    """Limited evaluations after every second update run on both ranks, the last step of one rank included."""
    recorder = RecordingCallback()
    trainer = linear_trainer(StepBasedEvaluationCallback(2), LimitEvalStepsCallback(1), recorder)
    trainer.train(make_regression(65), 1, make_regression(35))
    assert recorder.events.count("on_eval_epoch_end") == 3
    assert recorder.events.count("on_eval_step_end") == 1 + 1 + 3


def test_ranks_decide_alike_even_if_their_metrics_differ(shared_tmp_path: Path) -> None:
    """With a metric that each rank computed by itself, the first rank's values decide for all."""
    scores = [[3.0, 1.0, 2.0], [1.0, 2.0, 3.0]][dist.get_rank()]
    save_best = SaveBestModelCallback(shared_tmp_path / "best.pt", "figure")
    trainer = linear_trainer(Script(scores), save_best)
    trainer.train(make_regression(16), num_epochs=3)
    assert (save_best.best.value, save_best.best.epoch) == (1.0, 2)
    assert trainer.model.weight[0, 0] == 2
    assert torch.load(shared_tmp_path / "best.pt", weights_only=True)["best_epoch"] == 2


class ScoreOfUpdates(TrainerCallback):
    """Records a score in each evaluation that only the first rank finds good after the second update."""

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        is_best = trainer.num_updates_completed == 2 and dist.get_rank() == 0
        trainer.run_history.update_metric("figure", 0.0 if is_best else 1.0 + dist.get_rank())


def test_ranks_save_the_best_of_the_evaluations_within_an_epoch_together(shared_tmp_path: Path) -> None:
    """The file is that of the second of four updates, and both ranks end with its weights."""
    save_best = SaveBestModelCallback(shared_tmp_path / "best.pt", "intermediate_figure")
    trainer = linear_trainer(ScoreOfUpdates(), StepBasedEvaluationCallback(1), save_best)
    trainer.train(make_regression(64), 1, make_regression(16))
    assert save_best.best.value == 0.0
    saved = torch.load(shared_tmp_path / "best.pt", weights_only=True)
    assert torch.equal(trainer.model.weight.detach(), saved["model_state_dict"]["weight"])


def test_only_the_first_process_of_a_machine_shows_anything(capfd: pytest.CaptureFixture[str]) -> None:
    """Of two ranks one writes, and the figures it shows count the batches of both."""
    linear_trainer(*DEFAULT_CALLBACKS).train(make_regression(32), 1, make_regression(32))
    captured = capfd.readouterr()
    output = captured.out + captured.err
    if dist.get_rank() != 0:
        assert output == ""
        return
    assert "2 processes (gloo)" in output
    starts = ["Training starts:", "epoch  train loss  eval loss", "    1   ", "Training ended:"]
    assert [output.count(start) for start in starts] == [1] * 4, output
