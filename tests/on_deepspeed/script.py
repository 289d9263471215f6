"""Runs of DeepSpeed's engine and of a plain trainer, several in a launch: `script.py JOBS`, each a dictionary.

The first process prints what came of each job. A job with `kill_at` kills its processes after that update.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, Run, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.engine.exchange import Exchange
from pa_deepspeed import ZeroEngine

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 0.01, "weight_decay": 0.01},
    "AdamW": {"lr": 0.01, "amsgrad": True},
    "Adadelta": {"lr": 0.5},
    "Adamax": {"lr": 0.01},
    "ASGD": {"lr": 0.05},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "eps": 0.01},
}


@dataclass
class Configuration:
    """Arguments of a run, drawn from a seed.

    Attributes:
        stage: The stage of ZeRO; 0 for a plain trainer.
        optimizer: The name of the optimizer.
        samples: The number of samples, so that some shares are empty.
        per_device: The batch size.
        per_update: The number of samples of an update.
        clip: The arguments that clip.
        scheduler: The kind of the scheduler.
        evaluates: Whether epochs end with an evaluation.
        counts_items: Whether the loss is a mean over items.
        loops: Whether the script has its own loop.
        dropout: The share of dropout.
    """

    stage: int
    optimizer: str
    samples: int
    per_device: int
    per_update: int
    clip: dict[str, float]
    scheduler: str
    evaluates: bool
    counts_items: bool
    loops: bool
    dropout: float = 0.0

    @classmethod
    def drawn(cls, seed: int, **changes: Any) -> Configuration:
        """Draw a configuration."""
        draw = random.Random(seed)
        stage = 1 + seed % 3
        per_device = draw.choice([2, 3, 4, 8])
        drawn = cls(
            stage=stage,
            optimizer=draw.choice(list(OPTIMIZERS)),
            samples=draw.choice([1, 7, 25, 37, 49, 61]),
            per_device=per_device,
            per_update=per_device * 6 * draw.choice([1, 2]),
            clip=draw.choice([{}, {"gradient_clip_norm": 0.3}, {"gradient_clip_value": 0.05}]),
            scheduler=draw.choice(["none", "update", "epoch"]),
            evaluates=draw.random() < 0.6,
            counts_items=draw.random() < 0.4,
            loops=draw.random() < 0.3,
        )
        for name, value in changes.items():
            setattr(drawn, name, value)
        return drawn


def make_model(dropout: float) -> nn.Module:
    """Create a model with weights of many sizes, of which one is frozen and one has a single element."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(5, 9), nn.LayerNorm(9), nn.Tanh(), nn.Dropout(dropout), nn.Linear(9, 4), nn.PReLU(), nn.Linear(4, 3)
    )
    first: Any = model[0]
    first.bias.requires_grad_(False)
    return model


def make_data(samples: int) -> TensorDataset:
    """Create samples."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(samples, 5, generator=generator)
    return TensorDataset(inputs, torch.randn(samples, 3, generator=generator))


def make_optimizer(configuration: Configuration, model: nn.Module) -> torch.optim.Optimizer:
    """Create an optimizer with two groups."""
    parameters = list(model.parameters())
    arguments = OPTIMIZERS[configuration.optimizer]
    groups = [{"params": parameters[:3]}, {"params": parameters[3:], "lr": arguments["lr"] / 2}]
    made: torch.optim.Optimizer = getattr(torch.optim, configuration.optimizer)(groups, **arguments)
    return made


def make_scheduler(configuration: Configuration) -> Any:
    """Return a function that creates the scheduler."""
    if configuration.scheduler == "none":
        return None
    return partial(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.7)


class OwnTrainer(Trainer[Any, Any, Any, Any]):
    """A trainer with DeepSpeed's engine, or without."""

    stage: int = 0
    counts_items: bool = False

    @override
    def create_exchange(self) -> Exchange:
        """Return the engine in a stage of ZeRO."""
        return ZeroEngine(self, stage=self.stage) if self.stage else super().create_exchange()

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        """Count items that depend on the samples, if requested."""
        if not self.counts_items:
            return super().calculate_train_batch_loss(batch)
        inputs, targets = batch
        counted = inputs[:, 0] > -1
        outputs = self.model(inputs)
        error = (outputs - targets).square().mean(1)
        items = int(counted.sum())
        loss = (error * counted).sum() / max(items, 1)
        return {"loss": loss, "batch_size": len(inputs), "num_items_in_batch": items, "model_outputs": outputs}


class OwnRun(Run[Any, Any]):
    """A run with DeepSpeed's engine, or without."""

    stage: int = 0

    @override
    def create_exchange(self) -> Exchange:
        """Return the engine in a stage of ZeRO."""
        return ZeroEngine(self, stage=self.stage) if self.stage else super().create_exchange()


