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


@pytest.mark.parametrize("event", ["on_training_run_start", "on_evaluation_run_start"])
def test_every_module_but_the_model_is_moved(event: str) -> None:
    """Class weights, metrics and modules in containers are on the device; the model is left alone."""
    trainer: Any = TrainerElsewhere()
    accuracy, contained = trainer.accuracy, [trainer.in_list[0], trainer.in_tuple[0], trainer.in_dict["teacher"]]
    getattr(MoveModulesToDeviceCallback(), event)(trainer)
    assert next(trainer.model.parameters()).device == torch.device("cpu")
    assert {one.weight.device for one in (trainer.loss_func, *contained)} == {accuracy.tp.device} == {META}
    assert trainer.accuracy is accuracy
    assert trainer.in_dict["teacher"] is contained[2]
