"""Runs of many kinds, up to the line that trains, and everything that a check must leave as it was."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback
from tests.support.pa_preflight.data import pictures, shifted, up_to_a_pixel
from tests.support.pa_preflight.models import recurrent
from tests.support.pa_preflight.scripts import Script, conv_net, layer, perceptron


def _drawn_by_all() -> tuple[int, int]:
    """Draws from all three global generators."""
    down, right = up_to_a_pixel()
    return down * random.randint(0, 1), right * int(np.random.randint(0, 2))


class CountsEvents(TrainerCallback):
    """How many updates it has seen."""

    num_updates = 0

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self.num_updates += 1


class _Counts(Trainer):
    num_steps = 0

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.num_steps += 1
        return super().calculate_train_batch_loss(batch)


def _data(kind: str, *, seed: int) -> Dataset[Any] | DataLoader[Any]:
    data: TensorDataset = pictures(96, seed=seed)
    match kind:
        case "augmented":
            return shifted(data, _drawn_by_all)
        case "loader":
            return DataLoader(data, batch_size=16, shuffle=True)
        case "loader with a generator":
            return DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(seed))
        case _:
            return data


def _model(kind: str) -> nn.Module:
    match kind:
        case "BatchNorm":
            return conv_net()
        case "dropout":
            return nn.Sequential(nn.Flatten(), nn.Dropout(0.2), perceptron(64, 4))
        case "recurrent":
            return nn.Sequential(layer(partial(torch.squeeze, dim=1)), recurrent(nn.GRU(8, 16, batch_first=True), 4))
        case "frozen":
            features = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()).requires_grad_(False)
            return nn.Sequential(features, nn.Linear(32, 4))
        case _:
            return nn.Sequential(nn.Flatten(), perceptron(64, 4))


def _optimizer(kind: str, model: nn.Module) -> Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    match kind:
        case "momentum":
            return SGD(parameters, lr=0.05, momentum=0.9)
        case "groups":
            groups: list[dict[str, Any]] = [{"params": parameters[:1], "lr": 1e-3}, {"params": parameters[1:]}]
            return AdamW(groups, lr=1e-2)
        case _:
            return Adam(parameters, lr=1e-2)


@dataclass(frozen=True)
class Configuration:
    """What a run is made of."""

    seed: int
    model: str
    optimizer: str
    data: str
    evaluation: str
    accumulation: int
    clip_norm: float | None
    scheduler: str
    was_trained: bool
    has_gradients: bool
    is_partly_in_evaluation_mode: bool

    @classmethod
    def random(cls, seed: int) -> Self:
        """The configuration of a seed."""
        draws = random.Random(seed)
        return cls(
            seed=seed,
            model=draws.choice(["BatchNorm", "dropout", "recurrent", "frozen", "perceptron"]),
            optimizer=draws.choice(["momentum", "groups", "adam"]),
            data=draws.choice(["plain", "augmented", "loader", "loader with a generator"]),
            evaluation=draws.choice(["none", "plain", "augmented", "loader", "several"]),
            accumulation=draws.choice([1, 2]),
            clip_norm=draws.choice([None, 1.0]),
            scheduler=draws.choice(["none", "created", "assigned"]),
            was_trained=draws.random() < 0.5,
            has_gradients=draws.random() < 0.5,
            is_partly_in_evaluation_mode=draws.random() < 0.5,
        )

    def make(self) -> Script:
        """The script, with all global generators seeded; two calls make the same."""
        random.seed(self.seed)
        np.random.seed(self.seed)
        torch.manual_seed(self.seed)
        model = _model(self.model)
        trainer = _Counts(model, nn.CrossEntropyLoss(), _optimizer(self.optimizer, model), callbacks=[CountsEvents()])
        arguments: dict[str, Any] = {
            "train_dataset": _data(self.data, seed=1),
            "num_epochs": 1,
            "eval_dataset": self._evaluation(),
            "gradient_accumulation_steps": self.accumulation,
            "gradient_clip_norm": self.clip_norm,
        }
        if self.scheduler == "created":
            arguments["create_scheduler_fn"] = partial(StepLR, step_size=3, gamma=0.5)
        elif self.scheduler == "assigned":
            trainer.scheduler = StepLR(trainer.optimizer, step_size=3, gamma=0.5)
        if self.was_trained:
            trainer.train(**arguments)
        if self.has_gradients:
            model(torch.randn(4, 1, 8, 8)).sum().backward()
        if self.is_partly_in_evaluation_mode:
            next(model.children()).eval()
        return Script(trainer, arguments)

    def _evaluation(self) -> Any:
        if self.evaluation == "several":
            return {"near": pictures(32, seed=2), "far": pictures(24, seed=3)}
        return None if self.evaluation == "none" else _data(self.evaluation, seed=2)


def state_of(script: Script) -> dict[str, Any]:
    """Everything that a check must leave as it was, to be compared bit for bit."""
    trainer, arguments = script
    parameters = dict(trainer.model.named_parameters())
    scheduler = cast("Any", trainer.scheduler)
    loaders = [one for one in arguments.values() if isinstance(one, DataLoader)]
    state = {
        "model": trainer.model.state_dict(),
        "requires_grad": {name: parameter.requires_grad for name, parameter in parameters.items()},
        "gradients": {name: parameter.grad for name, parameter in parameters.items()},
        "modes": {name: module.training for name, module in trainer.model.named_modules()},
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "history": {
            name: list(trainer.run_history.get_metric_values(name)) for name in trainer.run_history.get_metric_names()
        },
        "updates": trainer.num_updates_completed,
        "epochs": trainer.num_epochs_completed,
        "attributes": (sorted(vars(trainer)), vars(trainer).get("num_steps"), repr(vars(trainer).get("run_config"))),
        "callbacks": [vars(callback) for callback in trainer.callback_handler.callbacks],
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "loaders": [None if one.generator is None else one.generator.get_state() for one in loaders],
    }
    return {name: _comparable(value) for name, value in state.items()}


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of the parts of two states that differ."""
    return [name for name in before if before[name] != after[name]]


def _comparable(value: Any) -> Any:
    """The same with bytes in place of arrays, and the digits in place of numbers, so that a NaN equals itself."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {key: _comparable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(one) for one in cast("list[Any]", value)]
    return repr(value)