class KillAt(TrainerCallback):
    """Kill this process after an update."""

    def __init__(self, update: int, rank: int | None) -> None:
        self.update, self.rank = update, rank

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: object) -> None:
        """Kill it."""
        if update == self.update and self.rank in {None, trainer.process_index}:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Trained:
    """What came of a run."""

    weights: list[torch.Tensor]
    states: dict[str, Any]
    metrics: dict[str, float]
    digest: str
    norm: float | None


def train(configuration: Configuration, folder: str | None = None, callbacks: Any = ()) -> Trained:
    """Train two epochs."""
    model, data = make_model(configuration.dropout), make_data(configuration.samples)
    optimizer = make_optimizer(configuration, model)
    saving = [] if folder is None else [SaveTrainingStateCallback(folder, save_every_n_steps=2, max_checkpoints=2)]
    arguments: dict[str, Any] = {
        "per_device_batch_size": configuration.per_device,
        "samples_per_update": configuration.per_update,
        "step_scheduler": "epoch" if configuration.scheduler == "epoch" else "update",
        "create_scheduler_fn": make_scheduler(configuration),
        "resume_from": folder,
        **configuration.clip,
    }
    if folder is not None:
        arguments["resume_missing"] = "start"
    if configuration.scheduler == "none":
        del arguments["step_scheduler"], arguments["create_scheduler_fn"]
    torch.manual_seed(3)
    trainer: AnyTrainer
    if configuration.loops:
        kind = type("OwnRun", (OwnRun,), {"stage": configuration.stage})
        run = trainer = kind(model, optimizer, data, num_epochs=2, callbacks=[*saving, *callbacks], **arguments)
        with run:
            for _ in run.epochs():
                for update in run.updates():
                    for inputs, targets in update:
                        update.backward((model(inputs) - targets).square().mean())
                    update.step()
                for inputs, targets in run.evaluation_batches(make_data(13)) if configuration.evaluates else ():
                    run.log("error", (model(inputs) - targets).square().mean())
    else:
        kind = type("OwnTrainer", (OwnTrainer,), {"stage": configuration.stage})
        own = trainer = kind(model, nn.MSELoss(), optimizer, callbacks=[*saving, *callbacks])
        own.counts_items = configuration.counts_items
        own.train(data, 2, make_data(13) if configuration.evaluates else None, **arguments)
    history = trainer.run_history
    metrics = {name: float(history.get_latest_metric(name)) for name in history.get_metric_names()}
    return Trained(
        [parameter.detach().clone() for parameter in model.parameters()],
        optimizer.state_dict()["state"],
        metrics,
        trainer.fingerprint(),
        None if trainer.gradient_norm is None else float(trainer.gradient_norm),
    )


def differences(one: Trained, other: Trained) -> dict[str, float]:
    """Return the largest differences, relative to values above 1."""
    assert one.states.keys() == other.states.keys()
    states = [
        (value, other.states[index][name])
        for index, state in one.states.items()
        for name, value in state.items()
        if value is not None
    ]
    assert one.metrics.keys() == other.metrics.keys()
    metrics = [(torch.tensor(value), torch.tensor(other.metrics[name])) for name, value in one.metrics.items()]
    metrics += [(torch.tensor(one.norm or 0.0), torch.tensor(other.norm or 0.0))]
    return {
        "weights": _largest(zip(one.weights, other.weights, strict=True)),
        "states": _largest(states),
        "metrics": _largest(metrics),
    }


def _largest(pairs: Any) -> float:
    return max(
        (float(((one - other).abs() / one.abs().clamp(min=1)).max()) for one, other in pairs if one.numel()),
        default=0.0,
    )


def do(job: dict[str, Any]) -> object:
    """Do a job, and return what to print."""
    configuration = Configuration.drawn(job["seed"], **job.get("changes", {}))
    callbacks = [KillAt(job["kill_at"], job["rank"])] if "kill_at" in job else []
    trained = train(configuration, job.get("folder"), callbacks)
    if job["kind"] == "compare":
        plain = train(Configuration.drawn(job["seed"], **{**job.get("changes", {}), "stage": 0}))
        return {"configuration": vars(configuration), **differences(plain, trained)}
    if "expected" in job:
        difference = _largest(zip(torch.load(job["expected"]), trained.weights, strict=True))
        return {"weights": difference, "imported": "deepspeed" in sys.modules}
    if "weights" in job and int(os.environ.get("RANK", "0")) == 0:
        torch.save(trained.weights, job["weights"])
    return {"digest": trained.digest}


def main() -> None:
    """Do the jobs of a file, one after the other."""
    for job in json.loads(Path(sys.argv[1]).read_text()):
        result = do(job)
        if int(os.environ.get("RANK", "0")) == 0:
            print("RESULT", json.dumps(result), flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
