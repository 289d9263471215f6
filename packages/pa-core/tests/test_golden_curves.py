"""Loss curves that a change of the loop has to keep, or to explain.

The values were made by the loop written by hand below, which is compared with the trainer to the last bit; they are in
double precision, so that a tolerance far below any real change holds on every CPU.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from pa_core import Trainer
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification
from pa_data.orders import epoch_order
from tests.support.loops import in_double

UPDATES = 20
DATA = in_double(make_classification(45))


@dataclass(frozen=True)
class Variant:
    """A way to train, and the losses of its updates 1, 5, 10, 15 and 20."""

    optimizer: Callable[[nn.Module], Optimizer]
    losses: tuple[float, float, float, float, float]
    accumulation: int = 1
    clip_norm: float | None = None
    scheduler: Callable[[Optimizer], LRScheduler] | None = None


def sgd(model: nn.Module) -> Optimizer:
    """Stochastic gradient descent with momentum."""
    return SGD(model.parameters(), lr=0.05, momentum=0.9)


def adamw(model: nn.Module) -> Optimizer:
    """Adam with decoupled weight decay."""
    return AdamW(model.parameters(), lr=0.01)


VARIANTS = {
    "sgd": Variant(sgd, (0.92867615052751, 0.80566975067462, 0.58428349136582, 0.54320027074977, 0.24448325306997)),
    "accumulation": Variant(
        sgd, (0.89599142056254, 0.99357398914519, 0.6418268472583, 0.46192016370729, 0.31020350483463), accumulation=3
    ),
    "clipping": Variant(
        sgd, (0.92867615052751, 0.82688960452065, 0.64568265198905, 0.64621629968329, 0.31607405859316), clip_norm=0.5
    ),
    "adamw, one cycle": Variant(
        adamw,
        (0.92867615052751, 0.81929462923015, 0.3603656907951, 0.31675493357268, 0.13871935922767),
        scheduler=partial(OneCycleLR, max_lr=0.05, total_steps=UPDATES + 1),
    ),
}


def by_hand(model: nn.Module, variant: Variant, seed: int) -> list[float]:
    """The same training as a plain loop; a group of batches is scaled by its share of the samples of the group."""
    data, optimizer, losses = DATA, variant.optimizer(model), list[float]()
    scheduler = None if variant.scheduler is None else variant.scheduler(optimizer)
    epoch = -1
    while len(losses) < UPDATES:
        epoch += 1
        order = epoch_order(len(data), seed=seed, epoch=epoch).indices(0, len(data))
        for group in torch.split(order, 8 * variant.accumulation):
            if len(losses) == UPDATES:
                break
            loss = torch.zeros(())
            for indices in torch.split(group, 8):
                inputs, targets = (tensor[indices] for tensor in data.tensors)
                loss = nn.functional.cross_entropy(model(inputs), targets)
                weight = len(indices) / len(group)
                torch.autograd.backward(loss if weight == 1 else loss * weight)
            if variant.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), variant.clip_norm)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", VARIANTS)
def test_a_curve_is_that_of_the_loop_by_hand_and_that_of_before(name: str) -> None:
    """Twenty updates equal the hand-written loop to the last bit, and the values that were written down."""
    variant = VARIANTS[name]
    torch.manual_seed(11)
    model = TinyClassifier(batch_norm=True).double()
    hand_model = copy.deepcopy(model)
    recorder = RecordingCallback()
    trainer = Trainer(model, nn.CrossEntropyLoss(), variant.optimizer(model), callbacks=[recorder])
    trainer.train(
        DATA,
        1,
        per_device_batch_size=8,
        max_num_train_steps=UPDATES,
        gradient_accumulation_steps=variant.accumulation,
        gradient_clip_norm=variant.clip_norm,
        create_scheduler_fn=variant.scheduler,
    )
    losses, loss = list[float](), math.nan
    for event, arguments in zip(recorder.events, recorder.arguments, strict=True):
        loss = arguments["batch_output"]["loss"].item() if event == "on_train_step_end" else loss
        losses += [loss] if event == "on_optimizer_step_end" else []
    assert trainer.run_config.seed is not None
    assert losses == by_hand(hand_model, variant, trainer.run_config.seed)
    chosen = [losses[update - 1] for update in (1, 5, 10, 15, UPDATES)]
    assert chosen == pytest.approx(variant.losses, rel=1e-8), chosen
