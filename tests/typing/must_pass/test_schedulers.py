"""The types of schedulers, of placeholders that stand for numbers, and of freezing and unfreezing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, assert_type

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR, ReduceLROnPlateau, StepLR
from typing_extensions import override

from pa_core import BatchOutput, Trainer, TrainerCallback, TrainerPlaceholderValues, TrainerWithTimmScheduler
from pa_core.steps.placeholders import PlaceholderExpression, resolve_placeholders
from pa_core.timm_trainer import TimmSchedulerLike
from pa_core.types import SchedulerLike, StatefulScheduler
from pa_finetuning import GradualUnfreezing, ModelFreezer, TrainerLike
from pa_schedulers import CosineLrScheduler, SchedulerBase, StatefulSchedulerBase, WSDLrScheduler, plot_schedule
from tests.typing.vocabulary import Net, make_data, make_optimizer

EPOCHS = TrainerPlaceholderValues.NUM_EPOCHS
UPDATES = TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH


class Halving(StatefulSchedulerBase):
    """A scheduler of one's own."""

    def __init__(self, optimizer: Optimizer, every: int) -> None:
        super().__init__(optimizer)
        self.every = every

    @override
    def get_updated_values(self, num_updates: int) -> list[float]:
        return [initial / 2 ** (num_updates // self.every) for initial in self.initial_values]


class Timm:
    """A scheduler in the form of timm's."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.updates = 0

    def step(self, epoch: int, metric: float | None = None) -> None:
        """Do nothing."""

    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        """Take note of the updates."""
        self.updates = num_updates

    def state_dict(self) -> dict[str, Any]:
        """Return no state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take no state."""


def trainer_of_net() -> Trainer[Net]:
    """Return a trainer with the default type of scheduler."""
    net = Net()
    return Trainer(net, nn.CrossEntropyLoss(), make_optimizer(net), callbacks=[])


def test_placeholders_are_numbers_to_a_checker() -> None:
    """A placeholder, and arithmetic on it, fits wherever a scheduler takes a number, without a cast."""
    total = EPOCHS * UPDATES + 1
    assert_type(total, PlaceholderExpression)
    twice: int = 2 * EPOCHS  # to pyright, the int on the left decides what comes out
    assert_type(EPOCHS / 3, PlaceholderExpression)
    assert_type(-UPDATES // 2, PlaceholderExpression)

    assert repr(twice) == "(2 * TrainerPlaceholderValues.NUM_EPOCHS)"
    trainer = trainer_of_net()
    trainer.train(make_data(), num_epochs=2, create_scheduler_fn=partial(OneCycleLR, max_lr=0.1, total_steps=total))
    trainer.train(make_data(), num_epochs=2, create_scheduler_fn=partial(CosineAnnealingLR, T_max=EPOCHS, eta_min=0))
    assert isinstance(trainer.scheduler, CosineAnnealingLR)
    assert_type(resolve_placeholders(partial(OneCycleLR, max_lr=0.1), {}), partial[OneCycleLR])


def test_factories_of_every_form() -> None:
    """A class, a partial, a lambda, a function and our own factories are all accepted."""

    def by_function(optimizer: Optimizer) -> LRScheduler:
        return LambdaLR(optimizer, lambda step: 0.5**step)

    trainer = trainer_of_net()
    trainer.train(make_data(), 1, create_scheduler_fn=by_function)
    trainer.train(make_data(), 1, create_scheduler_fn=lambda optimizer: CosineAnnealingLR(optimizer, T_max=5))
    trainer.train(make_data(), 1, create_scheduler_fn=partial(Halving, every=2))
    plateau = partial(ReduceLROnPlateau, patience=2)
    trainer.train(make_data(), 1, create_scheduler_fn=plateau, watch_metric="train_loss_epoch")
    trainer.train(make_data(), 1, create_scheduler_fn=partial(StepLR, step_size=2), step_scheduler="epoch")
    trainer.train(make_data(), 1, create_scheduler_fn=CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1))
    trainer.train(make_data(), 10, create_scheduler_fn=WSDLrScheduler.create_scheduler_fn(num_checkpoints=1))
    assert_type(trainer.scheduler, SchedulerLike | None)


def test_factories_know_what_they_make() -> None:
    """The factories of our schedulers return functions that make the class they were called on."""

    class Gentle(CosineLrScheduler):
        """A subclass."""

    optimizer = make_optimizer(Net())
    assert_type(Gentle.create_scheduler_fn(4, 5), Callable[[Optimizer], Gentle])
    assert_type(WSDLrScheduler.create_scheduler_fn(), Callable[[Optimizer], WSDLrScheduler])
    assert_type(CosineLrScheduler.create_scheduler_fn(4, 5)(optimizer), CosineLrScheduler)
    assert isinstance(Gentle.create_scheduler_fn(4, 5)(optimizer), Gentle)


def test_a_trainer_may_declare_its_scheduler() -> None:
    """Then its methods are known, and a factory has to make that one."""

    class HalvingTrainer(Trainer[Net, Any, BatchOutput, Halving]):
        """A trainer that reads its scheduler."""

    net = Net()
    trainer = HalvingTrainer(net, nn.CrossEntropyLoss(), make_optimizer(net), callbacks=[])
    trainer.train(make_data(), num_epochs=1, create_scheduler_fn=partial(Halving, every=UPDATES))

    assert_type(trainer.scheduler, Halving | None)
    assert_type(trainer.create_scheduler(), Halving | None)
    assert trainer.scheduler is not None
    assert_type(trainer.scheduler.every, int)
    assert trainer.scheduler.every == 1


def test_schedulers_in_the_form_of_timm() -> None:
    """``TrainerWithTimmScheduler`` keeps the model, and its scheduler has the two methods."""
    net = Net()
    trainer = TrainerWithTimmScheduler(net, nn.CrossEntropyLoss(), make_optimizer(net), callbacks=[])
    trainer.train(make_data(), num_epochs=2, create_scheduler_fn=Timm)

    assert_type(trainer, TrainerWithTimmScheduler[Net])
    assert_type(trainer.get_model(), Net)
    assert_type(trainer.scheduler, TimmSchedulerLike | None)
    assert isinstance(trainer.scheduler, Timm)


def test_what_our_schedulers_tell() -> None:
    """Phases, periods and values have types of their own."""
    scheduler = WSDLrScheduler(make_optimizer(Net()), total_steps=20)

    assert_type(scheduler.get_phase_info(19)["phase"], Literal["warmup", "stable", "decay", "finished"])
    rows = plot_schedule(partial(Halving, every=2), make_optimizer(Net()), 2, 3)
    assert_type(rows[0].values, tuple[float, ...])
    assert rows[-1].values == (0.025,)


def test_protocols_take_schedulers_of_any_origin() -> None:
    """Whatever can be saved and stepped is a scheduler: no base class is asked for."""

    def needs_state(scheduler: StatefulScheduler) -> StatefulScheduler:
        return scheduler

    def needs_step(scheduler: SchedulerLike) -> SchedulerLike:
        return scheduler

    def needs_base(scheduler: SchedulerBase) -> SchedulerBase:
        return scheduler

    optimizer = make_optimizer(Net())
    assert_type(needs_step(CosineAnnealingLR(optimizer, 5)), SchedulerLike)
    assert_type(needs_state(Timm(optimizer)), StatefulScheduler)
    assert_type(needs_base(Halving(optimizer, 1)), SchedulerBase)


class Unfreeze(GradualUnfreezing, TrainerCallback):
    """Gradual unfreezing, as a callback."""


def test_unfreezing_is_a_callback_of_every_trainer() -> None:
    """What it reads of a trainer is a protocol, which every trainer of ours meets."""

    def read(trainer: TrainerLike) -> int:
        return trainer.run_history.current_epoch

    net = Net()
    freezer = ModelFreezer(net)
    freezer.freeze()
    optimizer = AdamW(freezer.get_parameter_groups(0.1, include_frozen=True))
    trainer = Trainer(net, nn.CrossEntropyLoss(), optimizer, callbacks=[Unfreeze(freezer)])
    trainer.train(make_data(), num_epochs=2)

    assert_type(trainer, Trainer[Net])
    assert read(trainer) == 3
