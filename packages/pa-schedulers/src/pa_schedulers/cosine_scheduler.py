"""A schedule that lowers the learning rate along half a cosine, after an optional warm-up."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Self

from torch.optim import Optimizer
from typing_extensions import override

from pa_core import ConfigurationError, TrainerPlaceholderValues
from pa_schedulers.argument_checks import (
    require_at_most,
    require_count,
    require_fraction,
    require_not_negative,
    require_positive,
)
from pa_schedulers.scheduler_base import StatefulSchedulerBase

_USE_RATIO = "Lower {}, or pass {} for a fraction of the learning rate of each group."


class CosineLrScheduler(StatefulSchedulerBase):
    """Raises the learning rate linearly, lowers it along half a cosine, and then holds it at a minimum.

    Use it for a run whose length you know, because the rate decays over the whole run. If you extend the run, you need
    a new schedule (``WSDLrScheduler`` can be continued).

    With a trainer, pass ``create_scheduler_fn()`` to ``train``, which creates and steps it. In a custom loop, call
    ``step()`` after each optimizer update. The schedule then comes an update late, as in pytorch-accelerated: updates 1
    and 2 both use the first rate, ``get_updated_values(0)``, update 3 uses ``get_updated_values(1)``, and so on. Or
    call ``step_update(n)`` after update n, without this delay. Do not mix the two.

    The run has T updates in total. The warm-up lasts W updates, the cool-down lasts C updates, and ``lr`` is the
    learning rate of a parameter group. The rate after n updates is

    - for n < W: linear, from the starting rate to ``lr``;
    - for W <= n < T - C: ``min + (lr - min) / 2 * (1 + cos(pi * (t / D)**k_decay))`` with t = n - W and D = T - C - W.
      This is the cosine of SGDR (arXiv 1608.03983, equation 5) without restarts, with the k-decay of arXiv 2004.05909;
    - from T - C on, even beyond the end of the run: the minimum.

    The rate does not jump between the parts if the cosine has at least one update (D > 0). Each parameter group has its
    own ``lr``, the rate that it had when its first scheduler was created, or when it was added to the optimizer. In a
    group that is added later with a rate below the minimum or the starting rate, the rate stays as it is.

    Args:
        optimizer: The optimizer whose learning rates are scheduled.
        total_num_epochs: The number of epochs of the run, including warm-up and cool-down.
        num_update_steps_per_epoch: The number of optimizer updates in an epoch.
        k_decay: The exponent of the progress. Above 1, the rate stays high for longer and falls faster later; below 1,
            it falls sooner. The default, 1, is the plain cosine.
        lr_min: The minimum, the same for all groups. The default, 1e-6, is close to 0 for usual rates.
        min_lr_ratio: The minimum as a fraction of the ``lr`` of each group, from 0 to 1. If given, it takes precedence
            over ``lr_min``. The default, None, uses ``lr_min``.
        num_warmup_epochs: The number of epochs in which the rate rises. The default, 0, means no warm-up.
        warmup_starting_lr: The rate at the start of the warm-up, the same for all groups; ignored without warm-up. The
            default, 1e-6, is close to 0.
        warmup_starting_lr_ratio: The starting rate as a fraction of the ``lr`` of each group, from 0 to 1. If given, it
            takes precedence over ``warmup_starting_lr``. The default, None, uses ``warmup_starting_lr``.
        num_cooldown_epochs: The number of epochs at the end in which the rate stays at the minimum. With the default,
            0, the cosine ends with the run.

    Attributes:
        num_warmup_updates: The number of updates of the warm-up.
        num_cosine_updates: The number of updates in which the rate falls.

    Raises:
        ConfigurationError: The run has no update, warm-up and cool-down are longer than the run, a number is negative,
            a ratio is not between 0 and 1, or the minimum or the starting rate is above the ``lr`` of a group. It is a
            ``ValueError``.
        TypeError: A placeholder was passed that only a trainer can fill in; see ``create_scheduler_fn``.

    Example:
        >>> import torch
        >>> from pa_schedulers import CosineLrScheduler
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        >>> scheduler = CosineLrScheduler(
        ...     optimizer, total_num_epochs=5, num_update_steps_per_epoch=2, lr_min=0.0,
        ...     num_warmup_epochs=2, warmup_starting_lr=0.2, num_cooldown_epochs=1,
        ... )
        >>> [round(scheduler.get_updated_values(num_updates)[0], 2) for num_updates in range(10)]
        [0.2, 0.4, 0.6, 0.8, 1.0, 0.85, 0.5, 0.15, 0.0, 0.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_num_epochs: int,
        num_update_steps_per_epoch: int,
        k_decay: float = 1.0,
        lr_min: float = 1e-6,
        min_lr_ratio: float | None = None,
        num_warmup_epochs: int = 0,
        warmup_starting_lr: float = 1e-6,
        warmup_starting_lr_ratio: float | None = None,
        num_cooldown_epochs: int = 0,
    ) -> None:
        require_positive(
            total_num_epochs=total_num_epochs,
            num_update_steps_per_epoch=num_update_steps_per_epoch,
            k_decay=k_decay,
        )
        require_not_negative(
            lr_min=lr_min,
            num_warmup_epochs=num_warmup_epochs,
            warmup_starting_lr=warmup_starting_lr,
            num_cooldown_epochs=num_cooldown_epochs,
        )
        require_fraction(min_lr_ratio=min_lr_ratio, warmup_starting_lr_ratio=warmup_starting_lr_ratio)
        _require_room_for_all(total_num_epochs, num_warmup_epochs, num_cooldown_epochs)
        super().__init__(optimizer, param_group_field="lr")
        num_cosine_epochs = total_num_epochs - num_warmup_epochs - num_cooldown_epochs
        self.num_warmup_updates: int = num_warmup_epochs * num_update_steps_per_epoch
        self.num_cosine_updates: int = num_cosine_epochs * num_update_steps_per_epoch
        self.k_decay = k_decay
        self.lr_min = lr_min
        self.min_lr_ratio = min_lr_ratio
        self.warmup_starting_lr = warmup_starting_lr
        self.warmup_starting_lr_ratio = warmup_starting_lr_ratio
        self._require_rates_below_the_peak()
        self.step_update(0)

    @classmethod
    def create_scheduler_fn(
        cls,
        total_num_epochs: int = TrainerPlaceholderValues.NUM_EPOCHS,
        num_update_steps_per_epoch: int = TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        k_decay: float = 1.0,
        lr_min: float = 1e-6,
        min_lr_ratio: float | None = None,
        num_warmup_epochs: int = 0,
        warmup_starting_lr: float = 1e-6,
        warmup_starting_lr_ratio: float | None = None,
        num_cooldown_epochs: int = 0,
    ) -> Callable[[Optimizer], Self]:
        """Return a function that creates this scheduler, for ``Trainer.train(create_scheduler_fn=...)``.

        You call it where you call ``train``. The trainer calls the returned function when the run starts, and fills in
        the length of the run, which is not known earlier. The learning rate rises linearly during the warm-up, falls
        along half a cosine, and stays at the minimum during the cool-down. In a custom loop, call the constructor
        instead.

        Args:
            total_num_epochs: The number of epochs of the schedule. By default, the trainer fills in the number of
                epochs of the run.
            num_update_steps_per_epoch: The number of optimizer updates in an epoch. By default, the trainer fills in
                this number.
            k_decay: The exponent of the progress. Above 1, the rate stays high for longer; below 1, it falls sooner.
                The default, 1, is the plain cosine.
            lr_min: The minimum, the same for all groups. The default, 1e-6, is close to 0 for usual rates.
            min_lr_ratio: The minimum as a fraction of the ``lr`` of each group, from 0 to 1, in place of ``lr_min``.
                The default, None, uses ``lr_min``.
            num_warmup_epochs: The number of epochs in which the rate rises. The default, 0, means no warm-up.
            warmup_starting_lr: The rate at the start of the warm-up, the same for all groups. The default, 1e-6, is
                close to 0.
            warmup_starting_lr_ratio: The starting rate as a fraction of the ``lr`` of each group, from 0 to 1, in place
                of ``warmup_starting_lr``. The default, None, uses ``warmup_starting_lr``.
            num_cooldown_epochs: The number of epochs at the end in which the rate stays at the minimum. With the
                default, 0, the cosine ends with the run.

        Returns:
            A function of an optimizer that returns the scheduler.

        Raises:
            ConfigurationError: Raised by the returned function if the run has no update, warm-up and cool-down are
                longer than the run, a number is out of its range, or the minimum or the starting rate is above the
                ``lr`` of a group. It is a ``ValueError``.
            TypeError: Raised by the returned function if you call it yourself without the two lengths.

        Example:
            >>> import torch
            >>> from pa_schedulers import CosineLrScheduler
            >>> create_scheduler = CosineLrScheduler.create_scheduler_fn(
            ...     total_num_epochs=10, num_update_steps_per_epoch=100, num_warmup_epochs=1
            ... )
            >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
            >>> scheduler = create_scheduler(optimizer)
            >>> optimizer.param_groups[0]["lr"]
            1e-06
        """
        return partial(
            cls,
            total_num_epochs=total_num_epochs,
            num_update_steps_per_epoch=num_update_steps_per_epoch,
            k_decay=k_decay,
            lr_min=lr_min,
            min_lr_ratio=min_lr_ratio,
            num_warmup_epochs=num_warmup_epochs,
            warmup_starting_lr=warmup_starting_lr,
            warmup_starting_lr_ratio=warmup_starting_lr_ratio,
            num_cooldown_epochs=num_cooldown_epochs,
        )

    @override
    def get_updated_values(self, num_updates: int) -> list[float]:
        """Return the learning rate of each parameter group after a number of updates.

        ``step`` and ``step_update`` call it and write the rates to the optimizer. You may also call it to look at the
        schedule; nothing is changed.

        Args:
            num_updates: The number of optimizer updates made so far, at least 0. From the cool-down on, and beyond the
                end of the run, the rate is the minimum.

        Returns:
            A rate for each parameter group, in their order.

        Raises:
            ConfigurationError: The number is negative. It is a ``ValueError``.

        Example:
            >>> import torch
            >>> from pa_schedulers import CosineLrScheduler
            >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
            >>> scheduler = CosineLrScheduler(optimizer, total_num_epochs=1, num_update_steps_per_epoch=4, lr_min=0.0)
            >>> [round(scheduler.get_updated_values(num_updates)[0], 3) for num_updates in range(6)]
            [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
        """
        require_count(num_updates)
        return [self._learning_rate(peak, num_updates) for peak in self.initial_values]

    def _learning_rate(self, peak: float, num_updates: int) -> float:
        if num_updates < self.num_warmup_updates:
            start = self._start(peak)
            return start + (peak - start) * (num_updates / self.num_warmup_updates)
        num_into_cosine = num_updates - self.num_warmup_updates
        minimum = self._minimum(peak)
        if num_into_cosine >= self.num_cosine_updates:
            return minimum
        progress = num_into_cosine / self.num_cosine_updates
        descent = (1 - math.cos(math.pi * progress**self.k_decay)) / 2
        # Counted from the peak down, the first value is exactly the peak; rounding may not pass the minimum.
        return max(minimum, peak - (peak - minimum) * descent)

    def _start(self, peak: float) -> float:
        ratio = self.warmup_starting_lr_ratio
        return min(peak, self.warmup_starting_lr) if ratio is None else peak * ratio

    def _minimum(self, peak: float) -> float:
        return min(peak, self.lr_min) if self.min_lr_ratio is None else peak * self.min_lr_ratio

    def _require_rates_below_the_peak(self) -> None:
        for index, peak in enumerate(self.initial_values):
            if self.min_lr_ratio is None:
                require_at_most(peak, self.lr_min, "lr_min", index, _USE_RATIO.format("lr_min", "min_lr_ratio"))
            if self.warmup_starting_lr_ratio is None and self.num_warmup_updates > 0:
                advice = _USE_RATIO.format("warmup_starting_lr", "warmup_starting_lr_ratio")
                require_at_most(peak, self.warmup_starting_lr, "warmup_starting_lr", index, advice)


def _require_room_for_all(total: float, warmup: float, cooldown: float) -> None:
    if warmup + cooldown > total:
        raise ConfigurationError(
            f"Warm-up and cool-down are longer than the run: num_warmup_epochs={warmup}, "
            f"num_cooldown_epochs={cooldown}, total_num_epochs={total}. Shorten them, or train for more epochs."
        )
