"""What every trainer has, whoever writes its loop: offered once, and its private parts guarded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, cast

import pytest
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_core.errors import OverrideError
from tests.small_runs import make_trainer, samples


def test_what_every_trainer_offers_is_declared_once() -> None:
    """Documentation of a method is in one place, and what it does is the same for every kind of trainer."""
    public = {name for name in vars(AnyTrainer) if not name.startswith("_")}
    assert public & set(vars(Trainer)) == {"run_evaluation_epoch"}  # the trainer that has a loop says what it does


@pytest.mark.parametrize("name", ["_engine", "_loop", "_lifecycle", "_forward", "_run_epoch"])
def test_private_parts_are_guarded_wherever_they_are_defined(name: str) -> None:
    """A method that would replace a part of the engine is refused where its class is defined."""
    with pytest.raises(OverrideError, match=name):
        type("Mine", (Trainer,), {name: object()})


def test_a_mixin_may_be_abstract() -> None:
    """A class that is abstract by itself, or annotated as a trainer, can be mixed into one on either side."""

    class Logs(AnyTrainer):
        pass

    class Saves(ABC):
        @abstractmethod
        def save(self) -> None: ...

    for bases in ((Saves, Trainer), (Trainer, Saves), (Logs, Trainer), (Trainer, Logs)):
        make_trainer(cast("type[Trainer]", type("Mixed", bases, {"save": print})))


def test_progress_is_read_and_not_set() -> None:
    """Updates and epochs are counted by the loop alone."""
    trainer: Any = make_trainer()
    for name in ("num_updates_completed", "num_epochs_completed", "was_complete"):
        with pytest.raises(AttributeError):
            setattr(trainer, name, 1)


def test_a_run_that_failed_leaves_the_trainer_as_before_it() -> None:
    """After an exception the trainer trains again, with counters of the new run and no gradients of the old one."""

    class FailsOnce(TrainerCallback):
        def __init__(self) -> None:
            self.failures = 1

        @override
        def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            if self.failures:
                self.failures -= 1
                raise RuntimeError("once")

    trainer = make_trainer(Trainer, FailsOnce())
    model = trainer.model
    with pytest.raises(RuntimeError, match="once"):
        trainer.train(samples(8), 1, per_device_batch_size=4)
    assert trainer.model is model
    assert all(parameter.grad is None for parameter in model.parameters())
    trainer.train(samples(8), 1, per_device_batch_size=4)
    assert (trainer.num_updates_completed, trainer.num_epochs_completed) == (2, 1)
