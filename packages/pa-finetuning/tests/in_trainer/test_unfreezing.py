"""Gradual unfreezing in runs of the trainer: which weights each epoch moves, and with which rate."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    SequentialLR,
    StepLR,
)
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, SaveBestModelCallback, Trainer, TrainerCallback, gather_objects
from pa_core.data import epoch_order
from pa_finetuning import ModelFreezer
from pa_schedulers import CosineLrScheduler
from tests.support.callbacks import CallAt
from tests.support.models import weights_of
from tests.support.pa_finetuning.conv_net import changed, entries_below, trainable
from tests.support.pa_finetuning.in_trainer.fine_tuning import Unfreezing, make_frozen, make_images

RATES = [0.001, 0.004, 0.01]


def train_by_hand(model: nn.Sequential, freezer: ModelFreezer, images: TensorDataset, run: AnyTrainer) -> None:
    """Three epochs of whole batches in a plain loop, which adds a group to the optimizer when it unfreezes one."""
    seed, batch_size = run.run_config.seed, run.run_config.train_total_batch_size
    assert seed is not None
    optimizer = Adam(freezer.get_trainable_parameters(), lr=RATES[-1])
    for epoch in range(3):
        if epoch > 0:
            index = 2 - epoch
            ((_, group),) = freezer.unfreeze(index, index, set_modules_as_training=False).items()
            optimizer.add_param_group({**group, "lr": RATES[index]})
        model.train()
        for indices in torch.split(
            epoch_order(len(images), seed=seed, epoch=epoch).indices(0, len(images)), batch_size
        ):
            inputs, targets = (tensor[indices] for tensor in images.tensors)
            torch.autograd.backward(nn.functional.cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("adds_groups", [False, True])
@pytest.mark.runs_on("one_process", "two_ranks")
def test_unfrozen_weights_train_as_on_one_process(adds_groups: bool) -> None:
    """On any number of ranks, weights unfrozen in mid-run move as in a plain loop that sees whole batches."""
    images = make_images(14, torch.float64)
    model, freezer = make_frozen(torch.float64)
    reference = copy.deepcopy(model)
    reference_freezer = ModelFreezer(reference, freeze_batch_norms=True)
    reference_freezer.freeze(set_modules_as_eval=True)
    before = copy.deepcopy(model.state_dict())
    optimizer = Adam(freezer.get_parameter_groups(RATES, include_frozen=not adds_groups))
    unfreezing = Unfreezing(freezer, RATES if adds_groups else None, set_modules_as_training=False)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[unfreezing])

    trainer.train(images, num_epochs=3, eval_dataset=images, per_device_batch_size=2)

    train_by_hand(reference, reference_freezer, images, trainer)
    assert torch.allclose(weights_of(model), weights_of(reference), rtol=0, atol=1e-9)
    assert changed(before, model) == {name for name in before if "running" not in name and "num_" not in name}
    weights = gather_objects(weights_of(model).tolist())
    assert all(of_rank == weights[0] for of_rank in weights)


def test_what_no_epoch_follows_stays_frozen() -> None:
    """After the last epoch of a run nothing more is unfrozen; a run that goes on with the history unfreezes it."""
    images = make_images(8)
    model, freezer = make_frozen()
    optimizer = SGD(freezer.get_trainable_parameters(), lr=0.01)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[Unfreezing(freezer, RATES)])

    trainer.evaluate(images)
    trainer.train(images, num_epochs=2)
    assert trainable(model) == entries_below(model, "1") & trainable(model) | {"2.weight", "2.bias"}

    trainer.train(images, num_epochs=1, reset_run_history=False)
    assert trainable(model) == set(dict(model.named_parameters()))
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.001, 0.004]


class TrackRates(TrainerCallback):
    """Notes the learning rate of each parameter that an update uses."""

    def __init__(self) -> None:
        self.rates: list[dict[str, float]] = []

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.rates.append(rates_by_name(trainer.get_model(), trainer.optimizer))


def rates_by_name(model: nn.Module, optimizer: Optimizer) -> dict[str, float]:
    """The learning rate of each parameter of a model."""
    rates = {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    return {name: rates[parameter] for name, parameter in model.named_parameters()}


def one_cycle(optimizer: Optimizer) -> OneCycleLR:
    """One cycle in which each group rises to the rate that it was given."""
    return OneCycleLR(optimizer, max_lr=[group["lr"] for group in optimizer.param_groups], total_steps=6)


def warm_up_and_decay(optimizer: Optimizer) -> SequentialLR:
    """A linear rise, then a cosine with a minimum."""
    warm_up = LinearLR(optimizer, 0.1, total_iters=2)
    return SequentialLR(optimizer, [warm_up, CosineAnnealingLR(optimizer, 4, eta_min=1e-4)], milestones=[2])


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "StepLR": lambda optimizer: StepLR(optimizer, 2),
    "LambdaLR": lambda optimizer: LambdaLR(optimizer, lambda update: 1 / (1 + update)),
    "CosineAnnealingLR": lambda optimizer: CosineAnnealingLR(optimizer, 6, eta_min=1e-4),
    "CosineAnnealingWarmRestarts": lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 3),
    "OneCycleLR": one_cycle,
    "SequentialLR": warm_up_and_decay,
    "ChainedScheduler": lambda optimizer: ChainedScheduler([ExponentialLR(optimizer, 0.9), StepLR(optimizer, 2)]),
    "CosineLrScheduler": lambda optimizer: CosineLrScheduler(optimizer, 3, 2, lr_min=1e-4),
}


@pytest.mark.parametrize("make_scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_schedulers_go_on_as_if_nothing_was_unfrozen(make_scheduler: Callable[[Optimizer], Any]) -> None:
    """The rate of each update is that of the schedule, for what is trained from the start and for what comes later."""
    model, freezer = make_frozen()
    optimizer = SGD(freezer.get_parameter_groups(RATES))
    track = TrackRates()
    callbacks = [track, Unfreezing(freezer, RATES)]
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks)

    trainer.train(make_images(8), num_epochs=3, per_device_batch_size=4, create_scheduler_fn=make_scheduler)

    planned = SGD(ModelFreezer(model).get_parameter_groups(RATES))
    scheduler = make_scheduler(planned)
    expected: list[dict[str, float]] = []
    for _ in range(6):
        expected.append(rates_by_name(model, planned))
        planned.step()
        scheduler.step()
    assert track.rates == expected
    assert len({*track.rates[0].values()}) == 3


def test_the_best_model_of_an_earlier_stage_is_loaded(tmp_path: Path) -> None:
    """A checkpoint of the first stage fits at the end, weights and optimizer, because all stages have equal groups."""

    def record_epoch(trainer: AnyTrainer) -> None:
        trainer.run_history.update_metric("epoch", trainer.run_history.current_epoch)

    model, freezer = make_frozen()
    before = copy.deepcopy(model.state_dict())
    optimizer = Adam(freezer.get_parameter_groups(RATES))
    save_best = SaveBestModelCallback(tmp_path / "best.pt", watch_metric="epoch")
    callbacks = [CallAt("on_train_epoch_end", record_epoch), Unfreezing(freezer, RATES), save_best]
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks)

    trainer.train(make_images(8), num_epochs=3)

    assert save_best.best.epoch == 1
    assert changed(before, model) == {"2.weight", "2.bias"}
