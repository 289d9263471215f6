"""The models of a custom loop for the time of its run: placed, wrapped, scheduled, and released at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from pa_core import _accelerate, distributed
from pa_core.own_loop.run_models import RunModels
from pa_core.own_loop.trained_model import TrainedModel
from pa_core.placeholders import create_scheduler
from pa_core.types import StatefulScheduler
from pa_core.user_warnings import warn_user

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
        return {name: scheduler for one in self.by_name.values() for name, scheduler in one.schedulers.items()}

    def start(self, place: Callable[[nn.Module, bool], nn.Module]) -> None:
        """Place all models, with the same weights on all processes, and begin to train.

        Args:
            place: Called with a model and whether it is trained, returns what is called.
        """
        trained = {id(module) for one in self.by_name.values() for module in one.module.modules()}
        for model in self._given.models.values():
            if place(model, id(model) in trained) is not model:
                warn_user(
                    "Accelerate is told to compile models, and a custom training loop calls them as they are. "
                    "Compile the model yourself before it is passed to Run: model = torch.compile(model)."
                )
            if id(model) not in trained:
                distributed.broadcast_weights(model)
        for one in self.by_name.values():
            one.start({one.name: one.module})

    def make_optimizers(self) -> None:
        """Make the optimizers that factories are for, once what they train is placed."""
        self._given.make_optimizers()
        for name, one in self.by_name.items():
            one.optimizers = {name: self._given.optimizers[name]}

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
            self.by_name[name].schedulers = {name: create_scheduler(factory, self._given.optimizers[name], values)}

    def start_epoch(self) -> None:
        """Forget updates that were not finished."""
        for one in self.by_name.values():
            one.start_epoch()

    def broadcast_buffers(self) -> None:
        """Give the models of all processes the buffers of the first process."""
        for model in self._given.models.values():
            distributed.broadcast_buffers(model)
