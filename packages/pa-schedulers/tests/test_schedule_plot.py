"""The preview of a schedule: it is what the optimizer of a run gets, and it can be drawn."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from typing_extensions import override

from pa_core import Trainer, TrainerPlaceholderValues
from pa_core.distributed import num_processes
from pa_core.testing import make_regression
from pa_core.types import SchedulerLike
from pa_schedulers import CosineLrScheduler, SchedulerBase, StatefulSchedulerBase, WSDLrScheduler, plot_schedule
from tests.launching import Launch

EPOCHS = TrainerPlaceholderValues.NUM_EPOCHS
UPDATES = TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
BATCHES = TrainerPlaceholderValues.TRAIN_DATALOADER_LEN
EVAL_BATCHES = TrainerPlaceholderValues.EVAL_DATALOADER_LEN


class GrowWeightDecay(StatefulSchedulerBase):
    """Multiplies the weight decay that is in force."""

    def __init__(self, optimizer: Optimizer, factor: float) -> None:
        super().__init__(optimizer, param_group_field="weight_decay")
        self.factor = factor

    @override
    def get_updated_values(self, num_updates: int) -> list[float] | None:
        present = [group["weight_decay"] for group in self.optimizer.param_groups]
        return None if num_updates % 3 else [value * self.factor for value in present]


def warmup_and_cosine(optimizer: Optimizer) -> SequentialLR:
    """Two schedulers of torch, one after the other."""
    warmup = LinearLR(optimizer, start_factor=0.1, total_iters=3)
    return SequentialLR(optimizer, [warmup, CosineAnnealingLR(optimizer, T_max=9)], milestones=[3])


@dataclass(frozen=True)
class Case:
    """A factory, and the field that its scheduler schedules."""

    factory: Callable[[Optimizer], SchedulerLike]
    field: str = "lr"


one_cycle = partial(OneCycleLR, max_lr=[0.5, 0.25], epochs=EPOCHS, steps_per_epoch=UPDATES)
CASES = {
    "cosine": Case(CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1, num_cooldown_epochs=1)),
    "half a cosine": Case(CosineLrScheduler.create_scheduler_fn(total_num_epochs=EPOCHS * 2)),
    "two checkpoints": Case(WSDLrScheduler.create_scheduler_fn(EPOCHS * 2, decay_phase_ratio=0.3, num_checkpoints=2)),
    "wsd": Case(WSDLrScheduler.create_scheduler_fn(num_warmup_epochs=0.5, decay_phase_ratio=0.3, num_checkpoints=3)),
    "weight decay": Case(partial(GrowWeightDecay, factor=2.0), "weight_decay"),
    "one cycle": Case(one_cycle),
    "momentum of one cycle": Case(one_cycle, "momentum"),
    "steps": Case(partial(StepLR, step_size=BATCHES // 2, gamma=0.5)),
    "arithmetic": Case(partial(CosineAnnealingLR, T_max=EPOCHS * UPDATES - EVAL_BATCHES)),
    "function": Case(partial(LambdaLR, lr_lambda=lambda step: 1 / (1 + step))),
    "sequence": Case(warmup_and_cosine),
}


def two_groups(model: nn.Linear) -> SGD:
    """Weights and bias of a model, each with values of its own."""
    groups = [{"params": [model.weight], "lr": 0.1, "weight_decay": 0.01}, {"params": [model.bias], "lr": 0.02}]
    return SGD(groups, momentum=0.9, weight_decay=0.001)


def values_in_a_run(case: Case, max_num_train_steps: int | None = None) -> list[tuple[float, ...]]:
    """Train, and return what the optimizer found in its groups at each of its steps."""
    model = nn.Linear(4, 1)
    optimizer = two_groups(model)
    used: list[tuple[float, ...]] = []

    def note(stepped: Optimizer, args: Any, kwargs: Any) -> None:
        used.append(tuple(group[case.field] for group in stepped.param_groups))

    optimizer.register_step_pre_hook(note)
    trainer: Trainer[nn.Linear] = Trainer(model, nn.MSELoss(), optimizer, callbacks=[])
    trainer.train(
        make_regression(50),
        num_epochs=3,
        eval_dataset=make_regression(16),
        per_device_batch_size=8 // num_processes(),
        gradient_accumulation_steps=2,
        max_num_train_steps=max_num_train_steps,
        create_scheduler_fn=case.factory,
    )
    assert trainer.run_config.num_update_steps_per_epoch == 4
    return used


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_rows_are_what_the_optimizer_gets(case: Case) -> None:
    """Each update of a run with accumulation uses the values of its row, on one process as on two ranks."""
    optimizer = two_groups(nn.Linear(4, 1))

    rows = plot_schedule(
        case.factory,
        optimizer,
        num_epochs=3,
        num_update_steps_per_epoch=4,
        field=case.field,
        train_dataloader_len=7,
        eval_dataloader_len=2,
    )

    assert [row.values for row in rows] == values_in_a_run(case)
    assert len({row.values for row in rows}) > 1
    assert [row.update for row in rows] == list(range(1, 13))
    assert [row.epoch for row in rows] == [1] * 4 + [2] * 4 + [3] * 4


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_run_that_is_limited_in_updates() -> None:
    """A limit decides how many epochs the schedule has, as in a run, and where the rows end."""
    case = CASES["cosine"]
    optimizer = two_groups(nn.Linear(4, 1))

    rows = plot_schedule(case.factory, optimizer, 100, 4, max_num_train_steps=10)

    assert [row.values for row in rows] == values_in_a_run(case, max_num_train_steps=10)
    assert len(rows) == 10


def test_the_optimizer_is_left_as_it_is() -> None:
    """Neither its groups nor its methods are touched, and no parameter is trained."""
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    optimizer = Adam([("weight", parameter)], lr=torch.tensor(0.5), foreach=False)
    groups = repr(optimizer.param_groups)

    rows = plot_schedule(partial(StepLR, step_size=1, gamma=0.5), optimizer, 1, 3)

    assert [row.values for row in rows] == [(0.5,), (0.25,), (0.125,)]
    assert repr(optimizer.param_groups) == groups
    assert "step" not in vars(optimizer)
    assert optimizer.state == {}
    assert torch.equal(parameter, torch.ones(3))


def test_an_optimizer_that_was_scheduled_before_starts_as_in_a_second_run() -> None:
    """The initial rate that the groups remember is where the next run, and its rows, begin."""
    optimizer = two_groups(nn.Linear(4, 1))
    CosineLrScheduler(optimizer, 1, 10, num_warmup_epochs=1).step()

    rows = plot_schedule(CosineLrScheduler.create_scheduler_fn(), optimizer, 2, 2)

    assert rows[0].values == (0.1, 0.02)


def _texts(picture: Path) -> list[str]:
    """Return every text in an SVG: matplotlib writes each as a comment before its outlines."""
    return re.findall(r"<!-- (.*?) -->", picture.read_text())


def _curves(picture: Path) -> int:
    return len(
        re.findall(r'<path d="[^"]*" clip-path="[^"]*" style="fill: none; stroke: #(?!e6e6e6)', picture.read_text())
    )


def test_the_picture_has_a_curve_for_each_group(tmp_path: Path) -> None:
    """With a path the rows are drawn too, with the names of the field and of the groups; folders are made."""
    optimizer = two_groups(nn.Linear(4, 1))
    draw = partial(plot_schedule, partial(GrowWeightDecay, factor=1.001), optimizer, 100, 40, field="weight_decay")

    rows = draw(path=tmp_path / "figures" / "schedule.svg")
    draw(path=tmp_path / "schedule.png")

    assert rows == draw()
    texts = _texts(tmp_path / "figures" / "schedule.svg")
    assert {"weight_decay", "optimizer updates", "group 0", "group 1", "4k"} <= set(texts)
    assert _curves(tmp_path / "figures" / "schedule.svg") == 2
    assert (tmp_path / "schedule.png").read_bytes().startswith(b"\x89PNG")
    plot_schedule(partial(StepLR, step_size=1), SGD([nn.Parameter(torch.ones(1))], lr=0.1), 1, 1, tmp_path / "one.svg")
    assert "group 0" not in _texts(tmp_path / "one.svg")  # nothing is to be told apart


SCRIPT = """
import sys
import torch
from torch.optim.lr_scheduler import StepLR
from pa_schedulers import plot_schedule

