"""What the pages on differences from the original say of schedulers and fine-tuning: a test for each row."""

from __future__ import annotations

import pytest
from torch.optim.lr_scheduler import ExponentialLR
from typing_extensions import override

from pa_core.types import SchedulerLike
from pytorch_accelerated import Trainer
from tests.launching import Launch
from tests.small_runs import make_trainer, samples

COUNTS = """
import torch
from functools import partial
from torch import nn
from torch.utils.data import TensorDataset
from pytorch_accelerated import Trainer

model = nn.Linear(1, 1)
trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=1.0), callbacks=[])
steps = []

def create(optimizer):
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    step = scheduler.step
    scheduler.step = lambda: (steps.append(1), step())
    return scheduler

data = TensorDataset(torch.zeros(16, 1), torch.zeros(16, 1))
trainer.train(data, 2, per_device_batch_size=2, create_scheduler_fn=create)
config = trainer.run_config
assert config.is_distributed
assert (config.num_update_steps_per_epoch, config.max_num_train_steps, len(steps)) == (4, 8, 8), (config, steps)
trainer.train(data, 1, per_device_batch_size=2, max_num_train_steps=6, create_scheduler_fn=create)
assert (trainer.run_config.num_epochs, trainer.run_history.clock.update, len(steps)) == (2, 6, 14)
"""


def test_counts_of_processes(launch: Launch) -> None:
    """Two processes make as many updates and steps of the scheduler as the numbers say, not twice or half as many."""
    launched = launch(COUNTS, ranks=2)
    assert launched.status == 0, launched.output


def test_create_without_factory() -> None:
    """An override that makes its scheduler itself is used; one that uses the factory is not called, with a warning."""

    class Own(Trainer):
        @override
        def create_scheduler(self) -> ExponentialLR:
            return ExponentialLR(self.optimizer, gamma=0.5)

    class OfFactory(Trainer):
        @override
        def create_scheduler(self) -> SchedulerLike | None:
            raise AssertionError(self.create_scheduler_fn)

    own = make_trainer(Own)
    own.train(samples(8), 1)
    assert isinstance(own.scheduler, ExponentialLR)
    with pytest.warns(UserWarning, match="OfFactory.create_scheduler"):
        make_trainer(OfFactory).train(samples(4), 1)
