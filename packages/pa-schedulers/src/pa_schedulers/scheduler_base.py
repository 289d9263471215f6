"""Base classes of schedulers: a subclass returns the value after a number of updates."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from numbers import Number
from typing import Any, cast

from torch.optim import Optimizer
from typing_extensions import override

from pa_core import ConfigurationError
from pa_schedulers.argument_checks import require_count
from pa_schedulers.param_groups import plain_number, read_field, write_field

_CURRENT_VALUES = "param_group_values"
_INITIAL_VALUES = "param_group_initial_values"


class SchedulerBase(ABC):
    """The base class of schedulers whose caller counts the updates; derive from it to schedule any field.

    Override ``get_updated_values``. The caller passes the number of updates to ``step_update``, as ``pa_compat``'s
    ``TrainerWithTimmScheduler`` does. If the trainer or your loop only calls ``step()``, derive from
    ``StatefulSchedulerBase`` instead, which counts the updates. For a cosine or warmup-stable-decay schedule, use
    ``CosineLrScheduler`` or ``WSDLrScheduler``.

    The first scheduler of an optimizer records the value of each parameter group in the group, as ``initial_<field>``
    (``initial_lr``, as torch's own schedulers do). The constructor of every further scheduler resets the group to that
    value. To start from a different value, also set ``initial_<field>``.

    A value that is a tensor, such as the learning rate of a capturable optimizer, is changed in place. ``state_dict``
    saves all attributes except the optimizer.

    Args:
        optimizer: The optimizer whose parameter groups are updated.
        param_group_field: The field to schedule, for example ``"lr"`` (the default) or ``"weight_decay"``. Its value
            must be a single number in each group.

    Attributes:
        optimizer: The optimizer, as given.
        param_group_field: The field, as given.

    Raises:
        ConfigurationError: A parameter group does not have the field, or its value is not a single number. It is a
            ``ValueError``.

    Example:
        >>> import torch
        >>> from pa_schedulers import SchedulerBase
        >>> class HalveLr(SchedulerBase):
        ...     def get_updated_values(self, num_updates):
        ...         return [initial / 2**num_updates for initial in self.initial_values]
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.8)
        >>> scheduler = HalveLr(optimizer)
        >>> scheduler.step_update(num_updates=2)
        >>> optimizer.param_groups[0]["lr"]
        0.2
    """

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        self.optimizer = optimizer
        self.param_group_field = param_group_field
        write_field(optimizer, param_group_field, self.initial_values)

    @property
    def initial_values(self) -> list[float]:
        """The value of each parameter group before any scheduling, for ``get_updated_values`` to multiply.

        A list of floats in the order of the groups, for example ``[0.1, 0.01]``. It does not change while the schedule
        runs. For a group that was added to the optimizer later, it is the value of the group when it was added.
        """
        groups, initial_field = self.optimizer.param_groups, self._initial_field
        if not all(initial_field in group for group in groups):
            present_values = read_field(self.optimizer, self.param_group_field)
            for group, present_value in zip(groups, present_values, strict=True):
                group.setdefault(initial_field, present_value)
        return [plain_number(group[initial_field]) for group in groups]

    @property
    def base_lr_values(self) -> list[float]:
        """The same list as ``initial_values``, no matter which field is scheduled.

        The value of each parameter group before any scheduling, as floats in the order of the groups. The name comes
        from pytorch-accelerated; new code can use ``initial_values``.
        """
        return self.initial_values

    @property
    def _initial_field(self) -> str:
        return f"initial_{self.param_group_field}"

    @abstractmethod
    def get_updated_values(self, num_updates: int) -> float | Iterable[float] | None:
        """Return the values of the scheduled field after a number of updates; override this.

        ``step_update`` calls it, usually once per optimizer update, and writes the values to the parameter groups.
        Compute the values from ``num_updates`` and ``initial_values`` alone, so that a resumed run gets the same
        values; do not change the optimizer. You may also call it to look at a schedule.

        Args:
            num_updates: The number of optimizer updates made so far, from 0.

        Returns:
            A number for all parameter groups; or a number for each of them, in their order; or None to leave the groups
            as they are.

        Example:
            >>> import torch
            >>> from pa_schedulers import SchedulerBase
            >>> class HalveLr(SchedulerBase):
            ...     def get_updated_values(self, num_updates):
            ...         return [initial / 2**num_updates for initial in self.initial_values]
            >>> HalveLr(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.8)).get_updated_values(1)
            [0.4]
        """

    def step_update(self, num_updates: int) -> None:
        """Calculate the values for a number of updates and write them to the parameter groups.

        In a custom loop, you call it after each optimizer update with the number of updates so far. The next update
        then uses the values. The trainer of ``pa_core`` does not call this method directly. Instead, it calls
        ``step()`` of a ``StatefulSchedulerBase``, which calls this method. Do not mix the two.

        Args:
            num_updates: The number of optimizer updates made so far, from 0.

        Raises:
            ConfigurationError: The number is negative, or the number of values is not the number of parameter groups.
                It is a ``ValueError``.

        Example:
            >>> import torch
            >>> from pa_schedulers import CosineLrScheduler
            >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
            >>> scheduler = CosineLrScheduler(optimizer, total_num_epochs=1, num_update_steps_per_epoch=4, lr_min=0.0)
            >>> for num_updates in range(1, 4):
            ...     optimizer.step()
            ...     scheduler.step_update(num_updates)
            ...     print(num_updates, round(optimizer.param_groups[0]["lr"], 3))
            1 0.854
            2 0.5
            3 0.146
        """
        require_count(num_updates)
        initial_values = self.initial_values  # of new groups too, before anything is written to them
        values = self.get_updated_values(num_updates)
        if values is not None:
            values = _one_for_each_group(values, len(initial_values))
            write_field(self.optimizer, self.param_group_field, values)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of every attribute except the optimizer, with the initial and current values of the groups.

        A trainer saves it with the training state. In a custom loop, you save it with a checkpoint, and pass it to
        ``load_state_dict`` of a scheduler that was made with the same arguments. A subclass need not override this if
        its attributes are data.

        Returns:
            The state, a dictionary of plain values, which later steps do not change.

        Example:
            >>> import torch
            >>> from pa_schedulers import CosineLrScheduler
            >>> def make_scheduler():
            ...     optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
            ...     return CosineLrScheduler(optimizer, total_num_epochs=1, num_update_steps_per_epoch=4)
            >>> scheduler, resumed = make_scheduler(), make_scheduler()
            >>> scheduler.step_update(2)
            >>> resumed.load_state_dict(scheduler.state_dict())
            >>> resumed.optimizer.param_groups[0]["lr"] == scheduler.optimizer.param_groups[0]["lr"]
            True
        """
        return {
            **copy.deepcopy(self._attributes()),
            _INITIAL_VALUES: self.initial_values,
            _CURRENT_VALUES: read_field(self.optimizer, self.param_group_field),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned, and write its values to the parameter groups.

        A trainer calls it when it loads a training state. In a custom loop, you call it after you have created the
        scheduler with the same arguments, and before the next update. The result is the same whether you load the state
        of the optimizer before or after the state of the scheduler. If parameter groups were added to the optimizer
        during the saved run, add them before you call this method.

        Args:
            state_dict: The state of a scheduler of the same class. It is not changed.

        Raises:
            ConfigurationError: The state belongs to a different field, a different kind of scheduler or a different
                number of parameter groups; nothing was changed. It is a ``ValueError``.

        Example:
            >>> import torch
            >>> from pa_schedulers import CosineLrScheduler
            >>> def make_scheduler():
            ...     optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
            ...     return CosineLrScheduler(optimizer, total_num_epochs=1, num_update_steps_per_epoch=4, lr_min=0.0)
            >>> scheduler, resumed = make_scheduler(), make_scheduler()
            >>> scheduler.step_update(2)
            >>> resumed.load_state_dict(scheduler.state_dict())
            >>> round(resumed.optimizer.param_groups[0]["lr"], 3)
            0.5
        """
        self._require_own_kind_of_state(state_dict)
        attributes = copy.deepcopy(state_dict)
        initial_values, values = attributes.pop(_INITIAL_VALUES), attributes.pop(_CURRENT_VALUES)
        vars(self).update(attributes)
        for group, initial_value in zip(self.optimizer.param_groups, initial_values, strict=True):
            group[self._initial_field] = initial_value
        write_field(self.optimizer, self.param_group_field, values)

    def _attributes(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not isinstance(value, Optimizer)}

    def _require_own_kind_of_state(self, state: dict[str, Any]) -> None:
        missing = {*self._attributes(), _INITIAL_VALUES, _CURRENT_VALUES} - state.keys()
        if "param_group_field" in state and {_INITIAL_VALUES, _CURRENT_VALUES} <= missing:
            raise ConfigurationError(
                f"The state, with {', '.join(map(repr, state))}, was written by a scheduler of pytorch-accelerated. "
                "Leave it out, for example with trainer.load_checkpoint(path, load_scheduler=False): weights and "
                "optimizer are loaded, and the schedule starts from the beginning."
            )
        if missing or state["param_group_field"] != self.param_group_field:
            raise ConfigurationError(
                f"The state, with {', '.join(map(repr, state)) or 'nothing'}, does not belong to this scheduler: "
                f"{type(self).__name__}.state_dict() did not return it for {self.param_group_field!r}"
                + (f"; it lacks {', '.join(map(repr, sorted(missing)))}." if missing else ".")
            )
        saved, present = len(state[_CURRENT_VALUES]), len(self.optimizer.param_groups)
        if saved != present:
            way_out = (
                "Call optimizer.add_param_group for the groups that the run added, and load the state again."
                if saved > present
                else "Load the state first, and then add the groups that it lacks."
            )
            raise ConfigurationError(f"The state has {saved} groups, and the optimizer has {present}. {way_out}")


def _one_for_each_group(values: float | Iterable[float], num_groups: int) -> Sequence[float]:
    if isinstance(values, Number) or getattr(values, "ndim", None) == 0:
        return [cast("float", values)] * num_groups
    for_each_group = list(cast("Iterable[float]", values))
    if len(for_each_group) != num_groups:
        raise ConfigurationError(
            f"A value for each of the {num_groups} parameter groups is needed, got {len(for_each_group)} values: "
            f"{for_each_group}. Return a single number to give all groups the same value."
        )
    return for_each_group


class StatefulSchedulerBase(SchedulerBase):
    """The base class of schedulers that count the updates, with the interface of torch's schedulers.

    Derive from it for a schedule that a ``Trainer`` of ``pa_core``, or any loop for torch's schedulers, steps with
    ``step()``. If the caller knows the number of updates and passes it, derive from ``SchedulerBase`` instead.

    Override ``get_updated_values``, and call ``step()`` once after each optimizer update, as a ``Trainer`` does. The
    first update uses the values that the constructor wrote: the initial values, unless a subclass writes others. The
    first ``step()`` then writes ``get_updated_values(0)`` for update 2, the second ``step()`` writes
    ``get_updated_values(1)`` for update 3, and so on. The values thus come an update later than with
    ``step_update(n)``, as in pytorch-accelerated.

    ``state_dict`` saves the count and all attributes except the optimizer.

    Args:
        optimizer: The optimizer whose parameter groups are updated.
        param_group_field: The field to schedule, for example ``"lr"`` (the default) or ``"weight_decay"``. Its value
            must be a single number in each group.

    Attributes:
        optimizer: The optimizer, as given.
        param_group_field: The field, as given.

    Raises:
        ConfigurationError: A parameter group does not have the field, or its value is not a single number. It is a
            ``ValueError``.

    Example:
        >>> import torch
        >>> from pa_schedulers import StatefulSchedulerBase
        >>> class GrowWeightDecay(StatefulSchedulerBase):
        ...     def __init__(self, optimizer):
        ...         super().__init__(optimizer, param_group_field="weight_decay")
        ...     def get_updated_values(self, num_updates):
        ...         return 0.25 * num_updates
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        >>> scheduler = GrowWeightDecay(optimizer)
        >>> for _ in range(3):
        ...     optimizer.step()
        ...     scheduler.step()
        >>> optimizer.param_groups[0]["weight_decay"]
        0.5
    """

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        super().__init__(optimizer, param_group_field)
        self._num_updates = 0

    def step(self) -> None:
        """Write the next values to the parameter groups, and count this call.

        The trainer calls it after each update. In a custom loop, you call it after ``optimizer.step()``, in each
        update. The first call writes ``get_updated_values(0)``, the third call ``get_updated_values(2)``.

        Raises:
            ConfigurationError: ``get_updated_values`` does not return as many values as there are parameter groups. It
                is a ``ValueError``.

        Example:
            >>> import torch
            >>> from pa_schedulers import CosineLrScheduler
            >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
            >>> scheduler = CosineLrScheduler(optimizer, total_num_epochs=1, num_update_steps_per_epoch=4, lr_min=0.0)
            >>> for _ in range(3):
            ...     optimizer.step()
            ...     scheduler.step()
            ...     print(round(optimizer.param_groups[0]["lr"], 3))
            1.0
            0.854
            0.5
        """
        self.step_update(self._num_updates)
        self._num_updates += 1

    @override
    @abstractmethod
    def get_updated_values(self, num_updates: int) -> float | Iterable[float] | None:
        """Return the values of the scheduled field after a number of updates; override this.

        ``step`` calls it once per optimizer update, and writes the values to the parameter groups. Compute the values
        from ``num_updates`` and ``initial_values`` alone, so that a resumed run gets the same values; do not change the
        optimizer. You may also call it to look at a schedule.

        Args:
            num_updates: The number of earlier calls to ``step``, from 0.

        Returns:
            A number for all parameter groups; or a number for each of them, in their order; or None to leave the groups
            as they are.

        Example:
            >>> import torch
            >>> from pa_schedulers import StatefulSchedulerBase
            >>> class HalveLr(StatefulSchedulerBase):
            ...     def get_updated_values(self, num_updates):
            ...         return [initial / 2**num_updates for initial in self.initial_values]
            >>> HalveLr(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.8)).get_updated_values(1)
            [0.4]
        """
