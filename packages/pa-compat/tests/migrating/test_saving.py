"""What the pages on differences from the original say of saving: a test for each row."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pa_core import CheckpointError
from pytorch_accelerated.schedulers import CosineLrScheduler
from tests.small_runs import make_trainer, samples


def test_foreign_scheduler(tmp_path: Path) -> None:
    """A checkpoint with the state of a scheduler of pytorch-accelerated loads without it, as the error says."""
    trainer = make_trainer()
    factory = CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=0, lr_min=0.0)
    trainer.train(samples(4), 1, create_scheduler_fn=factory)
    states = {"model_state_dict": trainer.model.state_dict(), "optimizer_state_dict": trainer.optimizer.state_dict()}
    attributes = {"param_group_field": "lr", "total_num_epochs": 1, "num_updates": 1}  # and others, in the original
    torch.save({**states, "scheduler_state_dict": attributes}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"of pytorch-accelerated\.(.|\n)*load_scheduler=False"):
        trainer.load_checkpoint(tmp_path / "model.pt")
    assert trainer.load_checkpoint(tmp_path / "model.pt", load_scheduler=False)["scheduler_state_dict"] == attributes
