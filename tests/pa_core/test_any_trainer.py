"""What every trainer has, whoever writes its loop: offered once, and its private parts guarded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, cast

import pytest

from pa_core import AnyTrainer, Trainer
from pa_core.errors import OverrideError
from tests.small_runs import make_trainer


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
