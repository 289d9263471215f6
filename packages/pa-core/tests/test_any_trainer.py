"""What every trainer has, whoever writes its loop: offered once, and its private parts guarded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import cast

from pa_core import AnyTrainer, Trainer
from tests.small_runs import make_trainer


def test_what_every_trainer_offers_is_declared_once() -> None:
    """Documentation of a method is in one place, and what it does is the same for every kind of trainer."""
    public = {name for name in vars(AnyTrainer) if not name.startswith("_")}
    assert public & set(vars(Trainer)) == {"run_evaluation_epoch"}  # the trainer that has a loop says what it does


def test_a_mixin_may_be_abstract() -> None:
    """A class that is abstract by itself, or annotated as a trainer, can be mixed into one on either side."""

    class Logs(AnyTrainer):
        pass

    class Saves(ABC):
        @abstractmethod
        def save(self) -> None: ...

    for bases in ((Saves, Trainer), (Trainer, Saves), (Logs, Trainer), (Trainer, Logs)):
        make_trainer(cast("type[Trainer]", type("Mixed", bases, {"save": print})))
