"""The two entry points to the engine, called alike: a test of both is written once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import pytest
from torch import Tensor, nn
from torch.utils.data import Dataset
from typing_extensions import override

from pa_core import AnyTrainer, Run, Trainer

Entry: TypeAlias = Literal["Trainer", "Run"]
Step: TypeAlias = Callable[[Any, Any], "Tensor | tuple[Tensor, int]"]
"""Computes the loss of a model and a batch; and the number of items that it is the mean over, if it counts them."""

ENTRIES: tuple[Entry, ...] = ("Trainer", "Run")
on_both_entries = pytest.mark.parametrize("entry", ENTRIES)

OF_TRAINERS = {"mixed_precision", "reproducible", "run_history", "max_wait_seconds"}
"""Options that a trainer has when it is made."""


def squared_error(model: Any, batch: Any) -> Tensor:
    """The usual step."""
    return nn.functional.mse_loss(model(batch[0]), batch[1])


class StepTrainer(Trainer[Any]):
    """Computes losses by a function."""

    step: Step

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        loss, items = _loss_and_items(self.step, self.model, batch)
        output = {"loss": loss, "model_outputs": None, "batch_size": len(batch[0])}
        return output if items is None else {**output, "num_items_in_batch": items}

    calculate_eval_batch_loss = calculate_train_batch_loss


def train(
    entry: Entry,
    model: nn.Module,
    optimizer: Any,
    data: Any,
    num_epochs: int = 1,
    *,
    step: Step = squared_error,
    callbacks: Any = (),
    eval_dataset: Dataset[Any] | None = None,
    trainer_class: type[StepTrainer] = StepTrainer,
    run_class: type[Run[Any, Any]] = Run,
    **options: Any,
) -> AnyTrainer:
    """Train by one of the entry points, and evaluate after each epoch where there is a dataset for it."""
    if entry == "Trainer":
        made = {name: options.pop(name) for name in OF_TRAINERS & options.keys()}
        trainer = trainer_class(model, None, optimizer, callbacks, **made)
        vars(trainer)["step"] = step
        trainer.train(data, num_epochs, eval_dataset, **options)
        return trainer
    with run_class(model, optimizer, data, num_epochs=num_epochs, callbacks=callbacks, **options) as run:
        for _ in run.epochs():
            for batch in run.batches():
                loss, items = _loss_and_items(step, run.model, batch)
                run.backward(loss, num_items=items)
                run.step()
            for batch in () if eval_dataset is None else run.evaluation_batches(eval_dataset):
                loss, items = _loss_and_items(step, run.model, batch)
                run.log("loss", loss, num_items=items)
    return run


def _loss_and_items(step: Step, model: Any, batch: Any) -> tuple[Tensor, int | None]:
    computed = step(model, batch)
    return computed if isinstance(computed, tuple) else (computed, None)
