"""Loops of a script's own: of one model, of two that are trained against each other, and of a student and its teacher.

Each has something of its own beside what the run trains, on which everything that follows depends. A loop that is
forgetful leaves it out of the training states, as a careless script would: it cannot end as if it had not been killed.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.utils.data import Dataset

from pa_core import Run

__all__ = ["LOOPS", "train_adversaries", "train_one_model", "train_student"]

OwnLoop: TypeAlias = Callable[..., Run[Any, Any]]

NOISE, FEATURES, CLASSES = 4, 6, 3


class Difficulty:
    """How much noise a model is trained with: less while the loss of its evaluations is high."""

    def __init__(self) -> None:
        self.value = 0.1

    def follow(self, loss: float) -> None:
        """Move towards what the loss of an evaluation allows."""
        self.value = 0.5 * self.value + 0.1 / (1.0 + loss)

    def state_dict(self) -> dict[str, Any]:
        """Return the value."""
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a value."""
        self.value = state_dict["value"]


def train_one_model(
    model: nn.Module,
    dataset: Dataset[Any],
    eval_dataset: Dataset[Any],
    *,
    eval_kwargs: dict[str, Any],
    is_forgetful: bool,
    **options: Any,
) -> Run[Any, Any]:
    """Updates with draws of the loop's own, evaluated after some of them and after each epoch."""
    run = Run(model, Adam(model.parameters(), lr=0.01), dataset, gradient_clip_norm=1.0, **options)
    difficulty = Difficulty()

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return functional.cross_entropy(model(inputs * (1 + difficulty.value * noise)), targets)

    def evaluate(name: str) -> None:
        for inputs, targets, *_ in run.evaluation_batches(eval_dataset, name=name, dataloader_kwargs=eval_kwargs):
            run.log("loss", loss_of(inputs, targets))
        difficulty.follow(float(run.run_history.get_latest_metric(f"{name}_loss_epoch")))
        run.record("difficulty", difficulty.value)

    with run:
        if not is_forgetful:
            run.register_for_checkpointing(difficulty)
        for _ in run.epochs():
            for update in run.updates():
                for inputs, targets, *_ in update:
                    loss = loss_of(inputs, targets)
                    run.log("doubled", 2 * loss)
                    update.backward(loss)
                update.step()
                if update.number % 5 == 0:
                    evaluate("now_and_then")
            evaluate("eval")
    return run


def train_adversaries(
    _model: nn.Module,
    dataset: Dataset[Any],
    eval_dataset: Dataset[Any],
    *,
    eval_kwargs: dict[str, Any],
    is_forgetful: bool,
    create_scheduler_fn: Any,
    **options: Any,
) -> Run[Any, Any]:
    """A generator and a discriminator, an optimizer and a schedule each, and an average that the loop makes itself.

    Two backward passes over the discriminator in each update; the generator is trained in every second one.
    """
    generator = nn.Sequential(nn.Linear(NOISE, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, FEATURES))
    discriminator = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    average = copy.deepcopy(generator).requires_grad_(False)
    beside = {} if is_forgetful else {"average": average}
    run = Run(
        {"generator": generator, "discriminator": discriminator, **beside},
        {
            "generator": Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.9)),
            "discriminator": SGD(discriminator.parameters(), lr=0.05, momentum=0.9),
        },
        dataset,
        create_scheduler_fn={"generator": create_scheduler_fn, "discriminator": create_scheduler_fn},
        **options,
    )
    with run:
        for _ in run.epochs():
            for update in run.updates():
                trains_generator = update.number % 2 == 0
                for real, *_ in update:
                    made = generator(torch.randn(len(real), NOISE))
                    update.backward(functional.softplus(-discriminator(real)).mean(), model="discriminator")
                    update.backward(functional.softplus(discriminator(made.detach())).mean(), model="discriminator")
                    if trains_generator:
                        update.backward(functional.softplus(-discriminator(made)).mean(), model="generator")
                update.step("discriminator")
                if trains_generator:
                    update.step("generator")
                    for mean, value in zip(average.parameters(), generator.parameters(), strict=True):
                        mean.lerp_(value.detach(), 0.1)
            for real, *_ in run.evaluation_batches(eval_dataset, dataloader_kwargs=eval_kwargs):
                made = average.eval()(torch.randn(len(real), NOISE))
                run.log("loss", functional.softplus(-discriminator(made)).mean())
    return run


def train_student(
    model: nn.Module,
    dataset: Dataset[Any],
    eval_dataset: Dataset[Any],
    *,
    eval_kwargs: dict[str, Any],
    is_forgetful: bool,
    **options: Any,
) -> Run[Any, Any]:
    """A student of a frozen teacher, batch by batch; the teacher is another one each time the script is started."""
    teacher = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES)).requires_grad_(False)
    beside = {} if is_forgetful else {"teacher": teacher}
    run = Run({"student": model, **beside}, {"student": Adam(model.parameters(), lr=0.01)}, dataset, **options)

    def loss_of(inputs: Tensor) -> Tensor:
        return functional.cross_entropy(model(inputs), (2 * teacher(inputs)).softmax(1))

    with run:
        for _ in run.epochs():
            for inputs, *_ in run.batches():
                run.backward(loss_of(inputs))
                run.step()
            for inputs, *_ in run.evaluation_batches(eval_dataset, dataloader_kwargs=eval_kwargs):
                run.log("loss", loss_of(inputs))
    return run


LOOPS: dict[str, OwnLoop] = {
    "one model": train_one_model,
    "adversaries": train_adversaries,
    "distillation": train_student,
}
