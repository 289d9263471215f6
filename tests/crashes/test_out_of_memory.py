"""With ``per_device_batch_size="fit"``, memory that runs out ends a start, and changes nothing of the run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.launching import Launch

pytestmark = pytest.mark.timeout(300)

SEEDS = [0, 2, *(pytest.param(seed, marks=pytest.mark.whole_proof) for seed in (1, *range(3, 60)))]
"""Each time, a custom loop on two ranks and a trainer on one process."""

SCRIPT = """
import json, os, sys
import torch
from torch import nn
from torch.utils.data import TensorDataset
from pa_core import Run, SaveTrainingStateCallback, Trainer, TrainerCallback

folder, config = sys.argv[1], json.loads(sys.argv[2])
rank = int(os.environ.get("RANK", 0))
torch.set_default_dtype(torch.float64)


class Scarce(nn.Module):
    # Memory that holds so many samples, and fewer from some updates on.
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
        self.updates = 0

    def forward(self, inputs):
        for update, most in config["falls"]:
            hits = config["rank"] is None or rank == config["rank"] or update == 0
            if update == 0:
                most *= 1 + rank % 2 * config["unlike"]
            if not torch.is_grad_enabled():
                most *= 2
            if hits and self.updates >= update and len(inputs) > most:
                raise torch.OutOfMemoryError(f"{len(inputs)} samples")
        return self.layers(inputs)


class Count(TrainerCallback):
    def on_training_run_start(self, trainer, **kwargs):
        model.updates = trainer.num_updates_completed

    def on_optimizer_step_end(self, trainer, update, **kwargs):
        model.updates = update


torch.manual_seed(config["seed"])
inputs = torch.randn(config["samples"], 6)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
model = Scarce()
kinds = {"adamw": torch.optim.AdamW, "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9)}
optimizer = kinds[config["optimizer"]](model.parameters(), lr=0.01)
states = SaveTrainingStateCallback(folder, save_every_n_steps=config["every"], max_checkpoints=2)
arguments = dict(
    num_epochs=3, per_device_batch_size=config["size"], samples_per_update=config["update"], gradient_clip_norm=1.0,
    resume_from=folder, resume_missing="start",
    create_scheduler_fn=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7),
)
if config["loop"]:
    with Run(model, optimizer, data, callbacks=[Count, states], **arguments) as run:
        for epoch in run.epochs():
            for x, y in run.batches():
                run.backward(nn.functional.mse_loss(model(x), y))
                run.step()
            for x, y in run.evaluation_batches(data):
                run.log("loss", nn.functional.mse_loss(model(x), y))
    history = run.run_history
else:
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=[Count, states])
    trainer.train(data, eval_dataset=data, **arguments)
    history = trainer.run_history
losses = [*history.get_metric_values("train_loss_epoch"), *history.get_metric_values("eval_loss_epoch")]
if rank == 0:
    torch.save({**model.state_dict(), "losses": torch.tensor(losses)}, os.path.join(folder, "result.pt"))
"""


def drawn(seed: int) -> dict[str, Any]:
    """A run, and when memory runs out in it: at the start already, and up to twice later."""
    draw = random.Random(seed)
    ranks = draw.choice([1, 1, 2, 2, 3])
    samples, update = draw.randint(60, 150), draw.choice([16, 24, 30, 48])
    first = draw.choice([3, 8, 20])
    of_epoch, largest = -(-samples // update), min(first, update // ranks)
    whole = [number for number in range(1, 3 * of_epoch) if (number + 1) % of_epoch]  # others may be small
    falls = [(0, first), *((draw.choice(whole), max(1, largest // by)) for by in (2, 5)[: draw.randint(1, 2)])]
    return {
        "seed": seed,
        "ranks": ranks,
        "samples": samples,
        "update": update,
        "falls": falls,
        "rank": draw.choice([None, ranks - 1]),
        "unlike": draw.choice([0, 2]),
        "optimizer": draw.choice(["adamw", "sgd"]),
        "every": draw.randint(1, 4),
        "loop": draw.random() < 0.3,
        "size": "fit",
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_the_run_ends_as_if_there_had_been_memory(seed: int, launch: Launch, tmp_path: Path) -> None:
    """Starts that run out of memory end with status 75; the last one has the weights of a run that never did."""
    config = drawn(seed)
    undisturbed = {**config, "size": 64, "falls": []}
    alone = launch(SCRIPT, str(tmp_path / "undisturbed"), json.dumps(undisturbed))
    assert alone.status == 0
    statuses: list[int] = []
    while not statuses or statuses[-1] != 0:
        assert len(statuses) < 8
        started = launch(SCRIPT, str(tmp_path / "scarce"), json.dumps(config), ranks=config["ranks"])
        statuses.append(started.status)
        if started.status != 0:
            assert "do not fit into the memory" in started.output
            assert started.status == 75 or config["ranks"] > 1  # torchrun has a status of its own
    assert len(statuses) > 1
    expected, result = (torch.load(tmp_path / name / "result.pt") for name in ("undisturbed", "scarce"))
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
