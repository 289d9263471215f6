"""What a subclass sets never takes the place of a private part of the trainer unnoticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from typing_extensions import override

from pa_core import Run, Trainer, TrainerCallback
from pa_core.errors import OverrideError
from tests.small_runs import make_trainer, samples

PARTS = sorted(name for name in vars(make_trainer()) if name.startswith("_"))


class Bar:
    """What a subclass may well keep in an attribute: a progress bar, a counter, a queue."""

    def update(self) -> None:
        """Advance."""


def train(trainer: Trainer) -> None:
    """Run two epochs."""
    trainer.train(samples(8), 2, samples(4), per_device_batch_size=4)


def test_the_guard_knows_every_private_attribute_of_a_trainer() -> None:
    """A private attribute that the trainer sets is declared in the body of its class, or the guard would miss it."""

    def step_size(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.StepLR(optimizer, 1)

    trainer = make_trainer()
    trainer.train(samples(8), 1, samples(4), per_device_batch_size=4, create_scheduler_fn=step_size)
    declared = {name for cls in type(trainer).__mro__ for name in vars(cls).get("__annotations__", {})}
    assert {name for name in vars(trainer) if name.startswith("_")} <= declared


@pytest.mark.parametrize("name", [name for name in PARTS if name != "_private_parts"])
def test_a_part_that_the_constructor_of_a_subclass_replaces_is_named(name: str) -> None:
    """An attribute that is set after ``super().__init__()`` is refused when a run begins, by its name."""

    class Mine(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            setattr(self, name, 0.5)

    trainer = make_trainer(Mine)
    with pytest.raises(OverrideError, match=rf"Mine\.{name}, of type float"):
        train(trainer)
    with pytest.raises(OverrideError, match=rf"Mine\.{name}, of type float"):
        trainer.evaluate(samples(4))


@pytest.mark.parametrize("name", PARTS)
def test_an_attribute_that_the_trainer_would_replace_is_named(name: str) -> None:
    """An attribute that is set before ``super().__init__()`` is refused where the trainer is created."""

    class Mine(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            setattr(self, name, None)
            super().__init__(*args, **kwargs)

    with pytest.raises(OverrideError, match=rf"Mine\.{name}, of type NoneType(.|\n)*Rename {name}"):
        make_trainer(Mine)


@pytest.mark.parametrize("hook", ["training_run_start", "train_epoch_start"])
def test_a_part_that_a_hook_replaces_is_named_when_the_epoch_begins(hook: str) -> None:
    """A hook that keeps something of a run under the name of a part is told of it too."""

    def start(trainer: Trainer) -> None:
        trainer._progress = Bar()  # type: ignore[assignment]  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

    trainer = make_trainer(type("Mine", (Trainer,), {hook: start}))
    with pytest.raises(OverrideError, match=r"Mine\._progress, of type Bar"):
        train(trainer)


def test_a_name_of_a_part_is_refused_in_the_body_of_a_class_too() -> None:
    """A method or a class attribute of such a name would be hidden by the part."""
    with pytest.raises(OverrideError, match=r"A method would replace(.|\n)*Mine\._progress"):
        type("Mine", (Trainer,), {"_progress": train})
    with pytest.raises(OverrideError, match=r"An attribute has the name(.|\n)*Mine\._running"):
        type("Mine", (Trainer,), {"_running": False})


def test_a_run_notices_a_replaced_part_as_its_block_begins() -> None:
    """The parts of a loop of one's own are guarded as well."""
    model = nn.Linear(1, 1)
    run = Run(model, torch.optim.SGD(model.parameters(), lr=0.1), samples(4), num_epochs=1)
    run._loaders = Bar()  # type: ignore[assignment]  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    with pytest.raises(OverrideError, match=r"Run\._loaders, of type Bar"):
        run.__enter__()


def test_attributes_of_a_subclass_are_its_own() -> None:
    """Private attributes of other names may be set and changed anywhere, also in what the constructor calls."""

    class Counts(TrainerCallback):
        @override
        def on_init_end(self, trainer: Any, **kwargs: Any) -> None:
            trainer._of_callback = 0

    class Mine(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._before: Any = None
            super().__init__(*args, **kwargs)
            self._after: Any = None

        @override
        def _create_callback_handler(self, callbacks: Any) -> Any:
            self._within: Any = 0
            return super()._create_callback_handler(callbacks)

        @override
        def train_epoch_start(self) -> None:
            super().train_epoch_start()
            self._before = self._after = self._within = self._of_callback = Bar()

    trainer = make_trainer(Mine, Counts())
    train(trainer)
    train(trainer)
    of_subclass = "_before", "_after", "_within", "_of_callback"
    assert all(isinstance(vars(trainer)[name], Bar) for name in of_subclass)
