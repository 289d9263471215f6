"""What must not pass a type checker around the trainer."""

# What is unknown because of an error is no error of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import StepLR
from typing_extensions import override

from pa_core import AnyTrainer, BatchOutput, Trainer
from tests.typing.vocabulary import Batch, Net, NetTrainer, OtherNet, Output, PlateauTrainer, make_data, make_optimizer

net = Net()
optimizer = make_optimizer(net)
data = make_data()
trainer = Trainer(net, None, optimizer, callbacks=[])
net_trainer = NetTrainer(net, None, optimizer, callbacks=[])
plateau_trainer = PlateauTrainer(net, None, optimizer, callbacks=[])


def pairs(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Make a batch that is none of ``NetTrainer``."""
    return samples[0]


def describe(epoch: int, *, loss: float) -> str:
    """Describe an epoch."""
    return f"{epoch}: {loss}"


def needs_plain_trainer(trainer: Trainer) -> None:
    """Ask for a trainer of plain dictionaries."""


def use(trainer: AnyTrainer) -> None:
    """Use any trainer."""
    trainer.calculate_train_batch_loss(None)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.AnyTrainer: it knows no batch


# The four type parameters

Trainer("net", None, None)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer[ModelT_co]: a model is a module
other: Trainer[OtherNet] = trainer  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.Trainer[ModelT_co]: a trainer of another model
not_a_model: Trainer[int]  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]  # pa_core.types.ModelT_co: the parameter is a class of modules


class OtherBatches(NetTrainer):
    """Steps that take another batch than the trainer declares."""

    @override
    def calculate_train_batch_loss(self, batch: tuple[Tensor, Tensor]) -> Output:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.Trainer.calculate_train_batch_loss[BatchT]: another batch
        raise NotImplementedError


net_trainer.calculate_eval_batch_loss((torch.ones(1), torch.ones(1)))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer.calculate_eval_batch_loss[BatchT]: a batch of another class
net_trainer.train(data, 1, collate_fn=pairs)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer.collate_fn[BatchT]: it collates to another batch


class Forgetful(Trainer[Net, Batch, Output]):
    """Steps that do not return what the trainer declares."""

    @override
    def calculate_train_batch_loss(self, batch: Batch) -> Output:
        return {"loss": batch.pixels.mean(), "model_outputs": None, "batch_size": 1}  # type: ignore[typeddict-item]  # pyright: ignore[reportReturnType]  # pa_core.Trainer.calculate_train_batch_loss[OutputT_co]: a key is missing

    @override
    def calculate_eval_batch_loss(self, batch: Batch) -> BatchOutput:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.Trainer.calculate_eval_batch_loss[OutputT_co]: less than is declared
        raise NotImplementedError


not_an_output: Trainer[Net, Batch, Tensor]  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]  # pa_core.types.OutputT_co: a step returns a dictionary
trainer.train(data, 1, create_scheduler_fn=lambda it: net)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer.scheduler[SchedulerT]: it has no step()
plateau_trainer.train(data, 1, create_scheduler_fn=lambda it: StepLR(it, 2))  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer.scheduler[SchedulerT]: another one
not_a_scheduler: Trainer[Net, Batch, Output, Path]  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]  # pa_core.types.SchedulerT: it has no state

# What a step returns

BatchOutput(loss=torch.ones(1), model_outputs=None)  # type: ignore[typeddict-item]  # pyright: ignore[reportCallIssue]  # pa_core.BatchOutput: the size of the batch is missing
BatchOutput(loss=0.5, model_outputs=None, batch_size=1)  # type: ignore[typeddict-item]  # pyright: ignore[reportArgumentType]  # pa_core.BatchOutput: a loss is a tensor
certainty: Tensor = net_trainer.calculate_train_batch_loss(Batch(torch.ones(1), torch.ones(1)))["certainty"]  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]  # pa_core.BatchOutput: no such key

# The two entries

trainer.train(data, 3, resume_missing="begin")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer.train: "error" or "start"
net_trainer.evaluate(data, collate_fn=pairs)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer.evaluate: it collates to another batch


class OtherLoaders(NetTrainer):
    """Loaders that do not yield what the steps take."""

    @override
    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> list[Batch]:
        return [1, 2, 3]  # type: ignore[list-item]  # pyright: ignore[reportReturnType]  # pa_core.Trainer.create_train_dataloader: numbers are no batches

    @override
    def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: dict[str, Any] | None = None) -> Iterator[Batch]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.Trainer.create_eval_dataloader: no length
        raise NotImplementedError


# What can be done with a trainer

model: OtherNet = trainer.get_model()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.Trainer.get_model: it is of another class
text: str = trainer.gather(torch.ones(1))  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.Trainer.gather: tensors come back
trainer.gather(0.5)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer.gather: a number is no tensor
trainer.gather({1, 2})  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer.gather: a set has no order
trainer.save_model("net", max_shard_size=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer.save_model: bytes, or text with a unit
trainer.device = "cpu"  # type: ignore[assignment, misc]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.Trainer.device: the launcher decides it
trainer.optimizer = None  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.Trainer.optimizer: it cannot be taken away
Trainer(net, None, optimizer, mixed_precision="bfloat16")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer.mixed_precision: it is called bf16
trainer.num_processes = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.Trainer.num_processes: the launcher decides it
trainer.add_module("critic", net, optimizer, StepLR(optimizer, 1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer.add_module: a function that makes the scheduler
trainer.modules["critic"] = net  # type: ignore[index]  # pyright: ignore[reportIndexIssue]  # pa_core.Trainer.modules: add_module adds to it
trainer.on_main_process(describe)(1, loss="low")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Trainer.on_main_process: the arguments are those of the function
described: str = trainer.on_process(process_index=1)(describe)(1, loss=0.5)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.Trainer.on_process: other processes get None
trainer.on_process(2)(describe)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # pa_core.Trainer.on_process: a named argument
trainer.scheduler.step()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]  # pa_core.Trainer.scheduler: there may be none

# Trainers of any kind

AnyTrainer(net, None, None, [], None, mixed_precision=None, cpu=None, max_wait_seconds=None, reproducible=None)  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]  # pa_core.AnyTrainer: it is abstract
needs_plain_trainer(net_trainer)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.AnyTrainer: what Trainer without parameters is not

# Settings

trainer.run_config.num_epochs = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.TrainerRunConfig: it is frozen
trainer.run_config.train_dl_kwargs["shuffle"] = False  # type: ignore[index]  # pyright: ignore[reportIndexIssue]  # pa_core.TrainerRunConfig.train_dl_kwargs: a copy to read
