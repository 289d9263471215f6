"""What a script does that the run does, too: looked at in the first updates of a run, and at the end of epochs."""

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
"""What happens between two steps shows in the second of them."""


class SchedulerPositions:
    """Finds schedulers that were stepped by somebody else than the run.

    Args:
        schedulers: The schedulers that the run steps, by name. Schedulers of torch tell how often they were stepped.
        count: How often the run has stepped them so far.

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
        self._before = {name: (one, int(one.last_epoch)) for name, one in schedulers.items() if _counts_steps(one)}
        self._count = count

    def require(self, count: int, when: str) -> None:
        """Raise an error for a scheduler that was stepped more often than by the run.

        Args:
            count: How often the run has stepped them.
            when: When the run steps them, for the message.

        Raises:
            ConfigurationError: There is one.
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
    """Whether it is one of torch's, or has the ``step`` of one: others may count anything."""
    step = getattr(type(scheduler), "step", None)
    return getattr(step, "__module__", "") == "torch.optim.lr_scheduler" and hasattr(scheduler, "last_epoch")


class EarlierGradients:
    """Gradients of earlier batches of an update, which nobody may set to zeros before its step.

    Their values are read only if somebody has changed all of them in place.

    Example:
        >>> weight = torch.ones(1, requires_grad=True)
        >>> weight.square().sum().backward()
        >>> earlier = EarlierGradients()
        >>> earlier.note([weight])
        >>> torch.optim.SGD([weight]).zero_grad(set_to_none=False)
        >>> earlier.are_zeros()
        True
    """

    def __init__(self) -> None:
        self._noted: list[tuple[torch.Tensor, int, torch.Tensor]] = []  # with versions, and whether any was not zero

    def note(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note the gradients after a backward pass.

        Args:
            parameters: What they belong to.
        """
        gradients = [one.grad for one in parameters if one.grad is not None]
        self._noted = [(one, version_of(one), _values(one).any()) for one in gradients if not is_sharded(one)]

    def forget(self) -> None:
        """Let go of the gradients, as they are stepped with."""
        self._noted = []

    def are_zeros(self) -> bool:
        """Whether all of them were changed since, to zeros."""
        if not self._noted or any(version_of(one) == before for one, before, _ in self._noted):
            return False
        return any(had_others for *_, had_others in self._noted) and not any(
            _values(one).any() for one, *_ in self._noted
        )


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


class FirstUpdates:
    """Looks at what the steps of a trainer do to gradients and optimizers in the first updates of a run.

    Args:
        part: What is trained.
        exchange: What exchanges its gradients.
        optimizers: The optimizers that must not be stepped between two updates; empty where the script has its own
            way to step them.
        looks_at_gradients: Whether the backward pass is the trainer's own.
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
            one.register_step_pre_hook(self._require_own_step) for one in optimizers if calls_step_hooks(one)
        ]

    def before_backward(self) -> None:
        """Note the gradients of a step that has run its own backward pass.

        Raises:
            ConfigurationError: A step has cleared gradients, or has run a backward pass in a reproducible run.
        """
        if not self._looks_at_gradients:
            return
        has_gradients = self._finds_gradients()
        self._exchange.require_no_gradients(self._part)
        if has_gradients and not self._has_gradients:
            self._of_step = [(one, one.grad.clone()) for one in self._part.parameters() if one.grad is not None]
        if self._has_gradients and (not has_gradients or self._earlier.are_zeros()):
            raise ConfigurationError(
                "A step has cleared the gradients of earlier batches of its update.",
                given="no gradients, or zeros, in the middle of an update of several batches",
                do="Remove zero_grad() from steps and callbacks: the trainer clears gradients after each update.",
            )

    def after_backward(self) -> None:
        """Note whether there are gradients.

        Raises:
            ConfigurationError: A step has run a backward pass through the loss that it has returned.
        """
        of_step, self._of_step = self._of_step, []
        if of_step and all(one.grad is not None and torch.equal(one.grad, 2 * by_step) for one, by_step in of_step):
            raise own_backward_pass()
        self._has_gradients = self._finds_gradients()
        if self._has_gradients:
            self._earlier.note(self._part.parameters())

    def begin_update(self) -> None:
        """From here on, the run steps the optimizers."""
        self._is_in_update = True

    def end_update(self) -> bool:
        """Note the end of an update; return whether there is another one to look at."""
        self._is_in_update = False
        self._earlier.forget()
        self._has_gradients = self._looks_at_gradients and self._part.has_gradients()  # those of the exchange are used
        self._updates_left -= 1
        return self._updates_left > 0

    def close(self) -> None:
        """Leave the optimizers alone."""
        while self._hooks:
            self._hooks.pop().remove()

    def _finds_gradients(self) -> bool:
        if not self._looks_at_gradients:
            return False
        return self._part.has_gradients() or self._exchange.holds_gradients(self._part)

    def _require_own_step(self, *_arguments: object) -> None:
        if not self._is_in_update:
            raise ConfigurationError(
                "A step or a callback has called optimizer.step(), which the trainer calls. Remove it: the trainer "
                "agrees, clips, steps and clears after the last batch of an update. To step in another way, override "
                "optimizer_step()."
            )


