"""A line says what is trained where that changes between epochs, and only there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import DEFAULT_CALLBACKS, AnyTrainer, Trainer, TrainerCallback

DATA = TensorDataset(torch.ones(8, 2), torch.ones(8, 1))


class Thaws(TrainerCallback):
    """Freezes or unfreezes the first layer after some epochs."""

    def __init__(self, after: dict[int, bool]) -> None:
        self.after = after

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Do so."""
        epoch = trainer.run_history.current_epoch
        if epoch in self.after:
            layers: Any = trainer.model
            layers[0].requires_grad_(self.after[epoch])


def printed(
    capsys: pytest.CaptureFixture[str], *callbacks: TrainerCallback, kind: type[Trainer] = Trainer, lazy: bool = False
) -> list[str]:
    """The lines of a run of four epochs that say what is trained."""
    model = nn.Sequential(nn.LazyLinear(3) if lazy else nn.Linear(2, 3), nn.Linear(3, 1))
    if callbacks:
        model[0].requires_grad_(False)
    trainer = kind(
        model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[*DEFAULT_CALLBACKS, *callbacks]
    )
    trainer.train(DATA, num_epochs=4, per_device_batch_size=4)
    return [line for line in capsys.readouterr().out.splitlines() if "rains " in line]


def test_a_line_says_when_layers_thaw(capsys: pytest.CaptureFixture[str]) -> None:
    """And when they are frozen again."""
    lines = printed(capsys, Thaws({2: True, 3: False}))
    assert lines == [
        "Trains 4 of 13 parameters (9 frozen)",
        "From epoch 3 on, trains all 13 parameters",
        "From epoch 4 on, trains 4 of 13 parameters (9 frozen)",
    ]


class Adversarial(Trainer):
    """Freezes a part within each step, as adversarial training does."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        model: Any = self.model
        output = super().calculate_train_batch_loss(batch)
        model[1].requires_grad_(False)
        return output


@pytest.mark.parametrize(("kind", "lazy"), [(Trainer, False), (Trainer, True), (Adversarial, False)])
def test_other_runs_print_no_such_line(capsys: pytest.CaptureFixture[str], kind: type[Trainer], lazy: bool) -> None:
    """Sizes that become known are no change, nor is what a step freezes."""
    assert len(printed(capsys, kind=kind, lazy=lazy)) == 1
