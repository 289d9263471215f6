"""Moving the trainer's other modules to the device of the run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torchmetrics.classification import MulticlassAccuracy
from typing_extensions import override

from pa_core import MoveModulesToDeviceCallback, Trainer
from pa_core.testing import TinyClassifier

META = torch.device("meta")


class TrainerElsewhere(Trainer[TinyClassifier]):
    """A trainer whose device is another one than that of fresh modules, wherever the tests run."""

    @property
    @override
    def device(self) -> torch.device:
        return META

    @property
    def costly(self) -> nn.Module:
        """A property that must not be evaluated by somebody who looks for modules."""
        raise AssertionError

    def __init__(self) -> None:
        model = TinyClassifier()
        loss_func = nn.CrossEntropyLoss(weight=torch.ones(3))
        super().__init__(model, loss_func, SGD(model.parameters(), lr=0.1), callbacks=[])
        self.accuracy = MulticlassAccuracy(num_classes=3)
        self.in_list: list[object] = [nn.Linear(1, 1), "no module"]
        self.in_tuple = (nn.Linear(1, 1),)
        self.in_dict = {"teacher": nn.Linear(1, 1)}


def devices_of(trainer: TrainerElsewhere) -> dict[str, torch.device]:
    """The device of each module of the trainer."""
    accuracy: Any = trainer.accuracy
    listed: Any = trainer.in_list[0]
    loss_func: Any = trainer.loss_func
    return {
        "model": next(trainer.model.parameters()).device,
        "loss_func": loss_func.weight.device,
        "accuracy": accuracy.tp.device,
        "list": listed.weight.device,
        "tuple": trainer.in_tuple[0].weight.device,
        "dict": trainer.in_dict["teacher"].weight.device,
    }


@pytest.mark.parametrize("event", ["on_training_run_start", "on_evaluation_run_start"])
def test_every_module_but_the_model_is_moved(event: str) -> None:
    """Class weights, metrics and modules in containers are on the device; the model is left alone."""
    trainer = TrainerElsewhere()
    accuracy, teacher = trainer.accuracy, trainer.in_dict["teacher"]
    getattr(MoveModulesToDeviceCallback(), event)(trainer)
    devices = devices_of(trainer)
    assert devices.pop("model") == torch.device("cpu")
    assert set(devices.values()) == {META}, devices
    assert trainer.accuracy is accuracy
    assert trainer.in_dict["teacher"] is teacher
