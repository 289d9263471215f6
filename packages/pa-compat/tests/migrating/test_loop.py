"""What the pages on differences from the original say of the loop: a test for each row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, BatchMismatchError
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import TrainerCallback
from tests.small_runs import make_trainer, samples

PACKAGES = Path(__file__).parents[4] / "packages"


@pytest.mark.runs_on("one_process", "two_ranks")
def test_own_optimizer() -> None:
    """While a run goes on, the optimizer is the one that was given."""
    seen: list[torch.optim.Optimizer] = []

    class NoteOptimizer(TrainerCallback):
        @override
        def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            seen.append(trainer.optimizer)

    trainer = make_trainer(Trainer, NoteOptimizer)
    optimizer = trainer.optimizer
    trainer.train(samples(4), 1)
    assert seen == [optimizer]


def mean_square(outputs: Tensor, wanted: Tensor) -> Tensor:
    """A loss that has its targets without the dimension of the outputs."""
    return (outputs - wanted[:, None]).square().mean()


def test_broadcast() -> None:
    """Outputs are not compared with the targets of other samples; a loss function of one's own decides for itself."""
    inputs, targets = samples(4).tensors
    flat = TensorDataset(inputs, targets[:, 0])
    with pytest.raises(BatchMismatchError, match=r"shape \(4, 1\), targets of shape \(4,\)"):
        make_trainer().train(flat, 1)
    trainer = make_trainer()
    trainer.loss_func = mean_square
    trainer.train(flat, 1)
    assert trainer.num_updates_completed == 1


def test_versions() -> None:
    """The floors on the page are those that are declared."""
    declared = (PACKAGES / "pa-core" / "pyproject.toml").read_text()
    floors = ['requires-python = ">=3.11"', '"torch>=2.11"', '"accelerate>=1.13.0"']
    assert [floor for floor in floors if floor not in declared] == []
    assert sys.version_info >= (3, 11)
