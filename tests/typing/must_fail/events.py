"""What must not pass a type checker around events, which are overridden in ways that a run would break."""

# What is unknown because of an error is no error of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from typing_extensions import override

from pa_core import AnyTrainer, BatchOutput, Trainer, TrainerCallback
from tests.typing.vocabulary import Batch, Net, NetTrainer, Output


class AsksForMore(TrainerCallback):
    """Demands a trainer of its own without saying so in its parameters."""

    @override
    def on_init_end(self, trainer: Trainer, **kwargs: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_init_end: AnyTrainer
        raise NotImplementedError


class TakesTooLittle(TrainerCallback):
    """Does not take what the events are called with."""

    @override
    def on_train_steps_skipped(self, trainer: AnyTrainer) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_train_steps_skipped: steps
        raise NotImplementedError

    @override
    def on_train_step_start(self, **kwargs: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_train_step_start: trainer
        raise NotImplementedError

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_train_step_end: batch_output
        raise NotImplementedError

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_optimizer_step_end: update
        raise NotImplementedError

    @override
    def on_exception(self, trainer: AnyTrainer) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_exception: exception
        raise NotImplementedError

    @override
    def on_prediction_run_start(self, trainer: AnyTrainer) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_prediction_run_start: num_batches
        raise NotImplementedError

    @override
    def on_prediction_step_end(self, trainer: AnyTrainer) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_prediction_step_end: batch_size
        raise NotImplementedError


class TakesOtherThings(TrainerCallback):
    """Takes arguments of other types than the events are called with, or more of them."""

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, epoch: int, **kwargs: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_eval_epoch_start: nobody passes an epoch
        raise NotImplementedError

    @override
    def on_training_state_request(self, trainer: AnyTrainer, update: str, **kwargs: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_training_state_request: a number
        raise NotImplementedError

    @override
    def on_stop_training_error(self, trainer: AnyTrainer, error: Exception, **kwargs: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_stop_training_error: a named argument
        raise NotImplementedError


class IsNoListener(TrainerCallback):
    """Is something else than a method of a listener."""

    @override
    async def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_training_run_epoch_end: nobody awaits it
        raise NotImplementedError

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> str:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_training_run_end: nobody takes what it returns
        raise NotImplementedError

    on_evaluation_run_start = 3  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.TrainerCallback.on_evaluation_run_start: a number cannot be called

    @property
    @override
    def on_evaluation_run_end(self) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_evaluation_run_end: a property cannot be called
        raise NotImplementedError

    @override
    def on_training_state_save(self, *, trainer: AnyTrainer, **kwargs: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_training_state_save: it is passed by its place
        raise NotImplementedError

    @override
    def on_training_state_saved(self, trainer: AnyTrainer, path: Path, **kwargs: str) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_training_state_saved: the update is a number
        raise NotImplementedError


class DeclaresOneAndTakesAnother(TrainerCallback[NetTrainer, Batch, Output]):
    """Declares types in its parameters, and takes others."""

    @override
    def on_train_step_start(self, trainer: Trainer[Net], **kwargs: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_train_step_start[TrainerT_contra]: another trainer
        raise NotImplementedError

    @override
    def on_train_step_end(self, trainer: NetTrainer, batch: list[Tensor], batch_output: Output, **kwargs: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_train_step_end[BatchT_contra]: another batch
        raise NotImplementedError

    @override
    def on_eval_step_end(self, trainer: NetTrainer, batch: Batch, batch_output: dict[str, Any], **kwargs: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.TrainerCallback.on_eval_step_end[OutputT_contra]: another output
        raise NotImplementedError


not_a_trainer: TrainerCallback[Net]  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]  # pa_core.TrainerCallback[TrainerT_contra]: a model is no trainer


def compare(of_output: TrainerCallback[AnyTrainer, Any, Output], of_batch: TrainerCallback[AnyTrainer, Batch]) -> None:
    """Put callbacks in the place of others."""
    any_output: TrainerCallback[AnyTrainer, Any, BatchOutput]
    any_output = of_output  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.TrainerCallback[OutputT_contra]: it reads a key that others do not have
    any_batch: TrainerCallback[AnyTrainer, object]
    any_batch = of_batch  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.TrainerCallback.on_train_step_end[BatchT_contra]: it reads batches of one class
    raise ValueError(any_output, any_batch)
