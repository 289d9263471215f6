"""Previews the values of a schedule, as rows and as a picture."""

# pyright: reportUnknownMemberType=false
# (matplotlib leaves the keyword arguments of its methods untyped)

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from typing_extensions import override

from pa_core import ArgumentTypeError, TrainerPlaceholderValues, resolve_placeholders
from pa_core.tracking.plot_style import PlotStyle, plot_style
from pa_schedulers.argument_checks import whole_number
from pa_schedulers.figures import legend_above, single_axes
from pa_schedulers.param_groups import read_field

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class SteppedAlone(Protocol):
    """A scheduler whose values depend only on the number of its steps.

    ``plot_schedule`` accepts a function that returns any such object. Torch's schedulers (except ``ReduceLROnPlateau``)
    and all schedulers in pa-schedulers are suitable. Your own class needs only a ``step()`` method without required
    arguments; it need not derive from this class.

    Example:
        >>> import torch
        >>> from pa_schedulers import SteppedAlone
        >>> def course(scheduler: SteppedAlone, optimizer: torch.optim.Optimizer) -> list[float]:
        ...     rates = []
        ...     for _ in range(3):
        ...         rates.append(optimizer.param_groups[0]["lr"])
        ...         optimizer.step()
        ...         scheduler.step()
        ...     return rates
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        >>> course(torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5), optimizer)
        [1.0, 0.5, 0.25]
    """

    @property
    def step(self) -> Callable[[], object]:
        """Advance the schedule by an optimizer update: write the next values to the parameter groups of the optimizer.

        The method must not require arguments. ``plot_schedule`` calls it once after each update, and ignores its
        result.
        """
        ...


class ScheduleRow(NamedTuple):
    """The values that an optimizer update will use; ``plot_schedule`` returns a row for each update.

    It is a named tuple, and you need not create one yourself.

    Attributes:
        update: The number of the update in the run, from 1.
        epoch: The epoch that the update belongs to, from 1.
        values: The value of the scheduled field of each parameter group, in their order.

    Example:
        >>> import torch
        >>> from pa_schedulers import CosineLrScheduler, plot_schedule
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        >>> plot_schedule(CosineLrScheduler.create_scheduler_fn(), optimizer, 1, 2)[0]
        ScheduleRow(update=1, epoch=1, values=(1.0,))
    """

    update: int
    epoch: int
    values: tuple[float, ...]


