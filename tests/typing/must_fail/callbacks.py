"""What must not pass a type checker around callbacks and their handler."""

# What is unknown because of an error is no error of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import torch
from typing_extensions import override

from pa_core import (
    DEFAULT_CALLBACKS,
    AnyTrainer,
    CallbackHandler,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
    LogMetricsCallback,
    MoveModulesToDeviceCallback,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    TerminateOnNaNCallback,
    Trainer,
    get_default_callbacks,
)
from pa_core.callbacks import ScalarTransfer
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification, make_regression
from tests.typing.vocabulary import CheckPixels, ForAnyTrainer, ForNetTrainer, Net, NetTrainer

net = Net()
trainer = Trainer(net, None, None, callbacks=[])
net_trainer = NetTrainer(net, None, None, callbacks=[])
pixels = torch.ones(2, 4)

# Which trainer takes which callback

Trainer(net, None, None, callbacks=[ForNetTrainer])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # pa_core.TrainerCallback[TrainerT_contra]: it needs a NetTrainer
Trainer(net, None, None, callbacks=[ForAnyTrainer, print])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # pa_core.any_trainer.CallbackLike: a function is no callback
Trainer(net, None, None, callbacks=ForAnyTrainer())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.any_trainer.CallbackLike: one is no list of them
NetTrainer(net, None, None, callbacks=["early stopping"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # pa_core.any_trainer.CallbackLike: a name is no callback

# The handler

trainer.callback_handler.add_callback(ForNetTrainer())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.CallbackHandler[_TrainerT]: it needs a NetTrainer
any_handler: CallbackHandler[AnyTrainer] = net_trainer.callback_handler  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.CallbackHandler[_TrainerT]: not of any
not_a_trainer: CallbackHandler[Net]  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]  # pa_core.CallbackHandler[_TrainerT]: a model is no trainer
trainer.callback_handler.add_callbacks(ForAnyTrainer)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.CallbackHandler.add_callbacks: one is no list of them
trainer.callback_handler.remove_callback(ForAnyTrainer)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.CallbackHandler.remove_callback: an instance
with trainer.callback_handler.replaced_by([ForNetTrainer]):  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # pa_core.CallbackHandler.replaced_by: it needs a NetTrainer
    pass
net_trainer.callback_handler.call_event(CheckPixels.on_pixels, net_trainer, pixels, labels=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]  # pa_core.CallbackHandler.call_event: a tensor
net_trainer.callback_handler.call_event(CheckPixels.on_pixels, net_trainer, pixels)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # pa_core.CallbackHandler.call_event: labels are missing
net_trainer.callback_handler.call_event(ForAnyTrainer)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # pa_core.CallbackHandler.call_event: a class is no event

# The callbacks of the core

DEFAULT_CALLBACKS[0] = ForAnyTrainer  # type: ignore[index]  # pyright: ignore[reportIndexIssue]  # pa_core.DEFAULT_CALLBACKS: shared by all trainers
get_default_callbacks("tqdm")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.get_default_callbacks: with a bar or without
LimitBatchesCallback("3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.LimitBatchesCallback: a number
LimitEvalStepsCallback()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # pa_core.LimitEvalStepsCallback: how many?
StepBasedEvaluationCallback(eval_every_n_steps=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.StepBasedEvaluationCallback: a number
MoveModulesToDeviceCallback("cuda")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # pa_core.MoveModulesToDeviceCallback: the launcher decides
TerminateOnNaNCallback(patience=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # pa_core.TerminateOnNaNCallback: it has no patience
SaveBestModelCallback(greater_is_better="max")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.SaveBestModelCallback: a truth value
worst: float = SaveBestModelCallback().best.value + 1  # type: ignore[operator]  # pyright: ignore[reportOptionalOperand]  # pa_core.SaveBestModelCallback: there may be none yet
SaveTrainingStateCallback("states", save_every_n_steps="all")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.SaveTrainingStateCallback: a number
SaveTrainingStateCallback("states", 1, 2, True, 3, 60.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # pa_core.SaveTrainingStateCallback: a named argument
SaveTrainingStateCallback(stop_on_signals=15)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.SaveTrainingStateCallback: several signals


class LogNothing(LogMetricsCallback):
    """Logs something else than what it is given."""

    @override
    def log_metrics(self, trainer: AnyTrainer, metrics: list[float]) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.LogMetricsCallback.log_metrics: a dictionary
        raise NotImplementedError


# What callbacks read of an accelerator

losses = ScalarTransfer[int]()
losses.send(torch.ones(1), tag="first")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.callbacks.ScalarTransfer[TagT]: a tag of another type
losses.send(0.5, tag=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.callbacks.ScalarTransfer.send: a tensor

# What there is for tests

first: str = RecordingCallback().events  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.testing.RecordingCallback: a list of names
TinyClassifier(hidden=0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.testing.TinyClassifier: a number of units
make_classification(8, 4, 3, 0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # pa_core.testing.make_classification: a named argument
make_regression(seed="a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.testing.make_regression: a number