class OwnSteps:
    """Finds backward passes, steps and cleared gradients of a script that the run itself makes.

    Args:
        trainer: The trainer.
        setup: What the trainer is made with.
        parts: What the run trains, by the name of the optimizer.
        progress: How far the run has come.

    Attributes:
        first_updates: What looks at the steps of a trainer in the first updates of a run; None later.
    """

    def __init__(self, trainer: AnyTrainer, setup: Setup, parts: Mapping[str, Part], progress: Progress) -> None:
        self._trainer, self._exchange, self._parts, self._progress = trainer, setup.exchange, parts, progress
        self._hooks = setup.hooks
        self.first_updates: FirstUpdates | None = None
        self._positions: SchedulerPositions | None = None

    def start_run(self, contexts: ExitStack) -> None:
        """Leave the optimizers alone when the run ends, in whichever way.

        Args:
            contexts: What ends with the run.
        """
        contexts.callback(self.stop)

    def start_epoch(self, stepping: SchedulerStepping) -> None:
        """Look at the updates that follow, if they are the first ones of the run.

        Args:
            stepping: How the run steps schedulers.
        """
        if self._positions is not None:
            return
        if self._hooks.looks_at_gradients or self._hooks.looks_at_optimizer:
            part = next(iter(self._parts.values()))
            optimizers = [self._trainer.optimizer] if self._hooks.looks_at_optimizer else []
            self.first_updates = FirstUpdates(
                part, self._exchange, optimizers, looks_at_gradients=self._hooks.looks_at_gradients
            )
        self.note_positions(stepping)

    def stop(self) -> None:
        """Look at no further updates."""
        if self.first_updates is not None:
            self.first_updates.close()
        self.first_updates = None

    def note_positions(self, stepping: SchedulerStepping) -> None:
        """Note where schedulers are, and how often the run has stepped them; of several optimizers nobody knows.

        Args:
            stepping: How the run steps schedulers.
        """
        own = dict(self._trainer.named_schedulers()) if len(self._parts) == 1 else {}
        own.pop("scheduler" if self._hooks.steps_scheduler_itself else "", None)
        self._positions = SchedulerPositions(own, stepping.count(self._progress.updates, 0))

    def require_positions(self, stepping: SchedulerStepping) -> None:
        """Raise an error for a scheduler that was stepped more often than by the run.

        Args:
            stepping: How the run steps schedulers.

        Raises:
            ConfigurationError: There is one.
        """
        if self._positions is not None:
            self._positions.require(stepping.count(self._progress.updates, 0), str(stepping))
