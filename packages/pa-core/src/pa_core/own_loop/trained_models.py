"""The models of a custom loop for the time of its run: placed, wrapped, scheduled, and released at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from pa_core import _accelerate, compatibility, distributed
from pa_core.accumulation import Accumulation
from pa_core.distributed.agreement import Agreement
from pa_core.distributed.wrapping import ModelWrapping
from pa_core.own_loop.run_models import RunModels
from pa_core.own_loop.trained_model import TrainedModel
from pa_core.placeholders import create_scheduler
from pa_core.sharded_tensors import is_sharded_module
from pa_core.sharding.calls_for_all import CallsForAll
from pa_core.sharding.sharded_wrapping import wrapping_for
from pa_core.types import StatefulScheduler

__all__ = ["TrainedModels"]


class TrainedModels:
    """What the optimizers of a run train, by the name of the optimizer, and the models that none of them trains.

    Args:
        given: The models, optimizers and factories of schedulers.
        accelerator: The accelerator of the run.

    Attributes:
        by_name: What each optimizer trains.
        has_one_optimizer: Whether one optimizer trains all that is trained, so that a step of it is an update.
    """

    def __init__(self, given: RunModels, accelerator: _accelerate.AcceleratorLike) -> None:
        self._given = given
        self._accelerator = accelerator
        self._placed: list[ModelWrapping] = []
        is_only_model = len(given.models) == 1
        self.by_name: dict[str, TrainedModel] = {
            name: TrainedModel(
                name, given.trained_by(name), given.optimizers.get(name), accelerator, is_only_model=is_only_model
            )
            for name in given.optimizer_names
        }
        self.has_one_optimizer: bool = len(self.by_name) == 1

    def schedulers(self) -> dict[str, StatefulScheduler]:
        """Return the schedulers by the names of their optimizers; none before they are created."""
        return {name: one.scheduler for name, one in self.by_name.items() if one.scheduler is not None}

    def accumulations(self) -> dict[str, Accumulation]:
        """Return what the batches weigh in the updates of each optimizer."""
        return {name: one.accumulation for name, one in self.by_name.items()}

    def place(self) -> None:
        """Place and wrap what is trained, and only place other models, with the same weights on all processes."""
        trained = {id(one.module) for one in self.by_name.values()}
        for model in self._given.models.values():
            compatibility.require_usable_model(model)
            if id(model) not in trained:
                placing = wrapping_for(model, self._accelerator)
                self._placed.append(placing)
                placing.wrap(model, for_training=False)
                distributed.broadcast_weights(model)
        for one in self.by_name.values():
            one.wrap(num_carried=Agreement.NUM_VALUES)

    def make_optimizers(self) -> None:
        """Make the optimizers that factories are for, once what they train is placed."""
        self._given.make_optimizers()
        for name, one in self.by_name.items():
            one.optimizer = self._given.optimizers[name]

    def watch_steps(self) -> None:
        """From here on, raise an error for steps of the optimizers that the run does not make."""
        for one in self.by_name.values():
            one.watch_steps()

    def create_schedulers(self, values: Mapping[str, float]) -> None:
        """Create the schedulers of the optimizers that have a factory.

        Args:
            values: What ``TrainerPlaceholderValues`` stand for in this run.
        """
        for name, factory in self._given.factories.items():
            self.by_name[name].scheduler = create_scheduler(factory, self._given.optimizers[name], values)

    def call_for_all(self, call: Callable[[], None], *, is_empty: bool) -> None:
        """Call something in a step in which processes have no sample: they make its calls of sharded models, too.

        Args:
            call: What is called on the processes with a sample, such as the listeners of an event.
            is_empty: Whether this process has none.
        """
        sharded = [model for model in self._given.models.values() if is_sharded_module(model)]
        calls = CallsForAll(nn.ModuleList(sharded), _accelerate.device_of(self._accelerator))
        if not sharded and not is_empty:
            call()
        elif sharded and is_empty:
            calls.follow(teller=0)
        elif sharded:
            with calls.telling(teller=0):
                call()
                calls.end()

    def start_epoch(self) -> None:
        """Forget updates that were not finished."""
        for one in self.by_name.values():
            one.start_epoch()

    def broadcast_buffers(self) -> None:
        """Give the models of all processes the buffers of the first process."""
        for model in self._given.models.values():
            distributed.broadcast_buffers(model)

    def release(self) -> None:
        """Make the models what they were before the run; the script may step their optimizers again."""
        for one in self.by_name.values():
            one.stop_watching()
        for wrapping in [*self._placed, *(one.wrapping for one in self.by_name.values())]:
            wrapping.unwrap()
        self._placed.clear()
