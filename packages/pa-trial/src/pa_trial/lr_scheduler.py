"""Learning-rate schedulers, and the batches after which they step."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from torch.optim.lr_scheduler import LRScheduler as TorchScheduler
from torch.optim.lr_scheduler import ReduceLROnPlateau

from pa_trial.errors import ArgumentTypeError, InvalidExperimentException


class LRScheduler:
    """A learning rate scheduler together with the times at which it is stepped.

    Trials need only its ``StepMode``, for ``context.wrap_lr_scheduler``. That method creates an ``LRScheduler`` and
    keeps it in ``context.lr_schedulers``; your trial keeps using the scheduler that it passed. You need to create one
    yourself only to look at a schedule.

    Args:
        scheduler: A torch scheduler, or an object with the methods ``step``, ``get_last_lr``, ``state_dict`` and
            ``load_state_dict``.
        step_mode: When it steps, a member of ``LRScheduler.StepMode``.
        frequency: With n, it steps after every n-th epoch, batch or optimizer step. The default, 1, steps after each.

    Attributes:
        scheduler: As passed.
        step_mode: As passed.
        frequency: As passed.

    Raises:
        ArgumentTypeError: ``step_mode`` is not a ``LRScheduler.StepMode``. The error is also a ``TypeError``.
        InvalidExperimentException: The frequency is less than 1, or a ``ReduceLROnPlateau``, which needs a metric, has
            a mode other than ``MANUAL_STEP``.

    Example:
        >>> import torch
        >>> from pa_trial import LRScheduler
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> halving = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        >>> scheduler = LRScheduler(halving, LRScheduler.StepMode.STEP_EVERY_EPOCH)
        >>> optimizer.step()
        >>> scheduler.step()
        >>> scheduler.get_last_lr()
        [0.05]
    """

    class StepMode(Enum):
        """When a scheduler is stepped; pass a member to ``context.wrap_lr_scheduler``, and see the example there.

        Attributes:
            STEP_EVERY_EPOCH: After every n-th epoch, with n the frequency.
            STEP_EVERY_BATCH: After every n-th batch. If gradients are aggregated over several batches, the steps for
                all these batches are made when the optimizer steps.
            MANUAL_STEP: Never automatically. Call ``step`` of your scheduler, for example in ``train_batch``.
            STEP_EVERY_OPTIMIZER_STEP: After every n-th step of the optimizer.
        """

        STEP_EVERY_EPOCH = 1
        STEP_EVERY_BATCH = 2
        MANUAL_STEP = 3
        STEP_EVERY_OPTIMIZER_STEP = 4

    def __init__(self, scheduler: TorchScheduler, step_mode: StepMode, frequency: int = 1) -> None:
        _check(scheduler, step_mode, frequency)
        self.scheduler = scheduler
        self.step_mode = step_mode
        self.frequency = frequency

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the scheduler, as torch's ``step`` does.

        ``fit`` calls it as many times as ``steps_due`` returns, so you need not call it. With ``MANUAL_STEP``, call
        ``step`` of the scheduler that you passed. See the example in `LRScheduler`.

        Args:
            args: Positional arguments of the scheduler's ``step``, such as the metric of a ``ReduceLROnPlateau``.
            kwargs: Keyword arguments of the scheduler's ``step``.
        """
        self.scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> Sequence[Any]:
        """Return the learning rates that the last step set, for example to log them.

        Before the first step, these are the initial rates. See the example in `LRScheduler`.

        Returns:
            A float for each parameter group of the optimizer, in their order.
        """
        return self.scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler, as its own ``state_dict`` does.

        ``fit`` calls it when it saves a checkpoint; you need not call it yourself.

        Returns:
            A dictionary for ``load_state_dict``; its keys depend on the class of the scheduler.
        """
        return self.scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that ``state_dict`` returned, as the scheduler's own ``load_state_dict`` does.

        ``fit`` calls it when it resumes from a checkpoint; you need not call it yourself.

        Args:
            state_dict: The state of a scheduler of the same class.
        """
        self.scheduler.load_state_dict(state_dict)

    def steps_due(self, batch_idx: int, aggregation_frequency: int, epoch_length: int) -> int:
        """Return the number of steps that the scheduler makes after a batch.

        ``fit`` calls it after each batch, and then calls ``step`` that many times. Call it yourself to look at a
        schedule without training.

        Args:
            batch_idx: The index of the batch, counted from 0 over the whole training.
            aggregation_frequency: With n, optimizers step after every n-th batch.
            epoch_length: The number of batches of an epoch.

        Returns:
            The number of steps; 0 after batches at which optimizers do not step, and with ``MANUAL_STEP``.

        Example:
            >>> import torch
            >>> from pa_trial import LRScheduler
            >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
            >>> step_lr = torch.optim.lr_scheduler.StepLR(optimizer, 3)
            >>> scheduler = LRScheduler(step_lr, LRScheduler.StepMode.STEP_EVERY_BATCH)
            >>> [scheduler.steps_due(batch_idx, aggregation_frequency=2, epoch_length=4) for batch_idx in range(4)]
            [0, 2, 0, 2]
        """
        batches = batch_idx + 1
        if batches % aggregation_frequency:
            return 0
        mode = self.step_mode
        if mode is self.StepMode.STEP_EVERY_BATCH:
            return batches // self.frequency - (batches - aggregation_frequency) // self.frequency
        if mode is self.StepMode.STEP_EVERY_OPTIMIZER_STEP:
            return int(batches // aggregation_frequency % self.frequency == 0)
        if mode is self.StepMode.STEP_EVERY_EPOCH:
            # An epoch that ends within the next group has no other optimizer step after which to change the rate.
            next_epoch = (batch_idx + aggregation_frequency) // epoch_length
            return next_epoch // self.frequency - batch_idx // epoch_length // self.frequency
        return 0


def _check(scheduler: TorchScheduler, step_mode: LRScheduler.StepMode, frequency: int) -> None:
    if not isinstance(step_mode, LRScheduler.StepMode):  # pyright: ignore[reportUnnecessaryIsInstance]  # users' code is not always checked
        raise ArgumentTypeError(f"step_mode must be a member of LRScheduler.StepMode, got {step_mode!r}.")
    if type(frequency) is not int or frequency < 1:
        raise InvalidExperimentException(f"frequency must be a whole number >= 1, got {frequency!r}.")
    if isinstance(scheduler, ReduceLROnPlateau) and step_mode is not LRScheduler.StepMode.MANUAL_STEP:
        problem = f"A ReduceLROnPlateau needs a metric to step with, got step_mode={step_mode}."
        raise InvalidExperimentException(problem, do="Wrap it with MANUAL_STEP, and call its step(metric) yourself.")