def plot_schedule(
    create_scheduler_fn: Callable[[Optimizer], SteppedAlone],
    optimizer: Optimizer,
    num_epochs: int,
    num_update_steps_per_epoch: int,
    path: str | Path | None = None,
    *,
    field: str = "lr",
    max_num_train_steps: int | None = None,
    train_dataloader_len: int | None = None,
    eval_dataloader_len: int | None = None,
    dark: bool = False,
) -> list[ScheduleRow]:
    """Return the values that each update of a run will use, and draw them if a path is given.

    Use it to look at a schedule before you spend a run on it. The scheduler is created and stepped in the same way as
    by a trainer, with placeholders filled in, but on a copy of the parameter groups. Nothing is trained, and the
    optimizer is not changed. Schedulers from pa-schedulers and torch work if they are stepped by ``step()`` without
    arguments. Only the picture needs matplotlib (``pip install "pa-schedulers[plot]"``); matplotlib's global state is
    not touched.

    Args:
        create_scheduler_fn: The function that you pass to ``Trainer.train``.
        optimizer: The optimizer of the run, as it is when the run starts.
        num_epochs: The number of epochs of the run.
        num_update_steps_per_epoch: The number of optimizer updates in an epoch, which is the number of batches in an
            epoch divided by the number of accumulation steps, rounded up. A trainer has this number in ``run_config``.
        path: The file of the picture, a PNG unless it has a different file extension. It is replaced if it exists.
            Missing folders are created. The default, None, draws nothing.
        field: The field of the parameter groups to look at, for example ``"weight_decay"``. The default is the learning
            rate, ``"lr"``.
        max_num_train_steps: The number of updates after which the run ends; overrides ``num_epochs``, as in a trainer.
            The default, None, ends the run after its epochs.
        train_dataloader_len: The number that replaces ``TrainerPlaceholderValues.TRAIN_DATALOADER_LEN``, the number of
            training batches in an epoch, if the schedule needs it. The default, None, is for schedules without this
            placeholder.
        eval_dataloader_len: The number that replaces ``TrainerPlaceholderValues.EVAL_DATALOADER_LEN``, the number of
            evaluation batches, if the schedule needs it. The default, None, is for schedules without this placeholder.
        dark: Whether to draw on a dark background, for dark pages or slides. The default is False, for a white
            background.

    Returns:
        A ``ScheduleRow`` for each update, in order: the number of the update, its epoch, and a value for each parameter
        group.

    Raises:
        ImportError: A path is given, and matplotlib is not installed.
        ConfigurationError: A count is not positive, or the groups do not have the field. It is a ``ValueError``.
        ArgumentTypeError: ``create_scheduler_fn`` is not a function, or ``step()`` does not step the returned object.
            It is a ``TypeError``.

    Example:
        >>> import torch
        >>> from pa_schedulers import CosineLrScheduler, plot_schedule
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        >>> create_scheduler_fn = CosineLrScheduler.create_scheduler_fn(lr_min=0.0)
        >>> for update, epoch, values in plot_schedule(
        ...     create_scheduler_fn, optimizer, num_epochs=2, num_update_steps_per_epoch=2
        ... ):
        ...     print(update, epoch, [round(value, 3) for value in values])
        1 1 [1.0]
        2 1 [1.0]
        3 2 [0.854]
        4 2 [0.5]
    """
    num_epochs = whole_number("num_epochs", num_epochs, minimum=1)
    num_update_steps_per_epoch = whole_number("num_update_steps_per_epoch", num_update_steps_per_epoch, minimum=1)
    num_updates = num_epochs * num_update_steps_per_epoch
    if max_num_train_steps is not None:
        max_num_train_steps = whole_number("max_num_train_steps", max_num_train_steps, minimum=1)
        num_updates, num_epochs = max_num_train_steps, math.ceil(max_num_train_steps / num_update_steps_per_epoch)
    placeholder_values = {
        TrainerPlaceholderValues.NUM_EPOCHS: num_epochs,
        TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH: num_update_steps_per_epoch,
        TrainerPlaceholderValues.TRAIN_DATALOADER_LEN: train_dataloader_len,
        TrainerPlaceholderValues.EVAL_DATALOADER_LEN: eval_dataloader_len,
    }
    known = {placeholder.value: number for placeholder, number in placeholder_values.items() if number is not None}
    groups = _OptimizerOfNothing(optimizer)
    scheduler = _create(resolve_placeholders(create_scheduler_fn, known), groups)
    rows: list[ScheduleRow] = []
    for update in range(1, num_updates + 1):
        epoch = 1 + (update - 1) // num_update_steps_per_epoch
        rows.append(ScheduleRow(update, epoch, tuple(map(float, read_field(groups, field)))))
        groups.step()
        scheduler.step()
    if path is not None:
        style = plot_style(dark=dark)
        style.save(_draw(rows, field, style), path)
    return rows


class _OptimizerOfNothing(Optimizer):
    """Has copies of the parameter groups of another optimizer, without parameters to update."""

    def __init__(self, other: Optimizer) -> None:
        groups: list[dict[str, Any]] = [
            {"params": [nn.Parameter(torch.empty(0))]}
            | {name: copy.deepcopy(value) for name, value in group.items() if name not in ("params", "param_names")}
            for group in other.param_groups
        ]
        super().__init__(groups, dict(other.defaults))

    @override
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Do nothing; schedulers of torch warn unless the optimizer is stepped before them."""


def _create(factory: Callable[[Optimizer], SteppedAlone], optimizer: Optimizer) -> SteppedAlone:
    given: object = factory
    if not callable(given):
        raise ArgumentTypeError(
            "create_scheduler_fn must be a function that takes the optimizer, got an instance of "
            f"{type(given).__name__}."
        )
    scheduler = factory(optimizer)
    made: object = scheduler
    if not hasattr(made, "step") or isinstance(made, ReduceLROnPlateau):
        raise ArgumentTypeError(
            f"A {type(made).__name__} cannot be drawn, as it is not stepped by step() without arguments. To draw a "
            "custom schedule, derive a stateless scheduler from StatefulSchedulerBase."
        )
    return scheduler


def _draw(rows: Sequence[ScheduleRow], field: str, style: PlotStyle) -> Figure:
    """Draw a curve for each parameter group."""
    figure, axes = single_axes("schedule")
    from matplotlib.ticker import EngFormatter, MaxNLocator

    updates = [row.update for row in rows]
    num_groups = len(rows[0].values)
    for group, colour in zip(range(num_groups), itertools.cycle(style.curves), strict=False):
        axes.plot(updates, [row.values[group] for row in rows], color=colour, label=f"group {group}")
    if num_groups > 1:
        legend_above(axes, style, columns=4)
    axes.set_title(field, loc="left")
    axes.set_xlabel("optimizer updates")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    style.dress(axes)
    return figure
