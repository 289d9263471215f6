"""Callbacks that note what a run does, or do something in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from pa_core import AnyTrainer, TrainerCallback


class Notes(list[Any]):
    """What a test has noted in this process: a list of its own kind is not resumed."""


class OfThisProcess(TrainerCallback):
    """Notes down what this process does: it has no state that a resumed run would need, and says so."""

    @override
    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin without notes."""


class OfOneStart(TrainerCallback):
    """A callback whose attributes are no state of the run: each start has its own."""

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return nothing, so that training states leave the attributes alone."""
        return {}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Do nothing."""


class CountUpdates(TrainerCallback):
    """Counts updates from a number on; a part of training states."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self.count += 1

    @override
    def state_dict(self) -> dict[str, int]:
        """Return the number."""
        return {"count": self.count}

    @override
    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from there."""
        self.count = state_dict["count"]


class RatesUsed(TrainerCallback):
    """Notes the learning rate that each update is made with."""

    def __init__(self) -> None:
        self.rates: list[float] = Notes()

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.rates.append(trainer.optimizer.param_groups[0]["lr"])


class CallAt(TrainerCallback[Any]):
    """Calls something with the trainer in an event of a run: each time, or when so many updates are complete."""

    def __init__(self, event: str, call: Callable[[Any], object], update: int | None = None) -> None:
        def call_with_trainer(trainer: AnyTrainer, **_: Any) -> None:
            if update in (None, trainer.num_updates_completed):
                call(trainer)

        vars(self)[event] = call_with_trainer


class AlsoAt(CallAt):
    """The same, beside another one: two callbacks of one class are refused."""


class TellAt(TrainerCallback[Any]):
    """Calls something with the trainer, and with what callbacks are told in an event of a run, by name."""

    def __init__(self, event: str, call: Callable[[Any, Any], object]) -> None:
        def call_with_arguments(trainer: AnyTrainer, **told: Any) -> None:
            call(trainer, told)

        vars(self)[event] = call_with_arguments


class FailAt(CallAt):
    """Raises an error in an event of a run, when so many updates are complete."""

    def __init__(self, event: str, error: BaseException, update: int | None = None) -> None:
        def fail(_trainer: AnyTrainer) -> None:
            raise error

        super().__init__(event, fail, update)


class KilledError(Exception):
    """Stands for whatever ends a process."""


class KillAt(FailAt):
    """Ends a run as a process ends that is killed in an event, when so many updates are complete."""

    def __init__(self, update: int, event: str = "on_optimizer_step_end") -> None:
        super().__init__(event, KilledError(), update)
