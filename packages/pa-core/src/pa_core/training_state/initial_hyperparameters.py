"""The settings that a script chose for its optimizer, as opposed to changes by runs.

A run changes the settings of its optimizer: schedulers change the learning rate, and callbacks change the groups. A new
process creates a new optimizer; within a process, the next run finds the settings at the end of the last run. So the
settings are recorded when a run begins and when it ends. A setting that still has its value from the end of the run
counts as set before that run; any other setting was changed by the script since then.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer

from pa_core.training_state.model_state import hyperparameters


@dataclass
class _Record:
    """Plain settings of each group: those at the beginning of a run, and those at its end; None until then."""

    requested: list[dict[str, Any]]
    left: list[dict[str, Any]] | None = None


# Not on the trainer: the next run of an optimizer may belong to another trainer, as in a notebook.
_records: WeakKeyDictionary[Optimizer, _Record] = WeakKeyDictionary()


def requested_hyperparameters(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the plain settings of each group that the script chose.

    Args:
        optimizer: The optimizer; within a run, the result has the settings at its beginning.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        >>> with not_chosen_by_script(optimizer):
        ...     optimizer.param_groups[0]["lr"] = 0.04
        >>> requested_hyperparameters(optimizer)[0]["lr"]
        0.1
        >>> optimizer.param_groups[0]["lr"] = 0.05
        >>> requested_hyperparameters(optimizer)[0]["lr"]
        0.05
    """
    record, present = _records.get(optimizer), hyperparameters(optimizer)
    if record is None:
        return present
    if record.left is None:
        return record.requested
    number = len(record.requested)
    groups = [_of_group(*settings) for settings in zip(record.requested, record.left, present, strict=False)]
    return groups[:number] + present[max(number, len(record.left)) :]


def _of_group(before: Mapping[str, Any], left: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    is_untouched = {name: name in left and left[name] == value for name, value in now.items()}
    kept = {name: before[name] for name, untouched in is_untouched.items() if untouched and name in before}
    return kept | {name: now[name] for name, untouched in is_untouched.items() if not untouched}


def begin_run(optimizer: Optimizer, *, is_resumed: bool = False) -> list[dict[str, Any]]:
    """Record the settings of the script when a run begins.

    Args:
        optimizer: The optimizer.
        is_resumed: Whether the run resumes from a training state. If so, the groups become the groups of a new process:
            groups that an earlier run added are removed, and restoring the state adds them again.

    Returns:
        The settings, as in ``requested_hyperparameters``.
    """
    requested = requested_hyperparameters(optimizer)
    record = _records.get(optimizer)
    if is_resumed and record is not None and record.left is not None:
        del optimizer.param_groups[len(record.requested) : len(record.left)]
        _write(optimizer, requested)
    _records[optimizer] = _Record(requested)
    return requested


def _write(optimizer: Optimizer, requested: Sequence[Mapping[str, Any]]) -> None:
    for group, settings, present in zip(optimizer.param_groups, requested, hyperparameters(optimizer), strict=False):
        for name in present.keys() - settings.keys():
            del group[name]
        for name, value in settings.items():
            if isinstance(group[name], Tensor):
                group[name].fill_(value)
            else:
                group[name] = value


def end_run(optimizer: Optimizer) -> None:
    """Record the settings at the end of a run; has no effect if no run began."""
    record = _records.get(optimizer)
    if record is not None and record.left is None:
        record.left = hyperparameters(optimizer)


@contextmanager
def not_chosen_by_script(*optimizers: Optimizer) -> Generator[None]:
    """Load settings from a file within the context, without counting them as chosen by the script."""
    notes = [(optimizer, _records.get(optimizer)) for optimizer in optimizers]
    outside_of_runs = [optimizer for optimizer, record in notes if record is None or record.left is not None]
    for optimizer in outside_of_runs:
        begin_run(optimizer)
    try:
        yield
    finally:
        for optimizer in outside_of_runs:
            end_run(optimizer)
