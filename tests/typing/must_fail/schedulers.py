"""What must not pass a type checker around schedulers and the numbers that only a run knows."""

# What is unknown because of an error is no error of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from typing_extensions import override

from pa_core import BatchOutput, Trainer, TrainerPlaceholderValues, TrainerWithTimmScheduler
from pa_core.timm_trainer import TimmSchedulerLike
from pa_core.types import SchedulerLike, StatefulScheduler, SupportsStateDict
from pa_schedulers import (
    CosineLrScheduler,
    PhaseInfo,
    SchedulerBase,
    ScheduleRow,
    StatefulSchedulerBase,
    WSDLrScheduler,
    plot_schedule,
)
from tests.typing.vocabulary import Batch, Net, make_data, make_optimizer

net = Net()
optimizer = make_optimizer(net)
data = make_data()
trainer = Trainer(net, None, optimizer, callbacks=[])
timm_trainer = TrainerWithTimmScheduler(net, None, optimizer, callbacks=[])
wsd = WSDLrScheduler(optimizer, total_steps=20)

# Placeholders

epochs: str = TrainerPlaceholderValues.NUM_EPOCHS  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.TrainerPlaceholderValues: a number to a checker

# Factories

trainer.train(data, 1, create_scheduler_fn=StepLR(optimizer, 2))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer.create_scheduler_fn: a scheduler is no factory
trainer.train(data, 1, create_scheduler_fn=lambda: StepLR(optimizer, 2))  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer.create_scheduler_fn: it is given an optimizer
trainer.train(data, 1, create_scheduler_fn=partial(StepLR, step=2))  # type: ignore[call-arg]  # pyright: ignore[reportArgumentType, reportCallIssue]  # pa_core.Trainer.create_scheduler_fn: no such argument


class WrongScheduler(Trainer[Net, Batch, BatchOutput, CosineLrScheduler]):
    """Makes another scheduler than it declares."""

    @override
    def create_scheduler(self) -> WSDLrScheduler:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.Trainer.create_scheduler: another scheduler
        raise NotImplementedError


# The schedulers of pa-schedulers

CosineLrScheduler.create_scheduler_fn(num_warmup_steps=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # pa_schedulers.CosineLrScheduler.create_scheduler_fn: epochs
name: str = wsd.get_phase_info(3)["name"]  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]  # pa_schedulers.PhaseInfo: no such key
if wsd.get_phase_info(3)["phase"] == "cooldown":  # type: ignore[comparison-overlap]  # pyright: ignore[reportUnnecessaryComparison]  # pa_schedulers.PhaseInfo: no such phase
    pass
PhaseInfo(step=3, phase="decay")  # type: ignore[typeddict-item]  # pyright: ignore[reportCallIssue]  # pa_schedulers.PhaseInfo: its period is missing
start: int = wsd.get_decay_info()["period_start"]  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # pa_schedulers.WSDLrScheduler.get_decay_info: a list
plot_schedule(ReduceLROnPlateau, optimizer, 2, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_schedulers.plot_schedule: its step() needs a metric
ScheduleRow(1, 1, (0.1,)).update = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # pa_schedulers.ScheduleRow: it cannot be changed

# Schedulers of one's own

StatefulSchedulerBase(optimizer)  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]  # pa_schedulers.StatefulSchedulerBase: it is abstract


class Verbose(SchedulerBase):
    """Returns text in the place of values."""

    @override
    def get_updated_values(self, num_updates: int) -> str:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_schedulers.SchedulerBase.get_updated_values: numbers
        raise NotImplementedError


class StepsOnly:
    """Can be stepped, and has no state."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        """Do nothing."""


trainer.scheduler = StepsOnly(optimizer)  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.types.SchedulerLike: it has no state
like: SchedulerLike = wsd.step  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.types.SchedulerLike: a method is no scheduler
stateful: StatefulScheduler = StepsOnly(optimizer)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.types.StatefulScheduler: it has no state
state: SupportsStateDict = {"step": 3}  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.types.SupportsStateDict: a dictionary has no state
timm: TimmSchedulerLike = CosineLrScheduler(optimizer, 2, 3)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.TimmSchedulerLike: its step() takes no epoch

# A trainer for the schedulers of timm

timm_trainer.train(data, 1, create_scheduler_fn=partial(StepLR, step_size=2))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.TrainerWithTimmScheduler: no step_update()
not_a_model: TrainerWithTimmScheduler[Tensor]  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]  # pa_core.TrainerWithTimmScheduler[ModelT_co]: a class of modules
not_an_output: TrainerWithTimmScheduler[Net, Any, Tensor]  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]  # pa_core.TrainerWithTimmScheduler[OutputT_co]: a dictionary
typed_trainer = TrainerWithTimmScheduler[Net, Batch, BatchOutput](net, None, optimizer, callbacks=[])
typed_trainer.calculate_train_batch_loss({"pixels": None})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.TrainerWithTimmScheduler.calculate_train_batch_loss[BatchT]: another batch
