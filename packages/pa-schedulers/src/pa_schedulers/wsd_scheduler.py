"""Warmup-stable-decay: a constant rate that decays before each checkpoint, and can always be resumed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Self, TypedDict, cast

from torch.optim import Optimizer
from typing_extensions import override

from pa_core import ConfigurationError, TrainerPlaceholderValues
from pa_schedulers.argument_checks import (
    require_at_most,
    require_count,
    require_fraction,
    require_not_negative,
    require_positive,
    whole_number,
)
from pa_schedulers.scheduler_base import StatefulSchedulerBase
from pa_schedulers.wsd_periods import Period, plan_periods

_WARMUP_START = 1e-6
_PARTS_OF_WARMUP = 100  # with num_warmup_steps=None, the warm-up takes a hundredth of the steps
_PARTS_OF_WARMUP_IN_A_TRAINER = 10
_LARGEST_DECAY_OF_SEVERAL = 1 / 3
# The attributes that a continuation keeps when it loads the state of an earlier schedule.
_PLAN = (
    "total_steps",
    "decay_phase_ratio",
    "lr_min",
    "warmup_starting_lr",
    "use_inverse_sqrt_decay",
    "num_checkpoints",
    "is_continuation_from_checkpoint",
)


class DecayInfo(TypedDict):
    """The steps of a period of a ``WSDLrScheduler``, as ``get_decay_info`` returns them.

    It is a dictionary with string keys, and you need not create one yourself. A period is the part of the schedule that
    ends with a checkpoint: the rate is constant first and then decays. A step is an optimizer update, counted from the
    start of the schedule.

    Attributes:
        period_start: The number of steps before the period.
        period_end: The number of steps up to its checkpoint.
        decay_steps: The number of steps of its decay; 0 if it is too short to decay.
        pre_decay_step: The number of steps before its decay. To be able to continue, save a checkpoint at this step.

    Example:
        >>> import torch
        >>> from pa_schedulers import DecayInfo, WSDLrScheduler
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        >>> info: DecayInfo = WSDLrScheduler(optimizer, total_steps=100).get_decay_info()[0]
        >>> info
        {'period_start': 0, 'period_end': 100, 'decay_steps': 10, 'pre_decay_step': 90}
    """

    period_start: int
    period_end: int
    decay_steps: int
    pre_decay_step: int


class PhaseInfo(DecayInfo):
    """The phase and the period of a step of a ``WSDLrScheduler``.

    ``get_phase_info`` and ``get_current_phase_info`` return it. It is a dictionary with string keys, and you need not
    create one yourself. A period is the part of the schedule that ends with a checkpoint. A step is an optimizer
    update, counted from the start of the schedule.

    Attributes:
        step: The step.
        phase: ``"warmup"``, ``"stable"``, ``"decay"``, or ``"finished"`` after the last checkpoint.
        period_start: The number of steps before the period.
        period_end: The number of steps up to its checkpoint.
        decay_steps: The number of steps of its decay; 0 if it is too short to decay.
        pre_decay_step: The number of steps before its decay.

    Example:
        >>> import torch
        >>> from pa_schedulers import PhaseInfo, WSDLrScheduler
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        >>> info: PhaseInfo = WSDLrScheduler(optimizer, total_steps=100).get_phase_info(95)
        >>> info["phase"], info["period_end"]
        ('decay', 100)
    """

    step: int
    phase: Literal["warmup", "stable", "decay", "finished"]


class WSDLrScheduler(StatefulSchedulerBase):
    """Warms the learning rate up, keeps it constant, and lowers it before each checkpoint.

    This is the warmup-stable-decay schedule of MiniCPM (arXiv 2404.06395, section 4). Use it if you do not know yet how
    long you will train. Nothing before the decay depends on the length of the run, so you can continue a run for as
    long as you like. With several checkpoints, the rate returns to its stable value right after each of them, so a
    single run gives a model for each of several budgets; this is WSD-S (arXiv 2410.05192).

    A period lasts from update A to update E, and the rate decays in its last D updates. The warm-up lasts W updates,
    and ``lr`` is the learning rate of a parameter group. The rate after n updates is

    - for n < W: linear, from ``warmup_starting_lr`` to ``lr``;
    - for n up to E - D: ``lr``;
    - then, with t = (n - (E - D)) / D and m = ``lr_min``, ``lr * (m + (1 - m) * (1 - sqrt(t)))`` (arXiv 2405.18392),
      or, inversely proportional, ``lr / (t / m + (1 - t))`` (arXiv 2410.05192). At E it is exactly ``lr * m``;
    - after the last checkpoint: ``lr * m``.

    The first period begins at 0, and each further period at the checkpoint before it. A period decays in its last
    ``int((E - A) * decay_phase_ratio)`` updates; if that is 0, the rate stays at ``lr``. A single checkpoint is at the
    end. If there are several checkpoints, the first is at a quarter of the updates, and each further checkpoint is at
    twice as many updates as the checkpoint before. With more than three checkpoints, the first is earlier, so that the
    last is not beyond the end. With two, the last is at half of the updates, and the rest of the run is trained at the
    minimum rate.

    Each parameter group has its own ``lr``, the rate that it had when its first scheduler was created, or when it was
    added to the optimizer. A group that is added later with a rate below the starting rate keeps its rate.

    With a trainer, pass ``create_scheduler_fn()`` to ``train``, which creates and steps it. In a custom loop, call
    ``step()`` after each optimizer update. The schedule then comes an update late, as in pytorch-accelerated: updates 1
    and 2 both use the first rate, ``get_updated_values(0)``, update 3 uses ``get_updated_values(1)``, and so on. Or
    call ``step_update(n)`` after update n, without this delay; the methods that return the current step or phase do not
    count such calls. ``WSDCheckpointCallback`` saves the checkpoints.

    **Continuation.** Create a schedule for the further updates with ``is_continuation_from_checkpoint=True``, and load
    a state of the old schedule that was saved before or after a decay. A new stable phase of the new length then begins
    at the rate of the old schedule, without warm-up. If the state that you load was saved by a continuation with the
    same arguments, that continuation is resumed instead. To continue from a continuation of the same length, call
    ``start_stable_phase()`` after loading its state.

    Args:
        optimizer: The optimizer whose learning rates are scheduled.
        num_epochs: The number of epochs of the run; needs ``num_update_steps_per_epoch``. This argument and the next
            two are None by default, so that you can specify the length in either way.
        num_update_steps_per_epoch: The number of optimizer updates in an epoch.
        total_steps: The number of optimizer updates of the run; use it instead of the other two arguments.
        num_warmup_steps: The number of updates in which the rate rises. The default, 0, means no warm-up; None means 1%
            of all updates.
        decay_phase_ratio: The fraction of each period in which the rate decays, from 0 to 1, and at most 1/3 with
            several checkpoints. The default, 0.1, was enough for the authors of MiniCPM.
        lr_min: The rate at each checkpoint, as a fraction of the ``lr`` of the group. For example, with 0.01, a rate of
            0.1 decays to 0.001. The default is close to 0.
        warmup_starting_lr: The rate at the start of the warm-up, the same for all groups. The default is close to 0.
        use_inverse_sqrt_decay: Whether the decay follows the square root (the default); if not, it is inversely
            proportional.
        num_checkpoints: The number of checkpoints before which the rate decays. With the default, 1, the rate decays at
            the end of the run.
        is_continuation_from_checkpoint: Whether the state of an earlier schedule will be loaded, in order to continue
            from it.

    Attributes:
        total_steps: The number of updates of the schedule.
        num_warmup_steps: The number of updates of the warm-up.

    Raises:
        ConfigurationError: The length is given twice or not at all, warm-up and decay do not fit into the first period,
            a number is out of its range, or ``warmup_starting_lr`` is above the ``lr`` of a group.
        TypeError: A placeholder was passed that only a trainer can fill in; see ``create_scheduler_fn``.

    Example:
        >>> import torch
        >>> from pa_schedulers import WSDLrScheduler
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        >>> scheduler = WSDLrScheduler(
        ...     optimizer, total_steps=12, num_warmup_steps=2, warmup_starting_lr=0.2,
        ...     decay_phase_ratio=0.34, lr_min=0.1,
        ... )
        >>> [round(scheduler.get_updated_values(step)[0], 2) for step in range(13)]
        [0.2, 0.6, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.55, 0.36, 0.22, 0.1]
        >>> scheduler.get_decay_info()
        [{'period_start': 0, 'period_end': 12, 'decay_steps': 4, 'pre_decay_step': 8}]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        num_epochs: int | None = None,
        num_update_steps_per_epoch: int | None = None,
        total_steps: int | None = None,
        num_warmup_steps: int | None = 0,
        decay_phase_ratio: float = 0.1,
        lr_min: float = 1e-6,
        warmup_starting_lr: float = _WARMUP_START,
        use_inverse_sqrt_decay: bool = True,
        num_checkpoints: int = 1,
        is_continuation_from_checkpoint: bool = False,
    ) -> None:
        steps = _total_steps(num_epochs, num_update_steps_per_epoch, total_steps)
        if num_warmup_steps is None:
            num_warmup_steps = steps // _PARTS_OF_WARMUP
        num_warmup_steps = whole_number("num_warmup_steps", num_warmup_steps, minimum=0)
        num_checkpoints = whole_number("num_checkpoints", num_checkpoints, minimum=1)
        require_fraction(lr_min=lr_min)
        require_not_negative(warmup_starting_lr=warmup_starting_lr)
        _require_usable_decay(decay_phase_ratio, num_checkpoints, lr_min, use_inverse_sqrt_decay)
        first, *_ = plan_periods(steps, num_checkpoints, decay_phase_ratio)
        _require_room_for_warmup(num_warmup_steps, first)
        super().__init__(optimizer, param_group_field="lr")
        self.total_steps = steps
        self.num_warmup_steps: int = num_warmup_steps
        self.decay_phase_ratio = decay_phase_ratio
        self.lr_min = lr_min
        self.warmup_starting_lr = warmup_starting_lr
        self.use_inverse_sqrt_decay = use_inverse_sqrt_decay
        self.num_checkpoints = num_checkpoints
        self.is_continuation_from_checkpoint = is_continuation_from_checkpoint
        self._require_start_below_the_stable_rate()
        self.step_update(0)

    @classmethod
    def create_scheduler_fn(
        cls,
        total_num_epochs: int = TrainerPlaceholderValues.NUM_EPOCHS,
        num_update_steps_per_epoch: int = TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
        num_warmup_epochs: float | None = None,
        decay_phase_ratio: float = 0.1,
        lr_min: float = 1e-6,
        warmup_starting_lr: float = _WARMUP_START,
        use_inverse_sqrt_decay: bool = True,
        num_checkpoints: int = 1,
        is_continuation_from_checkpoint: bool = False,
    ) -> Callable[[Optimizer], Self]:
        """Return a function that creates this scheduler, for ``Trainer.train(create_scheduler_fn=...)``.

        You call it where you call ``train``. The trainer calls the returned function when the run starts, and fills in
        the length of the run, which is not known earlier. The learning rate rises linearly during the warm-up, stays
        constant, and decays before each checkpoint. In a custom loop, call the constructor instead.

        Args:
            total_num_epochs: The number of epochs of the schedule. By default, the trainer fills in the number of
                epochs of the run.
            num_update_steps_per_epoch: The number of optimizer updates in an epoch. By default, the trainer fills in
                this number.
            num_warmup_epochs: The number of epochs in which the rate rises, such as 0.5, rounded down to whole updates;
                0 for no warm-up. The default, None, means a tenth of all updates.
            decay_phase_ratio: The fraction of the updates between two checkpoints in which the rate decays, from 0 to
                1, and at most 1/3 with several checkpoints. The default, 0.1, was enough for the authors of MiniCPM.
            lr_min: The rate at each checkpoint, as a fraction of the ``lr`` of the group. The default, 1e-6, is close
                to 0.
            warmup_starting_lr: The rate at the start of the warm-up, the same for all groups. The default, 1e-6, is
                close to 0.
            use_inverse_sqrt_decay: Whether the decay follows the square root (the default); if not, it is inversely
                proportional.
            num_checkpoints: The number of checkpoints before which the rate decays. With the default, 1, the rate
                decays at the end of the run.
            is_continuation_from_checkpoint: Whether the state of an earlier schedule will be loaded, in order to
                continue from it at the stable rate. The default, False, is for a new run, and for a run that is
                resumed.

        Returns:
            A function of an optimizer that returns the scheduler.

        Raises:
            ConfigurationError: Raised by the returned function if warm-up and decay do not fit before the first
                checkpoint, a number is out of its range, or ``warmup_starting_lr`` is above the ``lr`` of a group. It
                is a ``ValueError``.
            TypeError: Raised by the returned function if you call it yourself without the two lengths.

        Example:
            >>> import torch
            >>> from pa_schedulers import WSDLrScheduler
            >>> create_scheduler = WSDLrScheduler.create_scheduler_fn(
            ...     total_num_epochs=8, num_update_steps_per_epoch=100, num_warmup_epochs=0.5, num_checkpoints=3
            ... )
            >>> scheduler = create_scheduler(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1))
            >>> scheduler.get_checkpoint_steps(), scheduler.num_warmup_steps
            ([200, 400, 800], 50)
        """
        if num_warmup_epochs is None:
            num_warmup_steps = total_num_epochs * num_update_steps_per_epoch // _PARTS_OF_WARMUP_IN_A_TRAINER
        else:
            num_warmup_steps = cast("int", num_update_steps_per_epoch * num_warmup_epochs // 1)
        return partial(
            cls,
            num_epochs=total_num_epochs,
            num_update_steps_per_epoch=num_update_steps_per_epoch,
            num_warmup_steps=num_warmup_steps,
            decay_phase_ratio=decay_phase_ratio,
            lr_min=lr_min,
            warmup_starting_lr=warmup_starting_lr,
            use_inverse_sqrt_decay=use_inverse_sqrt_decay,
            num_checkpoints=num_checkpoints,
            is_continuation_from_checkpoint=is_continuation_from_checkpoint,
        )

    @override
    def get_updated_values(self, num_updates: int) -> list[float]:
        """Return the learning rate of each parameter group after a number of updates.

        ``step`` and ``step_update`` call it and write the rates to the optimizer. You may also call it to look at the
        schedule; nothing is changed.

        A "checkpoint" of this schedule is an update before which the rate decays, so that the weights after it can be
        saved and used. By default there is a single checkpoint, the end of the run.

        Args:
            num_updates: The number of optimizer updates made so far, at least 0. From the last checkpoint on, even
                beyond ``total_steps``, the rate is the minimum: ``lr * lr_min``.

        Returns:
            A rate for each parameter group, in their order.

        Raises:
            ConfigurationError: The number is negative. It is a ``ValueError``.

        Example:
            >>> import torch
            >>> from pa_schedulers import WSDLrScheduler
            >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
            >>> scheduler = WSDLrScheduler(optimizer, total_steps=10, decay_phase_ratio=0.2, lr_min=0.1)
            >>> [round(scheduler.get_updated_values(num_updates)[0], 2) for num_updates in range(7, 11)]
            [1.0, 1.0, 0.36, 0.1]
        """
        require_count(num_updates)
        period = self._period_of(num_updates)
        return [self._learning_rate(stable, num_updates, period) for stable in self.initial_values]

    def get_checkpoint_steps(self) -> list[int]:
        """Return the numbers of updates after which the rate is at its minimum.

        You call it to find out when to save the model. With a trainer, ``WSDCheckpointCallback`` does so for you.

        Returns:
            A number of updates for each checkpoint, in order. The last may be before the end of the schedule if there
            are two checkpoints.

        Example:
            >>> import torch
            >>> from pa_schedulers import WSDLrScheduler
            >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
            >>> WSDLrScheduler(optimizer, total_steps=800, num_checkpoints=3).get_checkpoint_steps()
            [200, 400, 800]
        """
        return [period.end for period in self._periods()]

    def get_decay_info(self) -> list[DecayInfo]:
        """Return the first and last step of each period, and the step at which its decay begins.

        You call it to save a checkpoint before each decay, at ``pre_decay_step``. A period is the part of the schedule
        that ends with a checkpoint, and a step is an optimizer update.

        Returns:
            A dictionary for each checkpoint, in order, with the keys ``"period_start"``, ``"period_end"``,
            ``"decay_steps"`` and ``"pre_decay_step"``, which are numbers of steps; ``DecayInfo`` describes them.

        Example:
            >>> import torch
            >>> from pa_schedulers import WSDLrScheduler
            >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
            >>> WSDLrScheduler(optimizer, total_steps=100).get_decay_info()
            [{'period_start': 0, 'period_end': 100, 'decay_steps': 10, 'pre_decay_step': 90}]
        """
        return [_describe(period) for period in self._periods()]

    def get_phase_info(self, step: int) -> PhaseInfo:
        """Return the phase and the period of a step; the step of a checkpoint belongs to the period that it ends.

        You call it to log the phase, or to do something that depends on it, for example to evaluate more often during a
        decay. For the current step, ``get_current_phase_info`` is shorter.

        Args:
            step: A number of updates, from 0.

        Returns:
            A dictionary with the keys ``"step"``; ``"phase"``, which is ``"warmup"``, ``"stable"``, ``"decay"``, or
            ``"finished"`` after the last checkpoint; and ``"period_start"``, ``"period_end"``, ``"decay_steps"`` and
            ``"pre_decay_step"``, which are numbers of updates, as in ``get_decay_info``.

        Raises:
            ConfigurationError: The step is negative or not a whole number. It is a ``ValueError``.

        Example:
            >>> import torch
            >>> from pa_schedulers import WSDLrScheduler
            >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
            >>> scheduler = WSDLrScheduler(optimizer, total_steps=100, num_warmup_steps=10)
            >>> [scheduler.get_phase_info(step)["phase"] for step in (0, 10, 90, 100, 101)]
            ['warmup', 'stable', 'decay', 'decay', 'finished']
            >>> scheduler.get_phase_info(95)["period_end"]
            100
        """
        step = whole_number("step", step, minimum=0)
        period = self._period_of(step)
        phase: Literal["warmup", "stable", "decay", "finished"] = "stable"
        if step > period.end:
            phase = "finished"
        elif step < self.num_warmup_steps:
            phase = "warmup"
        elif step >= period.pre_decay_step and period.decay_steps > 0:
            phase = "decay"
        return PhaseInfo(step=step, phase=phase, **_describe(period))

    def get_current_phase_info(self) -> PhaseInfo:
        """Return the phase and the period of the current step.

        You call it in a loop or callback that steps the schedule with ``step()``, for example to log the phase. Calls
        to ``step_update`` do not count as steps. If you use ``step_update``, pass your own count to ``get_phase_info``.

        Returns:
            A dictionary with the keys ``"step"``; ``"phase"``, which is ``"warmup"``, ``"stable"``, ``"decay"``, or
            ``"finished"`` after the last checkpoint; and ``"period_start"``, ``"period_end"``, ``"decay_steps"`` and
            ``"pre_decay_step"``, which are numbers of updates.

        Example:
            >>> import torch
            >>> from pa_schedulers import WSDLrScheduler
            >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
            >>> scheduler = WSDLrScheduler(optimizer, total_steps=100, num_warmup_steps=10)
            >>> optimizer.step()
            >>> scheduler.step()
            >>> info = scheduler.get_current_phase_info()
            >>> info["step"], info["phase"]
            (1, 'warmup')
        """
        return self.get_phase_info(self.get_current_step())

    def get_current_step(self) -> int:
        """Return the number of updates made so far, which is the number of ``step()`` calls.

        You call it to log the progress, or to compare it with ``get_checkpoint_steps``. It is 0 for a new scheduler,
        and a loaded state restores it. ``step_update`` calls do not count.

        Returns:
            The number of updates, from 0.

        Example:
            >>> import torch
            >>> from pa_schedulers import WSDLrScheduler
            >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
            >>> scheduler = WSDLrScheduler(optimizer, total_steps=100)
            >>> optimizer.step()
            >>> scheduler.step()
            >>> scheduler.get_current_step()
            1
        """
        return self._num_updates

    def start_stable_phase(self) -> None:
        """Restart this schedule at its stable rate, without warm-up, and count updates from 0 again.

        You call it after ``load_state_dict``, to continue from the state of a continuation of the same length (a
        schedule with ``is_continuation_from_checkpoint=True``). In other continuations, ``load_state_dict`` does this
        itself. The rates are written to the optimizer.

        Example:
            >>> import torch
            >>> from pa_schedulers import WSDLrScheduler
            >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
            >>> scheduler = WSDLrScheduler(optimizer, total_steps=100, num_warmup_steps=10)
            >>> scheduler.start_stable_phase()
            >>> optimizer.param_groups[0]["lr"], scheduler.get_current_step()
            (1.0, 0)
        """
        self.num_warmup_steps = 0
        self._num_updates = 0
        self.step_update(0)

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state: resume its schedule, or continue from it if this schedule is a continuation.

        A trainer calls it when it loads a training state. In a custom loop, you call it after you have created the
        scheduler, and before the next update. A schedule that was made with ``is_continuation_from_checkpoint=True``
        keeps its own length and arguments, and begins a new stable phase at the rate of the loaded schedule, unless a
        schedule with the same arguments saved the state and had updates left. Any other schedule adopts the length, the
        arguments and the count of the state.

        Args:
            state_dict: The return value of ``state_dict``. It is not changed.

        Raises:
            ConfigurationError: The state belongs to a different kind of scheduler or a different number of parameter
                groups; nothing was changed. It is a ``ValueError``.

        Example:
            >>> import torch
            >>> from pa_schedulers import WSDLrScheduler
            >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
            >>> saved = WSDLrScheduler(optimizer, total_steps=100, num_warmup_steps=10).state_dict()
            >>> longer = WSDLrScheduler(optimizer, total_steps=400, is_continuation_from_checkpoint=True)
            >>> longer.load_state_dict(saved)
            >>> longer.total_steps, optimizer.param_groups[0]["lr"]
            (400, 1.0)
        """
        plan = {name: vars(self)[name] for name in _PLAN}
        super().load_state_dict(state_dict)
        if plan["is_continuation_from_checkpoint"] and not self._goes_on_with(plan):
            vars(self).update(plan)
            self.start_stable_phase()

    def _goes_on_with(self, plan: dict[str, Any]) -> bool:
        """Whether the loaded state belongs to this plan, and updates of the plan remain."""
        return plan == {name: vars(self)[name] for name in _PLAN} and self._num_updates < self.total_steps

    def _periods(self) -> tuple[Period, ...]:
        return plan_periods(self.total_steps, self.num_checkpoints, self.decay_phase_ratio)

    def _period_of(self, step: int) -> Period:
        periods = self._periods()
        return next((period for period in periods if step <= period.end), periods[-1])

    def _learning_rate(self, stable: float, step: int, period: Period) -> float:
        if step < self.num_warmup_steps:
            start = min(stable, self.warmup_starting_lr)
            return start + (stable - start) * (step / self.num_warmup_steps)
        if step <= period.pre_decay_step or period.decay_steps == 0:
            return stable
        if step >= period.end:
            return stable * self.lr_min
        progress = (step - period.pre_decay_step) / period.decay_steps
        if self.use_inverse_sqrt_decay:
            fraction = self.lr_min + (1 - self.lr_min) * (1 - math.sqrt(progress))
        else:
            fraction = 1 / (progress / self.lr_min + (1 - progress))
        # Rounding may not pass the bounds.
        return stable * min(1, max(self.lr_min, fraction))

    def _require_start_below_the_stable_rate(self) -> None:
        if self.num_warmup_steps == 0 and self.warmup_starting_lr == _WARMUP_START:
            return
        for index, stable in enumerate(self.initial_values):
            require_at_most(stable, self.warmup_starting_lr, "warmup_starting_lr", index, "Lower warmup_starting_lr.")


def _describe(period: Period) -> DecayInfo:
    return DecayInfo(
        period_start=period.start,
        period_end=period.end,
        decay_steps=period.decay_steps,
        pre_decay_step=period.pre_decay_step,
    )


def _total_steps(num_epochs: float | None, num_update_steps_per_epoch: float | None, total_steps: float | None) -> int:
    """Return the length of the schedule, which is given as epochs or as steps."""
    if total_steps is not None and num_epochs is None and num_update_steps_per_epoch is None:
        return whole_number("total_steps", total_steps, minimum=1)
    if total_steps is None and num_epochs is not None and num_update_steps_per_epoch is not None:
        require_positive(num_epochs=num_epochs, num_update_steps_per_epoch=num_update_steps_per_epoch)
        steps = num_epochs * num_update_steps_per_epoch
        return whole_number("num_epochs * num_update_steps_per_epoch", steps, minimum=1)
    raise ConfigurationError(
        f"The length of the schedule is not clear: num_epochs={num_epochs}, "
        f"num_update_steps_per_epoch={num_update_steps_per_epoch}, total_steps={total_steps}. Give either total_steps, "
        "or both of the others."
    )


def _require_usable_decay(ratio: float, num_checkpoints: int, lr_min: float, use_inverse_sqrt_decay: bool) -> None:
    require_fraction(decay_phase_ratio=ratio)
    if num_checkpoints > 1 and ratio > _LARGEST_DECAY_OF_SEVERAL:
        raise ConfigurationError(
            f"decay_phase_ratio must be at most 1/3 with num_checkpoints={num_checkpoints}, got {ratio!r}."
        )
    if lr_min == 0 and not use_inverse_sqrt_decay:
        raise ConfigurationError(
            "lr_min must be above 0 with use_inverse_sqrt_decay=False, got 0: the rate would be there at once."
        )


def _require_room_for_warmup(num_warmup_steps: int, first: Period) -> None:
    if num_warmup_steps > first.pre_decay_step:
        raise ConfigurationError(
            f"Warm-up and decay are longer than the first period: num_warmup_steps={num_warmup_steps} before a decay "
            f"of {first.decay_steps} steps that ends at step {first.end}. Shorten them, plan fewer checkpoints, or "
            "train for longer."
        )
