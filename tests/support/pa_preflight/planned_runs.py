"""Runs of many kinds that can be planned, and what is observed when they are made."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    EvaluationSet,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    Trainer,
    TrainerCallback,
    TrainerPlaceholderValues,
)
from pa_data.orders import Curriculum, Sequential, Weighted
from tests.support.pa_preflight.scripts import Script

_UPDATES = TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH


class Observed(TrainerCallback):
    """What a run has done, in the terms of its plan.

    Args:
        folder: Where its training states are.
        optimizer: What updates.
    """

    def __init__(self, folder: Path, optimizer: Optimizer) -> None:
        self._folder = folder
        self.rates: list[list[float]] = []
        self.gradients = 0
        self.epochs: list[tuple[int, int, int]] = []
        self.samples_of_epochs: list[int] = []
        self.evaluations: list[tuple[int, str | None, int, bool]] = []
        # before each save, of which the last one comes after the run's end if there is one at all
        self.states_at_saves: list[tuple[int, set[str]]] = []
        self._batches = self._evaluated = self._samples = self._updates_before = 0
        optimizer.register_step_pre_hook(self._note_update)

    def __deepcopy__(self, memo: dict[int, Any]) -> Observed:
        """The evaluation before a run calls it, too."""
        return self

    def _note_update(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        self.rates.append([float(group["lr"]) for group in optimizer.param_groups])
        gradients = [one.grad for group in optimizer.param_groups for one in group["params"]]
        self.gradients = sum(one.nbytes for one in gradients if one is not None)

    def states(self) -> set[str]:
        """The states that are in the folder."""
        return {one.name for one in self._folder.glob("[!.]*") if one.is_dir()}

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self._batches += 1
        self._samples += batch_output["batch_size"]

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        updates = trainer.num_updates_completed
        self.epochs.append((self._batches, updates - self._updates_before, updates))
        self.samples_of_epochs.append(self._samples)
        self._batches, self._samples, self._updates_before = 0, 0, updates

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self._evaluated = 0

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self._evaluated += 1

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, *, is_intermediate: bool = False, **kwargs: Any) -> None:
        now = trainer.num_updates_completed, trainer.eval_name, self._evaluated, is_intermediate
        self.evaluations.append(now)

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.states_at_saves.append((trainer.num_updates_completed, self.states()))

    @override
    def on_training_state_save(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.states_at_saves.append((trainer.num_updates_completed, self.states()))


def _data(samples: int) -> TensorDataset:
    inputs = torch.randn(samples, 4)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def _model(draws: random.Random) -> nn.Module:
    hidden = draws.randint(30_000, 40_000)
    model = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    if draws.random() < 0.3:
        model.register_buffer("offset", torch.zeros(hidden))
    if draws.random() < 0.3:
        model[0].requires_grad_(False)
    return model


def _optimizer(draws: random.Random, model: nn.Module) -> Optimizer:
    makers: list[Callable[..., Optimizer]] = [
        SGD,
        partial(SGD, momentum=0.9),
        Adam,
        partial(AdamW, amsgrad=True),
        partial(AdamW, fused=True),
        partial(RMSprop, centered=True),
        Adafactor,
    ]
    parameters = [*model.parameters()] if draws.random() < 0.3 else [p for p in model.parameters() if p.requires_grad]
    groups: list[Any] = parameters
    if draws.random() < 0.3:
        groups = [{"params": parameters[:1], "lr": 1e-4}, {"params": parameters[1:]}]
    return draws.choice(makers)(groups, lr=1e-3)


def _wave(update: int) -> float:
    return 1.0 + (update % 7) / (10 if update // 7 % 2 else -10)


def _warm_up(optimizer: Optimizer) -> SequentialLR:
    parts: list[LRScheduler] = [LinearLR(optimizer, 0.1, total_iters=4), StepLR(optimizer, 3, gamma=0.7)]
    return SequentialLR(optimizer, parts, milestones=[5])


def _scheduling(draws: random.Random, optimizer: Optimizer) -> dict[str, Any]:
    schedulers: list[Any] = [
        None,
        partial(StepLR, step_size=3, gamma=0.5),
        partial(OneCycleLR, max_lr=0.01, total_steps=_UPDATES, cycle_momentum=False),
        partial(CosineAnnealingWarmRestarts, T_0=5),
        partial(LambdaLR, lr_lambda=_wave),
        _warm_up,
    ]
    chosen = draws.choice(schedulers)
    after = draws.choice(["update", "epoch"]) if chosen is not None else "update"
    return {"create_scheduler_fn": chosen, "step_scheduler": after}


def _training(draws: random.Random) -> dict[str, Any]:
    data = _data(draws.randint(20, 70))
    size = draws.randint(3, 12)
    asked: dict[str, Any] = {"train_dataset": data, "num_epochs": draws.randint(1, 4)}
    if draws.random() < 0.3:
        asked["max_num_train_steps"] = draws.randint(1, 25)
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "drop_last": {"train_dataloader_kwargs": {"drop_last": True}},
        "batch_size": {"train_dataloader_kwargs": {"batch_size": draws.randint(3, 12)}},
        "order": {"order": Sequential()},
        "weighted": {"order": Weighted([1.0] * len(data), num_samples=draws.randint(20, 50))},
        "curriculum": {"order": Curriculum(partial(_first_samples, len(data)))},
        "loader": {"train_dataset": DataLoader(data, size, shuffle=True, drop_last=draws.random() < 0.5)},
        "update": {"samples_per_update": draws.randint(4, 20)},
    }
    kind = draws.choice([*kinds])
    asked |= kinds[kind]
    if kind != "loader":
        asked["per_device_batch_size"] = size
    if kind != "update":
        asked["gradient_accumulation_steps"] = draws.randint(1, 3)
    return asked


def _first_samples(most: int, epoch: int) -> list[int]:
    return [*range(min(most, 12 + 9 * epoch))]


def _evaluating(draws: random.Random) -> tuple[dict[str, Any], list[TrainerCallback]]:
    kind = draws.choice(["none", "plain", "loader", "several"])
    callbacks: list[TrainerCallback] = []
    if kind == "none":
        return {}, callbacks
    data: Any = _data(draws.randint(5, 30))
    if kind == "loader":
        data = DataLoader(data, 4)
    elif kind == "several":
        data = {"near": data, "far": EvaluationSet(_data(9), every_n_epochs=draws.randint(1, 3))}
    if draws.random() < 0.5:
        names = ["far"] if kind == "several" and draws.random() < 0.5 else None
        callbacks.append(StepBasedEvaluationCallback(draws.randint(1, 6), names))
    if draws.random() < 0.3:
        callbacks.append(LimitEvalStepsCallback(draws.randint(1, 3), limit_intermediate_only=draws.random() < 0.5))
    return {"eval_dataset": data, "sanity_eval_steps": draws.choice([0, 0, 2])}, callbacks


def _saving(draws: random.Random, folder: Path) -> SaveTrainingStateCallback:
    return SaveTrainingStateCallback(
        folder,
        save_every_n_epochs=draws.choice([None, 1, 2]),
        save_every_n_steps=draws.choice([None, 3, 5, 8]),
        save_at_end=draws.random() < 0.7,
        max_checkpoints=draws.choice([None, 1, 2, 3]),
    )


def planned_run(seed: int, folder: Path) -> tuple[Script, Observed]:
    """Return the run of a seed, and what observes it.

    Args:
        seed: Two calls with the same make the same run.
        folder: Where it saves its training states.
    """
    draws = random.Random(seed)
    random.seed(seed)
    torch.manual_seed(seed)
    model = _model(draws)
    optimizer = _optimizer(draws, model)
    evaluating, callbacks = _evaluating(draws)
    observed = Observed(folder, optimizer)
    callbacks += [_saving(draws, folder), observed] if draws.random() < 0.7 else [observed]
    if draws.random() < 0.2:
        callbacks.append(LimitBatchesCallback(draws.randint(1, 5)))
    asked = {**_training(draws), **evaluating, **_scheduling(draws, optimizer)}
    trainer = Trainer(model, _mean_squares, optimizer, callbacks=callbacks)
    return Script(trainer, asked), observed


def _mean_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()