def draw(*path):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    return plot_schedule(lambda optimizer: StepLR(optimizer, step_size=1), optimizer, 1, 2, *path)

assert [row.update for row in draw()] == [1, 2]
assert "matplotlib" not in sys.modules
sys.modules["matplotlib"] = None
try:
    draw(sys.argv[1])
except ImportError as error:
    print(error)
del sys.modules["matplotlib"]
draw(sys.argv[2])
assert "matplotlib.pyplot" not in sys.modules  # which would choose a backend
"""


def test_matplotlib_is_needed_for_the_picture_alone(launch: Launch) -> None:
    """Without it there are rows, and drawing says what to install; with it, its global state is left alone."""
    launched = launch(SCRIPT, "without.png", "with.png")

    assert (
        launched.output == 'Drawing a schedule needs matplotlib. Install it with: pip install "pa-schedulers[plot]"\n'
    )
    assert launched.status == 0
    assert [path.name for path in launch.folder.glob("*.png")] == ["with.png"]


class Stateless(SchedulerBase):
    """Is told the number of updates, which ``step()`` is not."""

    @override
    def get_updated_values(self, num_updates: int) -> float:
        return 1.0


def forget_to_return(_optimizer: Optimizer) -> None:
    """Forgets to return the scheduler that it might have made."""


def test_what_has_no_schedule_is_refused() -> None:
    """A scheduler in the place of its factory, or one that needs more than ``step()``, is an error that says so."""
    optimizer = two_groups(nn.Linear(4, 1))
    no_factories: dict[str, Any] = {
        "must be a function that takes the optimizer": StepLR(two_groups(nn.Linear(4, 1)), step_size=1),
        "A ReduceLROnPlateau cannot be drawn": ReduceLROnPlateau,
        "A Stateless cannot be drawn": Stateless,
        "A NoneType cannot be drawn": forget_to_return,
    }
    for message, factory in no_factories.items():
        with pytest.raises(TypeError, match=re.escape(message)):
            plot_schedule(factory, optimizer, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"num_epochs": 0}, "num_epochs must be .* got 0"),
        ({"num_update_steps_per_epoch": 2.5}, "num_update_steps_per_epoch must be .* got 2.5"),
        ({"max_num_train_steps": 0}, "max_num_train_steps must be .* got 0"),
        ({"field": "learning_rate"}, "'learning_rate'.*lr, maximize, momentum"),
        ({"field": "foreach"}, "'foreach' .* must be a single number, got None"),
        ({"create_scheduler_fn": partial(StepLR, step_size=BATCHES)}, "values for num_epochs, num_update"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], named: str) -> None:
    """A count, a field or a placeholder that cannot work is named."""
    fitting: dict[str, Any] = {
        "create_scheduler_fn": partial(StepLR, step_size=1),
        "optimizer": two_groups(nn.Linear(4, 1)),
        "num_epochs": 1,
        "num_update_steps_per_epoch": 1,
    }

    with pytest.raises(ValueError, match=named):
        plot_schedule(**{**fitting, **arguments})
