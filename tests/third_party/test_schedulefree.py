"""Optimizers of schedulefree: what is evaluated and exported is their average, and resuming keeps each bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pa_core import SaveBestModelCallback, SaveTrainingStateCallback, Trainer
from pa_core.testing import make_regression

schedulefree: Any = pytest.importorskip("schedulefree")
KINDS = ("AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree")


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("name", KINDS)
def test_the_average_is_evaluated_and_training_resumes_bit_for_bit(name: str, shared_tmp_path: Path) -> None:
    """The script calls neither `train()` nor `eval()` of the optimizer."""
    data = make_regression(24)

    def run(*callbacks: Any, **arguments: Any) -> Trainer[nn.Linear]:
        torch.default_generator.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = getattr(schedulefree, name)(model.parameters(), lr=0.05)
        trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=callbacks)
        trainer.train(data, 4, data, per_device_batch_size=4, **arguments)
        return trainer

    def best_of(name: str) -> SaveBestModelCallback:
        return SaveBestModelCallback(shared_tmp_path / name, load_saved_checkpoint=False)

    best = best_of("best.pt")
    trainer = run(best, SaveTrainingStateCallback(shared_tmp_path / "states", 2, max_checkpoints=None))
    last = trainer.run_history.get_latest_metric("eval_loss_epoch")
    inputs, targets = data.tensors
    assert nn.functional.mse_loss(trainer.model(inputs), targets).item() == pytest.approx(last)
    assert trainer.evaluate(data)["evaluation_loss"] == pytest.approx(last)
    if best.best.epoch == trainer.num_epochs_completed:
        saved = torch.load(shared_tmp_path / "best.pt", weights_only=True)["model_state_dict"]
        torch.testing.assert_close(saved["weight"], trainer.model.weight.detach())
    for state in sorted((shared_tmp_path / "states").glob("[!.]*"))[::2]:
        assert torch.equal(run(best_of("resumed.pt"), resume_from=state).model.weight, trainer.model.weight), state
