"""Freezing and unfreezing in runs of the trainer, sharded and interrupted ones too: which weights move, how fast."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
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

from pa_core import (
    AnyTrainer,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    Trainer,
    TrainerCallback,
    gather_objects,
)
from pa_core.distributed import num_processes
from pa_data.orders import epoch_order
from pa_finetuning import ModelFreezer
from pa_schedulers import CosineLrScheduler
from tests.support.callbacks import CallAt, KillAt, KilledError
from tests.support.models import weights_of
from tests.support.pa_finetuning.conv_net import changed, entries_below, modes, trainable
from tests.support.pa_finetuning.in_trainer.fine_tuning import Unfreezing, make_frozen, make_images, make_model
from tests.support.sharded_models import sentences, sharded, tiny_transformer, whole_weights

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


DATA = TensorDataset(*sentences(24))


def trained(*, shard: bool) -> tuple[nn.Module, list[int]]:
    """A model whose groups were unfrozen one after another, and what was still frozen after each run."""
    model = tiny_transformer()
    if shard:
        sharded(model)
    freezer = ModelFreezer(model)
    freezer.freeze()
    groups = freezer.get_parameter_groups(freezer.get_learning_rates(0.05), include_frozen=True)
    trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(groups), callbacks=[Unfreezing(freezer)])
    frozen: list[int] = []
    for num_epochs in (2, 3):
        trainer.train(DATA, num_epochs, per_device_batch_size=4, eval_dataset=DATA)
        frozen.append(sum(not one.requires_grad for one in model.parameters()))
    return trainer.get_model(), frozen


@pytest.mark.runs_on("two_ranks")
def test_groups_are_unfrozen_as_those_of_a_whole_model() -> None:
    """Stage by stage, with the rates of the groups, to the same weights; also after evaluations."""
    (model, frozen), (whole, expected) = trained(shard=True), trained(shard=False)
    assert frozen == expected
    assert frozen[0] > frozen[1]
    torch.testing.assert_close(whole_weights(model), whole_weights(whole), rtol=0, atol=1e-10)


EPOCHS = 5
UPDATES = 4
"""In an epoch."""


class UnfreezeByHand(TrainerCallback):
    """One more layer group after each second epoch, given to the optimizer when it is unfrozen."""

    def __init__(self, freezer: ModelFreezer) -> None:
        self.freezer = freezer

    def unfreeze_for(self, trainer: AnyTrainer, epoch: int) -> None:
        """Unfreeze what an epoch trains."""
        unfrozen = self.freezer.unfreeze(-1, max(0, 2 - (epoch - 1) // 2))
        for index, group in unfrozen.items():
            trainer.optimizer.add_param_group({**group, "lr": RATES[index]})

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.unfreeze_for(trainer, trainer.run_history.current_epoch)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.unfreeze_for(trainer, trainer.run_history.current_epoch + 1)


class Outcome(NamedTuple):
    """All that a run leaves behind."""

    fingerprint: str
    trainable: set[str]
    modes: dict[str, bool]
    num_groups: int


def run(
    make_unfreezing: Callable[[ModelFreezer], TrainerCallback],
    *callbacks: TrainerCallback,
    include_frozen: bool = False,
    scheduled: bool = True,
    **options: Any,
) -> Outcome:
    """Train as a script does that is started anew each time, and return what the run leaves behind."""
    model, freezer = make_frozen()
    optimizer = Adam(freezer.get_parameter_groups(RATES, include_frozen=include_frozen))
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[make_unfreezing(freezer), *callbacks])
    trainer.train(
        make_images(16),
        num_epochs=EPOCHS,
        eval_dataset=make_images(8),
        per_device_batch_size=4 // num_processes(),
        create_scheduler_fn=partial(CosineAnnealingLR, T_max=EPOCHS * UPDATES) if scheduled else None,
        **options,
    )
    groups = trainer.optimizer.param_groups
    return Outcome(trainer.fingerprint(), trainable(model), modes(model.train()), len(groups))


def by_callback(freezer: ModelFreezer, *, adds_groups: bool) -> TrainerCallback:
    """Gradual unfreezing with the ready-made callback."""
    return Unfreezing(freezer, RATES if adds_groups else None, epochs_per_stage=2)


WAYS: dict[str, tuple[Callable[[ModelFreezer], TrainerCallback], dict[str, bool]]] = {
    "all in the optimizer": (partial(by_callback, adds_groups=False), {"include_frozen": True}),
    "added to the optimizer": (partial(by_callback, adds_groups=True), {}),
    "by hand": (UnfreezeByHand, {"scheduled": False}),
}


@pytest.mark.parametrize(("make_unfreezing", "options"), WAYS.values(), ids=WAYS)
@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
def test_a_resumed_run_ends_as_the_uninterrupted_one(
    shared_tmp_path: Path, make_unfreezing: Callable[[ModelFreezer], TrainerCallback], options: dict[str, bool]
) -> None:
    """Weights, statistics, momentum, rates, flags and modes are equal, wherever in the stages it was interrupted."""
    torch.manual_seed(5)
    expected = run(make_unfreezing, **options)
    assert expected.num_groups == 3
    # In an epoch of the first stage; between the first stage and the second; in an epoch of the last stage.
    for update in (2 * UPDATES - 2, 2 * UPDATES, 4 * UPDATES + 2):
        state = shared_tmp_path / str(update)
        torch.manual_seed(5)
        save = SaveTrainingStateCallback(state, save_every_n_steps=update)
        with pytest.raises(KilledError):
            run(make_unfreezing, save, KillAt(update + 1), **options)
        torch.manual_seed(99)
        assert run(make_unfreezing, resume_from=state, **options) == expected, update


class EvaluateInMidEpoch(TrainerCallback):
    """Evaluates after the first update of each epoch, and goes on training."""

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update % 2:
            trainer.run_evaluation_epoch(is_intermediate=True)


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
@pytest.mark.parametrize("make_optimizer", [partial(SGD, momentum=0.9), Adam, AdamW])
def test_what_is_frozen_stays_bit_identical(make_optimizer: Callable[..., Optimizer]) -> None:
    """Momentum, weight decay, batches and evaluations in mid-epoch change no frozen weight and no frozen statistics."""
    images = make_images(16)
    model = make_model()
    optimizer = make_optimizer(model.parameters(), lr=0.1, weight_decay=0.1)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[EvaluateInMidEpoch])
    settings: dict[str, Any] = {"num_epochs": 2, "eval_dataset": images, "per_device_batch_size": 4}
    trainer.train(images, **settings)
    freezer = ModelFreezer(model, freeze_batch_norms=True)

    freezer.freeze(set_modules_as_eval=True)
    before, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()["state"])
    trainer.train(images, **settings, gradient_clip_norm=1.0)
    assert changed(before, model) == {"2.weight", "2.bias"}
    in_order = [name for name, _ in model.named_parameters()]
    for number, of_parameter in optimizer.state_dict()["state"].items():
        kept = all(torch.equal(value, state[number][name]) for name, value in of_parameter.items() if value is not None)
        assert kept == in_order[number].startswith(("0.", "1."))

    freezer.unfreeze(1, 1)
    before = copy.deepcopy(model.state_dict())
    trainer.train(images, **settings)
    assert changed(before, model) >= (entries_below(model, "1") | entries_below(model, "2")) - {"1.0.bias"}
    assert changed(before, model).isdisjoint(entries_below(model, "0"))
    assert torch.equal(trainer.gather(weights_of(model)[None])[0], weights_of(model))
