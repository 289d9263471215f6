"""What must not pass a type checker around callbacks and their handler."""

# What is unknown because of an error is no error of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import torch
from typing_extensions import override

from pa_core import DEFAULT_CALLBACKS, AnyTrainer, CallbackHandler, LogMetricsCallback, Trainer
from pa_core.callbacks import ScalarTransfer
from tests.typing.vocabulary import CheckPixels, ForAnyTrainer, ForNetTrainer, Net, NetTrainer

net = Net()
trainer = Trainer(net, None, None, callbacks=[])
net_trainer = NetTrainer(net, None, None, callbacks=[])
pixels = torch.ones(2, 4)

# Which trainer takes which callback

Trainer(net, None, None, callbacks=[ForNetTrainer])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # pa_core.TrainerCallback[TrainerT_contra]: it needs a NetTrainer
Trainer(net, None, None, callbacks=[ForAnyTrainer, print])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # pa_core.engine.any_trainer.CallbackLike: a function is no callback
NetTrainer(net, None, None, callbacks=["early stopping"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # pa_core.engine.any_trainer.CallbackLike: a name is no callback

# The handler

trainer.callback_handler.add_callback(ForNetTrainer())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.CallbackHandler[_TrainerT]: it needs a NetTrainer
any_handler: CallbackHandler[AnyTrainer] = net_trainer.callback_handler  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.CallbackHandler[_TrainerT]: not of any
not_a_trainer: CallbackHandler[Net]  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]  # pa_core.CallbackHandler[_TrainerT]: a model is no trainer
with trainer.callback_handler.replaced_by([ForNetTrainer]):  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # pa_core.CallbackHandler.replaced_by: it needs a NetTrainer
    pass
net_trainer.callback_handler.call_event(CheckPixels.on_pixels, net_trainer, pixels, labels=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]  # pa_core.CallbackHandler.call_event: a tensor
net_trainer.callback_handler.call_event(CheckPixels.on_pixels, net_trainer, pixels)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # pa_core.CallbackHandler.call_event: labels are missing
net_trainer.callback_handler.call_event(ForAnyTrainer)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # pa_core.CallbackHandler.call_event: a class is no event

# The callbacks of the core

DEFAULT_CALLBACKS[0] = ForAnyTrainer  # type: ignore[index]  # pyright: ignore[reportIndexIssue]  # pa_core.DEFAULT_CALLBACKS: shared by all trainers


class LogNothing(LogMetricsCallback):
    """Logs something else than what it is given."""

    @override
    def log_metrics(self, trainer: AnyTrainer, metrics: list[float]) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_core.LogMetricsCallback.log_metrics: a dictionary
        raise NotImplementedError


# What callbacks read of an accelerator

losses = ScalarTransfer[int]()
losses.send(torch.ones(1), tag="first")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.callbacks.ScalarTransfer[TagT]: a tag of another type

# The state of a callback


class Misspelt(ForAnyTrainer):
    """Has a state that no training state would hold."""

    @override
    def state_dct(self) -> dict[str, int]:  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]  # pa_core.TrainerCallback: state_dict
        return {}
