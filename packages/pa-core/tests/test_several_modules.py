"""Modules beside the model on several processes: only what is synchronised may be trained."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override

from pa_core import Trainer, UnsupportedConfigurationError, gather_objects
from pa_core.distributed import num_processes
from pa_core.testing import make_regression

everywhere = pytest.mark.runs_on("one_process", "two_ranks")
on_two_ranks = pytest.mark.runs_on("two_ranks")


def trainer_with(give: Callable[[Any], None], model: nn.Module | None = None) -> Trainer:
    """A trainer that is given something more."""
    model = model or nn.Linear(4, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    give(trainer)
    return trainer


def with_list(trainer: Any) -> None:
    """Two more modules, one of which is trained."""
    trainer.heads = [nn.Linear(1, 1).requires_grad_(False), nn.Linear(1, 1)]


def with_parameter_in_the_optimizer(trainer: Any) -> None:
    """A parameter that the trainer has nowhere but in its optimizer."""
    trainer.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def with_copy_of_the_model(trainer: Any) -> None:
    """A second generator, say, with an optimizer of its own."""
    trainer.other = copy.deepcopy(trainer.model)
    trainer.optimizer_of_other = SGD(trainer.other.parameters(), lr=0.1)


def with_module_in_eval_mode_that_is_optimized(trainer: Any) -> None:
    """A discriminator of pretrained layers, say, whose statistics are to stay."""
    trainer.discriminator = nn.Linear(1, 1).eval()
    trainer.optimizer_of_discriminator = SGD(trainer.discriminator.parameters(), lr=0.1)


TRAINED: dict[str, tuple[str, Callable[[Any], None]]] = {
    "a module": ("self.discriminator,", lambda trainer: setattr(trainer, "discriminator", nn.Linear(1, 1))),
    "a module in a list": (r"self.heads\[1\],", with_list),
    "a loss function": ("self.loss_func,", lambda trainer: setattr(trainer, "loss_func", nn.Bilinear(1, 1, 1))),
    "a parameter": ("self.temperature,", lambda trainer: setattr(trainer, "temperature", nn.Parameter(torch.ones(1)))),
    "a copy of the model": ("self.other,", with_copy_of_the_model),
    "a module in eval mode": ("self.discriminator,", with_module_in_eval_mode_that_is_optimized),
    "a parameter of the optimizer": ("self.optimizer,", with_parameter_in_the_optimizer),
}


@on_two_ranks
@pytest.mark.parametrize("case", TRAINED)
def test_what_would_drift_apart_is_named_before_anything_is_trained(case: str) -> None:
    """On several processes, with what to do about it."""
    attribute, give = TRAINED[case]
    trainer = trainer_with(give)
    with pytest.raises(UnsupportedConfigurationError, match=attribute):
        trainer.train(make_regression(8), 1, per_device_batch_size=2)
    assert trainer.num_updates_completed == 0


def with_much_that_is_not_trained(trainer: Any) -> None:
    """What trainers have beside the model, and no optimizer changes."""
    trainer.teacher_in_eval_mode = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)).eval()
    trainer.metric_with_a_network = nn.ModuleDict({"network": nn.Linear(1, 2).eval()})
    trainer.teacher = nn.Linear(4, 1).requires_grad_(False)
    trainer.metric = nn.Identity()
    trainer.part_of_model = trainer.model[0]
    trainer.average = AveragedModel(trainer.model)
    trainer.own_average = copy.deepcopy(trainer.model)
    trainer.average_in_a_module = nn.ModuleDict({"average": copy.deepcopy(trainer.model)})


@everywhere
def test_what_is_not_trained_may_be_there() -> None:
    """A teacher, frozen or in eval mode, metrics, a part of the model under another name, averages of the model."""
    trainer = trainer_with(with_much_that_is_not_trained, nn.Sequential(nn.Linear(4, 1)))
    trainer.train(make_regression(8), 1, per_device_batch_size=2)
    assert trainer.num_updates_completed == 8 // (2 * num_processes())


def test_one_process_trains_whatever_there_is() -> None:
    """Nothing can drift apart there."""
    for _, give in TRAINED.values():
        if give is not TRAINED["a loss function"][1]:
            trainer_with(give).train(make_regression(8), 1)


class Adversarial(Trainer[Any]):
    """Trains a generator to please a discriminator that is trained in the same steps."""

    discriminator: Any
    discriminator_optimizer: SGD

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        made = self.model(batch[0])
        self.discriminator_optimizer.zero_grad()
        torch.autograd.backward(self.discriminator(made.detach()).square().mean())
        self.discriminator_optimizer.step()
        return {"loss": self.discriminator(made).mean(), "model_outputs": made, "batch_size": len(made)}


@on_two_ranks
def test_a_module_that_is_wrapped_already_is_trained_equally() -> None:
    """It may have a loss and an optimizer of its own; without the wrapper it is refused."""
    torch.manual_seed(0)
    model, discriminator = nn.Linear(4, 1), nn.Linear(1, 1)
    trainer = Adversarial(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.discriminator = discriminator
    trainer.discriminator_optimizer = SGD(discriminator.parameters(), lr=0.1)
    with pytest.raises(UnsupportedConfigurationError, match=r"self.discriminator\b"):
        trainer.train(make_regression(8), 1, per_device_batch_size=2)
    trainer.discriminator = DistributedDataParallel(discriminator)
    trainer.train(make_regression(8), 2, per_device_batch_size=2)
    for module in (model, discriminator):
        assert len(set(gather_objects(str(list(module.parameters()))))) == 1
