"""Learns one batch by heart, which every model and learning rate should be able to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from typing_extensions import override

from pa_core import AnyTrainer, BatchOutput, MoveModulesToDeviceCallback, StopTrainingError, Trainer, TrainerCallback
from pa_preflight._data_checks import Samples, subset
from pa_preflight._findings import Finding, noticed
from pa_preflight._model_checks import BATCH_NORMS
from pa_preflight._observer import is_overridden
from pa_preflight._registry import Level

_UPDATES, _SECONDS = 100, 15.0
_ENOUGH, _NOTHING, _GROWN, _LEARNT = 0.05, 0.001, 3.0, 1e-3
_WELL, _BADLY, _USUAL_MOMENTUM = 0.1, 0.6, 0.1


class _Losses(TrainerCallback):
    """Notes the loss of each step, and of the last batch in both modes; ends the run when time is up."""

    def __init__(self, model: nn.Module, calculate_loss: Callable[[Any], Tensor] | None) -> None:
        self._model, self._calculate_loss = model, calculate_loss
        self.losses: list[Tensor] = []
        self.in_evaluation = self.in_training = math.nan  # with the same weights
        self._batch: Any = None
        self._until = time.monotonic() + _SECONDS

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        self.losses.append(batch_output["loss"].detach())
        self._batch = batch
        if time.monotonic() > self._until:
            raise StopTrainingError("Time is up.")

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Compare the modes after the last update, when its graph is gone."""
        if len(self.losses) < _UPDATES or self._calculate_loss is None:
            return
        modes = [(one, one.training) for one in self._model.modules()]
        with torch.no_grad():
            self.in_training = float(self._calculate_loss(self._batch))
            self._model.eval()
            try:
                self.in_evaluation = float(self._calculate_loss(self._batch))
            finally:
                for module, is_training in modes:
                    module.training = is_training


def arguments_of_short_run(
    trainer: Trainer[Any, Any, Any, Any], dataset: Dataset[Any], size: int, collate_fn: Any, *, num_epochs: int
) -> dict[str, Any]:
    """Return what a short run without a scheduler is called with in place of the arguments of the planned one.

    Args:
        trainer: The trainer.
        dataset: What it trains on.
        size: The samples of an update, which is one batch.
        collate_fn: What makes a batch.
        num_epochs: The number of its epochs.
    """
    return {
        "train_dataset": dataset,
        "per_device_batch_size": size,
        "collate_fn": collate_fn,
        "train_dataloader_kwargs": {"num_workers": 0},
        "num_epochs": num_epochs,
        "max_num_train_steps": None,
        "gradient_accumulation_steps": 1,
        "samples_per_update": size if trainer.reproducible else None,
        "create_scheduler_fn": None,
        "step_scheduler": "update",
        "order": None,
    }


def check_learning(
    trainer: Trainer[Any, Any, Any, Any], train: Samples, asked: dict[str, Any], *, is_scheduled: bool
) -> Iterator[Finding]:
    """Yield what is wrong with how the loss of one batch changes in 100 updates, without a scheduler.

    Args:
        trainer: The trainer.
        train: The training data, with positions.
        asked: The arguments of the run.
        is_scheduled: Whether the run has a scheduler, and perhaps never the rate of the optimizer.
    """
    size, collate_fn = train.batches(asked, asked["train_dataloader_kwargs"] or {})
    is_own = is_overridden(trainer, "calculate_train_batch_loss")  # such as of networks that play against each other
    noted = _Losses(
        trainer.get_model(), None if is_own else lambda batch: trainer.calculate_train_batch_loss(batch)["loss"]
    )
    changed = arguments_of_short_run(trainer, subset(train.dataset, size), size, collate_fn, num_epochs=_UPDATES)
    with (
        trainer.dry_run(train.dataset, *asked.values()),
        trainer.callback_handler.replaced_by([MoveModulesToDeviceCallback, noted]),
    ):
        trainer.scheduler = None
        trainer.train(**{**asked, **changed})
    losses = [float(one) for one in noted.losses]
    if len(losses) < 10:  # noqa: PLR2004  # too slow to tell
        return
    first, last = losses[0], sorted(losses[-10:])[4]
    rates = [float(group["lr"]) for one in trainer.named_optimizers().values() for group in one.param_groups]
    fall = first - last
    are_finite = all(map(math.isfinite, losses))
    if are_finite and abs(first) < _LEARNT:
        return
    level: Level = "note" if is_scheduled or (is_own and are_finite) else "mistake"
    if not are_finite or last > _GROWN * abs(first) + 1:
        yield noticed(
            "rate-too-high",
            f"Trained on one batch at the learning rate {max(rates):.3g}, the loss grows from {first:.3g} to "
            f"{last:.3g} in {len(losses)} updates.",
            "Search for a rate with pa_schedulers.find_learning_rate.",
            level,
        )
    elif fall < _ENOUGH * abs(first):
        yield noticed(
            "batch-not-learnt",
            f"Trained on one batch of {size} samples at the learning rate {max(rates):.3g}, the loss goes from "
            f"{first:.4g} to {last:.4g} in {len(losses)} updates.",
            "Search for a rate with pa_schedulers.find_learning_rate; if none helps, look for what keeps the model "
            "from it.",
            level if fall < _NOTHING * abs(first) else "note",
        )
    elif _is_other_in_evaluation(first, last, noted) and not _has_slow_norms(trainer.get_model()):
        yield noticed(
            "evaluation-unlike-training",
            f"Trained on one batch, the loss goes from {first:.4g} to {last:.4g}; in evaluation mode, the loss of this "
            f"very batch is {noted.in_evaluation:.4g}.",
            "Look at what forward() does by self.training: dropout has to scale what it keeps, and evaluations need "
            "the same outputs and statistics as the training.",
        )


def _is_other_in_evaluation(first: float, last: float, noted: _Losses) -> bool:
    """Whether a batch is learnt in training mode only, and the last update has not thrown off both modes."""
    is_learnt = max(last, noted.in_training) < _WELL * first
    return is_learnt and noted.in_evaluation > _BADLY * first


def _has_slow_norms(model: nn.Module) -> bool:
    """Whether running statistics need more batches than these."""
    norms = [one for one in model.modules() if isinstance(one, BATCH_NORMS)]
    return any(one.momentum is None or one.momentum < _USUAL_MOMENTUM for one in norms)
