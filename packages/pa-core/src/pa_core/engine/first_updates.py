"""Detecting steps of a script that the run also makes, in the first updates of a run and at the end of epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from pa_core._tensors import is_sharded
from pa_core._torch import calls_step_hooks, version_of
from pa_core.engine.any_trainer import AnyTrainer
from pa_core.engine.exchange import Exchange
from pa_core.engine.parts import Part
from pa_core.engine.scheduler_stepping import SchedulerStepping
from pa_core.engine.setup import Setup
from pa_core.errors import ConfigurationError
from pa_core.steps.default_step import own_backward_pass
from pa_core.training_state.progress import Progress

NUM_FIRST_UPDATES = 2
"""The number of updates that are checked; changes between two steps show in the second update."""


class SchedulerPositions:
    """Detects schedulers that the script steps in addition to the run.

    Args:
        schedulers: The schedulers that the run steps, by name. Torch's schedulers count their steps.
        count: The number of steps by the run so far.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)
        >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        >>> positions = SchedulerPositions({"scheduler": scheduler}, count=0)
        >>> optimizer.step()
        >>> scheduler.step()
        >>> positions.require(count=1, when="after each update")
    """

    def __init__(self, schedulers: Mapping[str, Any], count: int) -> None:
        self._before = {
            name: (scheduler, int(scheduler.last_epoch))
            for name, scheduler in schedulers.items()
            if _counts_steps(scheduler)
        }
        self._count = count

    def require(self, count: int, when: str) -> None:
        """Raise an error for a scheduler that the script has also stepped.

        Args:
            count: The number of steps by the run.
            when: When the run steps them, for the message.

        Raises:
            ConfigurationError: The script stepped a scheduler.
        """
        for name, (scheduler, before) in self._before.items():
            steps, own = int(scheduler.last_epoch) - before, count - self._count
            if steps > own:
                raise ConfigurationError(
                    f"The scheduler {name!r} is stepped by the script, too.",
                    given=f"{type(scheduler).__name__}, which was stepped {steps - own} times more than by the run",
                    do=f"Remove scheduler.step() from steps and callbacks: the run steps it {when}. To step it "
                    "yourself, override scheduler_step().",
                )


def _counts_steps(scheduler: object) -> bool:
    """Whether a scheduler has the ``step`` of a torch class; others may count differently."""
    step = getattr(type(scheduler), "step", None)
    return getattr(step, "__module__", "") == "torch.optim.lr_scheduler" and hasattr(scheduler, "last_epoch")


class EarlierGradients:
    """Detects gradients of earlier batches of an update that the script set to zeros before its step.

    Their values are read only if all of them were changed in place.

    Example:
        >>> weight = torch.ones(1, requires_grad=True)
        >>> weight.square().sum().backward()
        >>> earlier = EarlierGradients()
        >>> earlier.record([weight])
        >>> torch.optim.SGD([weight]).zero_grad(set_to_none=False)
        >>> earlier.are_zeros()
        True
    """

    def __init__(self) -> None:
        self._recorded: list[tuple[torch.Tensor, int, torch.Tensor]] = []  # with versions, and whether any was not 0

    def record(self, parameters: Iterable[torch.Tensor]) -> None:
        """Record the gradients after a backward pass.

        Args:
            parameters: The parameters of the gradients.
        """
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self._recorded = [
            (gradient, version_of(gradient), _values(gradient).any())
            for gradient in gradients
            if not is_sharded(gradient)
        ]

    def forget(self) -> None:
        """Drop the gradients, because a step uses them."""
        self._recorded = []

    def are_zeros(self) -> bool:
        """Whether all gradients were changed to zeros after they were recorded."""
        if not self._recorded or any(version_of(gradient) == before for gradient, before, _ in self._recorded):
            return False
        return any(had_others for *_, had_others in self._recorded) and not any(
            _values(gradient).any() for gradient, *_ in self._recorded
        )


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


class FirstUpdates:
    """Checks the effects of steps on gradients and optimizers in the first updates of a trainer's run.

    Args:
        part: The trained part.
        exchange: The exchange of its gradients.
        optimizers: The optimizers that must not be stepped between two updates; empty if the script has its own way to
            step them.
        looks_at_gradients: Whether only the trainer makes backward passes.
    """

    def __init__(
        self, part: Part, exchange: Exchange, optimizers: Iterable[Optimizer], *, looks_at_gradients: bool
    ) -> None:
        self._part = part
        self._exchange = exchange
        self._looks_at_gradients = looks_at_gradients
        self._updates_left = NUM_FIRST_UPDATES
        self._has_gradients = self._finds_gradients()
        self._of_step: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._earlier = EarlierGradients()
        self._is_in_update = False
        self._hooks: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._require_own_step)
            for optimizer in optimizers
            if calls_step_hooks(optimizer)
        ]

    def before_backward(self) -> None:
        """Record the gradients of a step that ran its own backward pass.

        Raises:
            ConfigurationError: A step cleared gradients, or ran a backward pass in a reproducible run.
        """
        if not self._looks_at_gradients:
            return
        self._exchange.require_no_gradients(self._part)
        has_gradients = self._finds_gradients()
        if has_gradients and not self._has_gradients:
            self._of_step = [
                (parameter, parameter.grad.clone())
                for parameter in self._part.parameters()
                if parameter.grad is not None
            ]
        if self._has_gradients and (not has_gradients or self._earlier.are_zeros()):
            raise ConfigurationError(
                "A step cleared the gradients of earlier batches of its update.",
                given="no gradients, or zeros, in the middle of an update of several batches",
                do="Remove zero_grad() from steps and callbacks: the trainer clears gradients after each update.",
            )

    def after_backward(self) -> None:
        """Record whether there are gradients.

        Raises:
            ConfigurationError: A step ran a backward pass through the loss that it returned.
        """
        of_step, self._of_step = self._of_step, []
        if of_step and all(
            parameter.grad is not None and torch.equal(parameter.grad, 2 * by_step) for parameter, by_step in of_step
        ):
            raise own_backward_pass()
        self._has_gradients = self._finds_gradients()
        if self._has_gradients:
            self._earlier.record(self._part.parameters())

    def begin_update(self) -> None:
        """Allow steps of the optimizers, which the run makes now."""
        self._is_in_update = True

    def end_update(self) -> bool:
        """End an update, and return whether to check another update."""
        self._is_in_update = False
        self._earlier.forget()
        self._has_gradients = self._looks_at_gradients and self._part.has_gradients()  # the exchange's are used
        self._updates_left -= 1
        return self._updates_left > 0

    def close(self) -> None:
        """Remove the hooks from the optimizers."""
        while self._hooks:
            self._hooks.pop().remove()

    def _finds_gradients(self) -> bool:
        if not self._looks_at_gradients:
            return False
        return self._part.has_gradients() or self._exchange.holds_gradients(self._part)

    def _require_own_step(self, *_arguments: object) -> None:
        if not self._is_in_update:
            raise ConfigurationError(
                "A step or a callback called optimizer.step(), which the trainer calls. Remove it: the trainer "
                "clips, steps and clears gradients after the last batch of an update. To step differently, override "
                "optimizer_step()."
            )


class OwnSteps:
    """Detects that a script itself runs backward passes, steps, or clears gradients, as the run already does.

    Args:
        trainer: The trainer.
        setup: The setup of the trainer.
        parts: The trained parts of the run, by the name of the optimizer.
        progress: The position of the run.

    Attributes:
        first_updates: The checks of the first updates of a trainer's run; None later.
    """

    def __init__(self, trainer: AnyTrainer, setup: Setup, parts: Mapping[str, Part], progress: Progress) -> None:
        self._trainer, self._exchange, self._parts, self._progress = trainer, setup.exchange, parts, progress
        self._hooks = setup.hooks
        self.first_updates: FirstUpdates | None = None
        self._positions: SchedulerPositions | None = None

    def start_run(self, contexts: ExitStack) -> None:
        """Remove the hooks from optimizers when the run ends.

        Args:
            contexts: The contexts that end with the run.
        """
        contexts.callback(self.stop)

    def start_epoch(self, stepping: SchedulerStepping) -> None:
        """Check the next updates, if they are the first updates of the run.

        Args:
            stepping: When the run steps schedulers.
        """
        if self._positions is not None:
            return
        if self._hooks.looks_at_gradients or self._hooks.looks_at_optimizer:
            part = next(iter(self._parts.values()))
            optimizers = [self._trainer.optimizer] if self._hooks.looks_at_optimizer else []
            self.first_updates = FirstUpdates(
                part, self._exchange, optimizers, looks_at_gradients=self._hooks.looks_at_gradients
            )
        self.record_positions(stepping)

    def stop(self) -> None:
        """Stop checking updates."""
        if self.first_updates is not None:
            self.first_updates.close()
        self.first_updates = None

    def record_positions(self, stepping: SchedulerStepping) -> None:
        """Record the positions of schedulers and the number of steps by the run, with a single optimizer.

        Args:
            stepping: When the run steps schedulers.
        """
        own = dict(self._trainer.named_schedulers()) if len(self._parts) == 1 else {}
        own.pop("scheduler" if self._hooks.steps_scheduler_itself else "", None)
        self._positions = SchedulerPositions(own, stepping.count(self._progress.updates, 0))

    def require_positions(self, stepping: SchedulerStepping) -> None:
        """Raise an error for a scheduler that the script has also stepped.

        Args:
            stepping: When the run steps schedulers.

        Raises:
            ConfigurationError: The script stepped a scheduler.
        """
        if self._positions is not None:
            self._positions.require(stepping.count(self._progress.updates, 0), str(stepping))
