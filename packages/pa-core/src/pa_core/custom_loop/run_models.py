"""The models of a custom loop by name, with their optimizers and schedules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from pa_core._accelerate import AcceleratorLike
from pa_core._attributes import temporarily
from pa_core._tensors import reshard
from pa_core.custom_loop.run_part import RunPart
from pa_core.distributed import broadcast_weights
from pa_core.engine.exchange import Exchange
from pa_core.errors import ConfigurationError
from pa_core.steps.input_checks import (
    check_kind_of_optimizer,
    check_optimizer,
    check_optimizer_factory,
    check_trainer_arguments,
    require_step_without_closure,
)
from pa_core.types import SchedulerFactory
from pa_core.user_warnings import warn_user
from pa_data.batches import is_mapping

MODEL, OPTIMIZER, SCHEDULER = "model", "optimizer", "scheduler"
"""The names of the model and optimizer of a run that has a single model and optimizer, as in a ``Trainer``."""


class RunModels:
    """The models that a script passes to its run, a single model or several by name, and their optimizers.

    Args:
        models: A module, or several modules by name.
        optimizers: An optimizer of all of them, or several, each by the name of the model that it trains; None if
            factories create them.
        factories: The factories of their schedulers: a factory for the only optimizer, or several by name.
        optimizer_factories: The factories of the optimizers, with the same structure as ``optimizers``.

    Attributes:
        models: The modules by name.
        optimizers: The optimizers by name, except those that factories will create.
        factories: The factories of schedulers by the name of the optimizer.
        optimizer_factories: The factories of optimizers by the name of the optimizer.
        optimizer_names: The names of all optimizers, in their order.
        whole: The only module, or a module of all of them.

    Raises:
        ArgumentTypeError: A value is not a module, or not an optimizer.
        ConfigurationError: A name is unknown, or an optimizer would train nothing or needs a closure.
    """

    def __init__(
        self,
        models: nn.Module | Mapping[str, nn.Module],
        optimizers: Optimizer | Mapping[str, Optimizer] | None,
        factories: SchedulerFactory[Any] | Mapping[str, SchedulerFactory[Any]] | None,
        optimizer_factories: Callable[[Any], Optimizer] | Mapping[str, Callable[[Any], Optimizer]] | None = None,
    ) -> None:
        self.models: dict[str, nn.Module] = _by_name(models, MODEL)
        self.factories: dict[str, SchedulerFactory[Any]] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.optimizer_factories: dict[str, Callable[[Any], Optimizer]] = {}
        if optimizer_factories is None:
            self.optimizers = _by_name(optimizers, OPTIMIZER)
        else:
            self.optimizer_factories = _by_name(optimizer_factories, OPTIMIZER)
            for factory in self.optimizer_factories.values():
                check_optimizer_factory(factory, optimizers)
        self.optimizer_names: list[str] = [*self.optimizers, *self.optimizer_factories]
        self._are_named = isinstance(optimizers if optimizer_factories is None else optimizer_factories, Mapping)
        for model in self.models.values():
            check_trainer_arguments(model, None, None)
            reshard(model)  # a script may have called it, and the optimizer has the pieces
        for optimizer in self.optimizers.values():
            check_trainer_arguments(next(iter(self.models.values())), None, optimizer)
        self.whole: nn.Module = models if isinstance(models, nn.Module) else nn.ModuleDict(self.models)
        if self._are_named:
            _require_known("optimizer", self.optimizer_names, "model", self.models)
        for name, optimizer in self.optimizers.items():
            self._check_optimizer(name, optimizer)
        if factories is not None:
            if len(self.optimizer_names) > 1 and not isinstance(factories, Mapping):
                raise ConfigurationError(
                    "There are several optimizers, and a single create_scheduler_fn. Write create_scheduler_fn={name: "
                    f"factory}}, with names among {', '.join(map(repr, self.optimizer_names))}."
                )
            self.factories = _by_name(factories, self.optimizer_names[0])
            _require_known("scheduler", self.factories, "optimizer", self.optimizer_names)

    def _check_optimizer(self, name: str, optimizer: Optimizer) -> None:
        check_optimizer(self.trained_by(name), optimizer)
        require_step_without_closure(optimizer)

    @contextmanager
    def dry_run(self) -> Generator[None]:
        """Remove the optimizers that were created within the context when it ends."""
        with temporarily(self, optimizers=dict(self.optimizers)):
            yield

    def make_optimizers(self) -> None:
        """Call the optimizer factories with the current models.

        Raises:
            ArgumentTypeError: A factory did not return an optimizer.
            ConfigurationError: An optimizer would train nothing or needs a closure.
        """
        for name, factory in self.optimizer_factories.items():
            optimizer = factory(self.trained_by(name))
            check_kind_of_optimizer(optimizer)
            self._check_optimizer(name, optimizer)
            self.optimizers[name] = optimizer

    def make_parts(self, accelerator: AcceleratorLike, exchange: Exchange) -> dict[str, RunPart]:
        """Return the part that each optimizer trains, by its name.

        Args:
            accelerator: The accelerator of the run.
            exchange: The exchange of gradients.
        """
        is_only = len(self.models) == 1
        return {
            name: RunPart(name, self.trained_by(name), accelerator, is_only_model=is_only, exchange=exchange)
            for name in self.optimizer_names
        }

    def place(
        self, parts: Mapping[str, RunPart], exchange: Exchange, place: Callable[[nn.Module, bool], nn.Module]
    ) -> None:
        """Place all models, with the same weights on all processes, and begin to train.

        Args:
            parts: The part that each optimizer trains.
            exchange: The exchange of gradients.
            place: Called with a model and whether it is trained; returns the module that the script calls.
        """
        trained = {id(module) for part in parts.values() for module in part.module.modules()}
        for model in self.models.values():
            if place(model, id(model) in trained) is not model:
                warn_user(
                    "Accelerate is configured to compile models, but a custom training loop calls them uncompiled. "
                    "Compile the model yourself before it is passed to Run: model = torch.compile(model)."
                )
            if id(model) not in trained:
                broadcast_weights(model)
        for name, part in parts.items():
            part.start({name: part.module})
            exchange.add(part, self.models, overlaps=False)

    def trained_by(self, name: str) -> nn.Module:
        """Return the module that an optimizer trains: the model of its name, or all models for a single optimizer."""
        return self.models[name] if self._are_named else self.whole

    def name_of_scheduler(self, optimizer: str) -> str:
        """Return the name that the scheduler of an optimizer has in training states."""
        return optimizer if self._are_named else SCHEDULER


def _by_name(given: Any, name: str) -> dict[str, Any]:
    if isinstance(given, nn.Module) or not is_mapping(given):
        return {name: given}
    named = dict(given)
    if not named or not all(isinstance(name, str) and name.isidentifier() for name in named):
        raise ConfigurationError(
            "Models, optimizers and schedulers need names.",
            given=f"the names {', '.join(map(repr, named)) or 'of none'}",
            expected='letters, digits and underscores, for example "generator"',
            do='Write, for example, {"generator": generator, "discriminator": discriminator}.',
        )
    return named


def _require_known(kind: str, named: Iterable[str], owner: str, known: Collection[str]) -> None:
    unknown = [name for name in named if name not in known]
    if unknown:
        raise ConfigurationError(
            f"The name of the {kind} is not the name of a {owner}.",
            given=f"the {kind} {unknown[0]!r}",
            expected=f"a name among {', '.join(map(repr, known))}",
            do=f"Give each {kind} the name of its {owner}.",
        )
