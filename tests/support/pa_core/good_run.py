"""A good run, and what holds after a bad one: the error was explained, and the trainer still works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD
from tqdm import tqdm
from typing_extensions import override

from pa_core import DEFAULT_CALLBACKS, Trainer
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification

TRAIN_DATA = make_classification(16)
EVAL_DATA = make_classification(8, seed=1)


class Permissive(Trainer[TinyClassifier]):
    """A trainer whose steps and loaders can be replaced by bad ones, and put back."""

    train_step: Callable[[Any], Any] | None = None
    eval_step: Callable[[Any], Any] | None = None
    train_loader: Callable[[], Any] | None = None
    eval_loader: Callable[[], Any] | None = None

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        return output if self.train_step is None else self.train_step(output)

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        return output if self.eval_step is None else self.eval_step(output)

    @override
    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> Any:
        if self.train_loader is not None:
            return self.train_loader()
        return super().create_train_dataloader(batch_size, train_dl_kwargs)

    @override
    def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: dict[str, Any] | None = None) -> Any:
        if self.eval_loader is not None:
            return self.eval_loader()
        return super().create_eval_dataloader(batch_size, eval_dl_kwargs)


def make_trainer(*callbacks: Any) -> Permissive:
    """A trainer with the callbacks that users have by default, and one that notes the events."""
    torch.manual_seed(0)
    model = TinyClassifier(batch_norm=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    everything = (*DEFAULT_CALLBACKS, RecordingCallback, *callbacks)
    return Permissive(model, nn.CrossEntropyLoss(), optimizer, callbacks=everything)


def train(trainer: Trainer[Any], *, epochs: int | None = 2, data: Any = TRAIN_DATA, **kwargs: Any) -> None:
    """A good run, but for what is passed."""
    arguments: dict[str, Any] = {"eval_dataset": EVAL_DATA, **kwargs}
    trainer.train(data, epochs, **arguments)


def assert_no_bar_is_open() -> None:
    """Nothing will be drawn over what the user prints next."""
    open_bars: Any = vars(tqdm)["_instances"]
    assert not open_bars


def assert_still_works(trainer: Trainer[Any], model: nn.Module) -> None:
    """Nothing is wrapped, no bar is open, and the next run is as it would have been."""
    assert trainer.model is model
    assert "forward" not in vars(model)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert_no_bar_is_open()
    recorder = next(one for one in trainer.callback_handler.callbacks if isinstance(one, RecordingCallback))
    recorder.events.clear()
    train(trainer)
    assert recorder.events.count("on_optimizer_step_end") == 4
    assert recorder.events[-1] == "on_training_run_end"
    assert "on_exception" not in recorder.events
    assert len(list(trainer.run_history.get_metric_values("train_loss_epoch"))) == 2
    assert trainer.run_history.current_epoch == 3
    assert_no_bar_is_open()
