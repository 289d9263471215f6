"""What the pages on differences from the original say of schedulers and fine-tuning: a test for each row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    ConfigurationError,
    SchedulerLike,
)
from pytorch_accelerated import Trainer, TrainerWithTimmScheduler
from pytorch_accelerated.callbacks import TrainerCallback
from pytorch_accelerated.finetuning import LayerGroup, ModelFreezer
from pytorch_accelerated.schedulers import CosineLrScheduler, StatefulSchedulerBase, WSDLrScheduler
from tests.launching import Launch
from tests.small_runs import linear, make_trainer, samples
from tests.support.models import weights_of


@pytest.mark.parametrize("wrong", [{"lr_min": 1.0}, {"num_warmup_epochs": 5}])
def test_impossible_schedule(wrong: dict[str, Any]) -> None:
    """A schedule that would rise instead of falling, or never fall, is an error when the run starts."""
    with pytest.raises(ConfigurationError):
        make_trainer().train(samples(4), 2, create_scheduler_fn=CosineLrScheduler.create_scheduler_fn(**wrong))


def test_stepping() -> None:
    """Stepped after updates it is refused, with the argument that helps; with it, it follows the loss."""
    trainer = make_trainer()
    with pytest.raises(ConfigurationError, match="watch_metric"):
        trainer.train(samples(4), 2, create_scheduler_fn=ReduceLROnPlateau)
    trainer.train(samples(4), 2, create_scheduler_fn=ReduceLROnPlateau, watch_metric="train_loss_epoch")
    assert isinstance(trainer.scheduler, ReduceLROnPlateau)
    assert trainer.scheduler.last_epoch == 2


def test_cosine_end() -> None:
    """With warm-up, the minimum is reached at the last update, and with cool-down where that begins; not before."""
    optimizer = torch.optim.SGD(linear().parameters(), lr=1.0)
    to_the_end = CosineLrScheduler(optimizer, 10, 10, num_warmup_epochs=2, lr_min=0.01)
    cooled = CosineLrScheduler(optimizer, 10, 10, num_warmup_epochs=2, num_cooldown_epochs=1, lr_min=0.01)
    assert to_the_end.get_updated_values(99)[0] > to_the_end.get_updated_values(100)[0] == 0.01
    assert cooled.get_updated_values(89)[0] > cooled.get_updated_values(90)[0] == 0.01
    assert to_the_end.get_updated_values(60) == pytest.approx([0.505])


class Told:
    """Notes what a scheduler of timm is told."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.told: list[tuple[str, int]] = []

    def step(self, epoch: int, metric: float | None = None) -> None:
        """Note the number of an epoch."""
        self.told.append(("epoch", epoch))

    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        """Note the number of updates."""
        self.told.append(("update", num_updates))

    def state_dict(self) -> dict[str, Any]:
        """Return no state."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take no state."""


def test_timm_counting() -> None:
    """Updates and epochs are counted when they are completed, from 1."""
    model = linear()
    trainer = TrainerWithTimmScheduler(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(samples(6), 2, per_device_batch_size=4, create_scheduler_fn=Told)
    assert isinstance(trainer.scheduler, Told)
    assert trainer.scheduler.told == [
        *[("update", 1), ("update", 2), ("epoch", 1)],
        *[("update", 3), ("update", 4), ("epoch", 2)],
    ]


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


def test_continuation_plan() -> None:
    """A continuation has its own length and minimum, and the rate of the schedule that it goes on from."""
    old = WSDLrScheduler(torch.optim.SGD(linear().parameters(), lr=1.0), total_steps=10, lr_min=0.1)
    new = WSDLrScheduler(
        torch.optim.SGD(linear().parameters(), lr=3.0),
        total_steps=40,
        decay_phase_ratio=0.5,
        lr_min=0.01,
        is_continuation_from_checkpoint=True,
    )
    new.load_state_dict(old.state_dict())
    assert new.get_decay_info()[0]["pre_decay_step"] == 20
    assert new.get_updated_values(0) == [1.0]
    assert new.get_updated_values(40) == [0.01]


def test_same_start() -> None:
    """Two runs of one trainer with one factory begin at the same rate."""
    starts: list[float] = []

    class NoteStart(TrainerCallback):
        @override
        def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            starts.append(trainer.optimizer.param_groups[0]["lr"])

    trainer = make_trainer(Trainer, NoteStart)
    for _ in range(2):
        trainer.train(samples(16), 2, create_scheduler_fn=CosineLrScheduler.create_scheduler_fn())
    assert starts == [1e-4, 1e-4]


def test_other_schedule() -> None:
    """A scheduler that was assigned for an optimizer that has been replaced is an error, and nothing is trained."""
    trainer = make_trainer()
    weight = weights_of(trainer.get_model())
    trainer.scheduler = ExponentialLR(torch.optim.SGD(trainer.model.parameters(), lr=0.1), gamma=0.5)
    with pytest.raises(ConfigurationError, match="another optimizer"):
        trainer.train(samples(4), 1)
    assert torch.equal(weights_of(trainer.get_model()), weight)


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


def test_wrong_number() -> None:
    """Two values for one parameter group are an error that leaves the group as it is."""

    class TwoValues(StatefulSchedulerBase):
        @override
        def get_updated_values(self, num_updates: int) -> list[float]:
            return [0.5, 0.25]

    optimizer = torch.optim.SGD(linear().parameters(), lr=0.1)
    scheduler = TwoValues(optimizer)
    with pytest.raises(ConfigurationError, match="2 values"):
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_lasting_eval() -> None:
    """What was frozen in eval mode is in eval mode in each epoch, until it is unfrozen."""
    modes: list[bool] = []

    class NoteMode(TrainerCallback):
        @override
        def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            modes.append(dropout.training)

    dropout = nn.Dropout(0.5)
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), dropout), nn.Linear(2, 1)).double()
    freezer = ModelFreezer(model)
    freezer.freeze(set_modules_as_eval=True)
    trainer = make_trainer(Trainer, NoteMode, model=model)
    trainer.train(samples(4), 2, eval_dataset=samples(4))
    freezer.unfreeze()
    trainer.train(samples(4), 1)
    assert modes == [False, False, True]


def test_freezer_range() -> None:
    """An index that is too large says how many layer groups there are."""
    with pytest.raises(IndexError, match="has 2"):
        ModelFreezer(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))).freeze(to_index=2)


def test_on_the_model() -> None:
    """A parameter beside the layers is frozen with the first of them."""

    class WithToken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(2, 2), nn.Linear(2, 1)
            self.token = nn.Parameter(torch.zeros(2))

    model = WithToken()
    ModelFreezer(model).freeze(to_index=0)
    assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == [
        "token",
        "layer.weight",
        "layer.bias",
    ]


def test_left_out_of_groups() -> None:
    """An override of ``get_layer_groups`` that loses a parameter is an error that names it; others are honoured."""

    class AllButTheLast(ModelFreezer):
        @override
        def get_layer_groups(self) -> list[LayerGroup]:
            return super().get_layer_groups()[:-1]

    class Backwards(ModelFreezer):
        @override
        def get_layer_groups(self) -> list[LayerGroup]:
            return super().get_layer_groups()[::-1]

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with pytest.raises(ValueError, match=r"without 1\.weight, 1\.bias"):
        AllButTheLast(model).freeze()
    Backwards(model).freeze()
    assert [parameter.requires_grad for parameter in model.parameters()] == [True, True, False, False]
