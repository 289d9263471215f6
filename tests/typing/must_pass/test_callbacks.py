"""The types of callbacks: for any trainer, for one class of trainers, and their own events."""

from __future__ import annotations

from typing import Any, assert_type

import torch
from torch import Tensor
from typing_extensions import override

from pa_core import (
    DEFAULT_CALLBACKS,
    AnyTrainer,
    BatchOutput,
    CallbackHandler,
    Trainer,
    TrainerCallback,
    get_default_callbacks,
)
from pa_core.callbacks import CallbackLike
from pa_core.testing import RecordingCallback
from tests.typing.vocabulary import (
    Batch,
    CheckPixels,
    ForAnyTrainer,
    ForNetTrainer,
    Net,
    NetTrainer,
    Output,
    collate,
    make_data,
    make_optimizer,
)


def test_a_callback_may_demand_its_trainer() -> None:
    """A callback with parameters is given its own trainer, batch and output in each event."""

    class Typed(TrainerCallback[NetTrainer, Batch, Output]):
        @override
        def on_train_step_end(
            self, trainer: NetTrainer, batch: Batch, batch_output: Output, *, step: int = 0, **kwargs: Any
        ) -> None:
            assert_type(trainer.model, Net)
            assert_type(trainer.smoothing, float)
            assert_type(batch.labels, Tensor)
            assert_type(batch_output["confidence"], Tensor)
            assert step > 0

    net = Net()
    callback = ForNetTrainer()
    trainer = NetTrainer(net, None, make_optimizer(net), callbacks=[callback, Typed, ForAnyTrainer])
    trainer.train(make_data(), num_epochs=2, collate_fn=collate)
    assert trainer.smoothing == 0.025
    assert callback.confidence > 0


def test_a_callback_may_read_what_every_step_returns() -> None:
    """Annotated with ``BatchOutput``, a callback for any trainer knows the types of the three keys."""

    class MeanLoss(TrainerCallback):
        total = 0.0

        @override
        def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
            assert_type(batch_output["loss"], Tensor)
            assert_type(batch_output["batch_size"], int)
            self.total += batch_output["loss"].item() * batch_output["batch_size"]

    net = Net()
    mean_loss = MeanLoss()
    NetTrainer(net, None, None, callbacks=[mean_loss]).evaluate(make_data(), collate_fn=collate)
    assert mean_loss.total > 0


def test_a_callback_for_a_base_class_suits_its_subclasses() -> None:
    """A trainer takes every callback that asks for a base class of it."""

    class Smoother(NetTrainer):
        smoothing = 0.3

    handler = Smoother(Net(), None, None, callbacks=[ForAnyTrainer(), ForNetTrainer]).callback_handler

    assert_type(handler, CallbackHandler[Smoother])
    assert_type(handler.callbacks, list[TrainerCallback[Smoother, Any, Any]])
    handler.add_callback(CheckPixels)
    assert len(handler.callbacks) == 3


def test_an_event_that_is_named_by_its_method_is_checked() -> None:
    """Calling an event of one's own by its method has the arguments compared with those of the method."""

    class FindingTrainer(NetTrainer):
        @override
        def calculate_train_batch_loss(self, batch: Batch) -> Output:
            self.callback_handler.call_event(CheckPixels.on_pixels, self, batch.pixels, labels=batch.labels)
            self.callback_handler.call_event("on_pixels", self, pixels=batch.pixels, labels=batch.labels)
            return super().calculate_train_batch_loss(batch)

    net = Net()
    check = CheckPixels()
    trainer = FindingTrainer(net, None, make_optimizer(net), callbacks=[check])
    trainer.train(make_data(), num_epochs=1, collate_fn=collate)
    assert check.brightest == torch.tensor(3.1).item()


def test_an_event_of_ones_own_may_take_whatever_comes() -> None:
    """An event with ``**kwargs`` is checked too, where ``self`` cannot be one of them."""

    class Listener(TrainerCallback):
        brightest = 0

        def on_pixels(self, /, trainer: AnyTrainer, pixels: int, **kwargs: Any) -> None:
            self.brightest = max(pixels, *kwargs.values())

    listener = Listener()
    trainer = NetTrainer(Net(), None, None, callbacks=[listener])
    trainer.callback_handler.call_event(Listener.on_pixels, trainer, pixels=3, more=4)
    assert listener.brightest == 4


def test_classes_and_instances_in_a_variable() -> None:
    """A list of both is one of callbacks, for any trainer or for one class of them, where it is annotated."""
    for_any: list[CallbackLike] = [ForAnyTrainer, RecordingCallback(), *DEFAULT_CALLBACKS]
    for_one: list[CallbackLike[NetTrainer]] = [*for_any, ForNetTrainer()]
    assert len(Trainer(Net(), None, None, callbacks=for_any).callback_handler.callbacks) == len(for_any)
    assert len(NetTrainer(Net(), None, None, callbacks=for_one).callback_handler.callbacks) == len(for_one)


def test_default_callbacks_are_for_any_trainer() -> None:
    """They can be added to callbacks for a trainer of one's own."""
    assert_type(DEFAULT_CALLBACKS, tuple[type[TrainerCallback[AnyTrainer, Any, Any]], ...])
    assert_type(get_default_callbacks(progress_bar=False), tuple[type[TrainerCallback[AnyTrainer, Any, Any]], ...])
    trainer = NetTrainer(Net(), None, None, callbacks=[ForNetTrainer, *DEFAULT_CALLBACKS, *()])
    assert_type(trainer, NetTrainer)
    assert len(trainer.callback_handler.callbacks) == 1 + len(DEFAULT_CALLBACKS)
