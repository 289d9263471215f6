"""Runs that are interrupted and go on from a training state, with an average of the weights and early stopping."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from typing_extensions import override

from pa_callbacks_extra import ConvertSyncBatchNormCallback, EarlyStoppingCallback, ModelEma, ModelEmaCallback
from pa_core import SaveTrainingStateCallback, Trainer
from pa_core.testing import TinyClassifier, make_classification

NUM_EPOCHS = 30


class Centre(nn.Module):
    """Subtracts a mean that it keeps in a buffer, which is not part of its state dict."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(inputs.detach().float().mean(0), 0.1)
        return inputs - self.mean


class Outcome(NamedTuple):
    """What a run leaves behind."""

    weights: dict[str, Tensor]
    average: dict[str, Tensor]
    average_of_other_buffers: Tensor
    best_average: dict[str, Tensor]
    best: dict[str, Any]
    stopping: dict[str, Any]
    num_updates: tuple[int, int]
    metrics: dict[str, list[float]]


def run(folder: Path, every: int, saves_first: bool, resume_from: Path | None = None, seed: int = 0) -> Outcome:
    """Train with dropout and batch norm until the average no longer improves, saving states on the way."""
    torch.default_generator.manual_seed(seed)
    model = nn.Sequential(Centre(), nn.Dropout(0.1), TinyClassifier(batch_norm=True))
    average = ModelEmaCallback(
        0.9, save_path=folder / "ema.pt", model_ema=partial(ModelEma, warm_up=True), update_every_n_steps=every
    )
    average.best.greater_is_better = saves_first  # one of the runs had its best average long before it was interrupted
    stopping = EarlyStoppingCallback(2, 0.1, "ema_model_eval_loss_epoch")
    save = SaveTrainingStateCallback(folder / f"states_{seed}", save_every_n_epochs=2, save_every_n_steps=7)
    callbacks = [save, average, stopping, ConvertSyncBatchNormCallback()] if saves_first else [average, stopping, save]
    trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=0.02), callbacks=callbacks)

    trainer.train(make_classification(48), NUM_EPOCHS, make_classification(24), resume_from=resume_from)

    trainer.gather(torch.zeros(1))  # wait until the first rank has written
    metrics = {name: trainer.run_history.get_metric_values(name) for name in trainer.run_history.get_metric_names()}
    return Outcome(
        weights=dict(trainer.model.state_dict()),
        average={name: value for name, value in average.ema.state_dict().items() if isinstance(value, Tensor)},
        average_of_other_buffers=average.ema.module.get_buffer("0.mean"),
        best_average=torch.load(folder / "ema.pt", weights_only=True)["model_state_dict"],
        best=average.best.state_dict(),
        stopping=stopping.state_dict(),
        num_updates=(trainer.num_updates_completed, average.ema.num_updates),
        metrics={name: list(map(float, values)) for name, values in metrics.items()},
    )


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
@pytest.mark.parametrize(("every", "saves_first"), [(1, True), (3, False)])
def test_an_interrupted_run_ends_as_if_it_had_not_been(shared_tmp_path: Path, every: int, saves_first: bool) -> None:
    """From each of its states, a run ends with the same weights, average, metrics and reason, to the last bit."""
    whole = run(shared_tmp_path, every, saves_first)
    assert 3 <= len(whole.metrics["eval_loss_epoch"]) < NUM_EPOCHS
    states = sorted((shared_tmp_path / "states_0").iterdir())

    for number in (1, len(states) - 2):  # within an epoch, and after one
        resumed = run(shared_tmp_path, every, saves_first, resume_from=states[number], seed=1 + number)
        torch.testing.assert_close(resumed._asdict(), whole._asdict(), rtol=0, atol=0)
