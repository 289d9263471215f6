"""Loops of a script's own: of one model, of two that train each other, and of one that is taught by another."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.utils.data import Dataset

from pa_core import Run

__all__ = ["LOOPS", "distil", "train_adversaries", "train_alone"]

NOISE, FEATURES = 4, 6


def train_alone(model: nn.Module, dataset: Dataset[Any], eval_dataset: Dataset[Any], **options: Any) -> Run[Any, Any]:
    """One model, evaluated now and then within an epoch, and after each."""

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return functional.cross_entropy(model(inputs * (1 + 0.1 * noise)), targets)

    def evaluate() -> None:
        for inputs, targets, *_ in run.evaluation_batches(eval_dataset):
            run.log("loss", loss_of(inputs, targets))

    run = Run(model, Adam(model.parameters(), lr=0.01), dataset, **options)
    with run:
        for _ in run.epochs():
            for update in run.updates():
                for inputs, targets, *_ in update:
                    loss = loss_of(inputs, targets)
                    run.log("doubled", 2 * loss)
                    update.backward(loss)
                update.step()
                if update.number % 5 == 0:
                    evaluate()
            evaluate()
    return run


def train_adversaries(
    model: nn.Module, dataset: Dataset[Any], eval_dataset: Dataset[Any], **options: Any
) -> Run[Any, Any]:
    """A generator and a discriminator with an optimizer each; two backward passes over the discriminator."""
    generator = nn.Sequential(nn.Linear(NOISE, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, FEATURES))
    discriminator = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    options["create_scheduler_fn"] = {"generator": options["create_scheduler_fn"]}
    run = Run(
        {"generator": generator, "discriminator": discriminator},
        {
            "generator": Adam(generator.parameters(), lr=0.01),
            "discriminator": SGD(discriminator.parameters(), lr=0.05, momentum=0.9),
        },
        dataset,
        **options,
    )
    with run:
        for _ in run.epochs():
            for update in run.updates():
                for real, *_ in update:
                    made = generator(torch.randn(len(real), NOISE))
                    update.backward(functional.softplus(-discriminator(real)).mean(), model="discriminator")
                    update.backward(functional.softplus(discriminator(made.detach())).mean(), model="discriminator")
                    update.backward(functional.softplus(-discriminator(made)).mean(), model="generator")
                update.step("discriminator")
                if update.number % 2 == 0:
                    update.step("generator")
            for real, *_ in run.evaluation_batches(eval_dataset):
                run.log("loss", functional.softplus(-discriminator(real)).mean())
    return run


def distil(model: nn.Module, dataset: Dataset[Any], eval_dataset: Dataset[Any], **options: Any) -> Run[Any, Any]:
    """A student of a frozen teacher, batch by batch."""
    teacher = nn.Linear(FEATURES, 3).requires_grad_(False)
    run = Run(
        {"student": model, "teacher": teacher}, {"student": Adam(model.parameters(), lr=0.01)}, dataset, **options
    )
    with run:
        for _ in run.epochs():
            for inputs, *_ in run.batches():
                wanted = teacher(inputs).softmax(1)
                run.backward(functional.cross_entropy(model(inputs), wanted))
                run.step()
            for inputs, *_ in run.evaluation_batches(eval_dataset):
                run.log("loss", functional.cross_entropy(model(inputs), teacher(inputs).softmax(1)))
    return run


LOOPS = {"alone": train_alone, "adversaries": train_adversaries, "distillation": distil}
