"""What becomes of the schedule of a run that is resumed with more or fewer updates than it was saved with."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch.optim import Optimizer

from pa_core._torch import NESTED_SCHEDULERS
from pa_core.training_state.run_settings import LENGTH_OF_SCHEDULE, Difference

__all__ = ["with_schedule_lengths"]

_LONGEST_LOOK = 10_000
"""Steps of the scheduler to look ahead; more would delay the start of a long run."""


def with_schedule_lengths(
    differences: Sequence[Difference],
    schedules: Mapping[str, tuple[object, Optimizer]],
    *,
    is_new: bool,
    steps_done: int | None,
) -> list[Difference]:
    """Return the differences with the length that each scheduler really uses, and what follows after it.

    Args:
        differences: What differs from the saved run.
        schedules: The schedulers and the optimizer of each, by name, with their restored states.
        is_new: Whether the schedules start over instead.
        steps_done: How often the scheduler has been stepped; None where an override of the trainer steps it.
    """
    said = list(differences)
    for index, one in enumerate(differences):
        if one.name == LENGTH_OF_SCHEDULE:
            used = {name: _used(one, *schedule, is_new, steps_done) for name, schedule in schedules.items()}
            lengths = set(used.values()) or {one.asked}
            by_name = "; ".join(f"{name}: {length}" for name, length in used.items())
            said[index] = one._replace(used=by_name if len(lengths) > 1 else lengths.pop())
    return said


def _used(one: Difference, scheduler: object, optimizer: Optimizer, is_new: bool, steps_done: int | None) -> Any:
    if is_new or one.saved is None or one.asked is None:
        return one.asked
    if _follows_functions(cast("Any", scheduler).state_dict()):
        return f"{one.asked}, as far as the function of the script depends on it"
    if steps_done is None or one.asked < one.saved:
        return one.saved
    rates = _rates_ahead(scheduler, optimizer, one.asked - steps_done, until=one.saved - steps_done)
    return f"{one.saved}{_what_follows(rates, at=max(0, one.saved - steps_done))}"


def _follows_functions(state: Mapping[str, Any]) -> bool:
    """Whether the schedule is a function, as in ``LambdaLR``: a state has the attributes of objects alone."""
    nested = [cast("Mapping[str, Any]", one) for one in state.get(NESTED_SCHEDULERS, ()) if isinstance(one, Mapping)]
    return any(not one for one in state.get("lr_lambdas", ())) or any(map(_follows_functions, nested))


def _rates_ahead(scheduler: object, optimizer: Optimizer, num_steps: int, until: int) -> list[list[float]]:
    """The rates of all groups now and after each further step, from a copy; none where they cannot be had."""
    attributes = vars(scheduler).keys() - {"optimizer"}
    if until > _LONGEST_LOOK or not attributes <= cast("Any", scheduler).state_dict().keys():
        return []
    shadow = copy.copy(optimizer)
    shadow.param_groups = [
        {name: value if name == "params" else copy.deepcopy(value) for name, value in group.items()}
        for group in optimizer.param_groups
    ]
    try:
        twin: Any = copy.deepcopy(scheduler, {id(optimizer): shadow})
        rates = [_rates(shadow)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(min(num_steps, max(0, until) + _LONGEST_LOOK)):
                twin.step()
                rates.append(_rates(shadow))
    except Exception:  # a scheduler of any kind, which the run itself will step
        return []
    return rates


def _rates(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def _what_follows(rates: Sequence[Sequence[float]], at: int) -> str:
    """What the rate does after the end of the schedule."""
    at_end, later = rates[at : at + 1], rates[at + 1 :]
    if not at_end or not later:
        return ""
    if any(rate > end * (1 + 1e-6) + 1e-12 for one in later for rate, end in zip(one, at_end[0], strict=True)):
        return "; then the rate climbs again"
    # Some schedules use the value of a step in the update after it, and reach their end one update later.
    if all(list(one) == list(later[0]) for one in later):
        return "; then the rate stays as it is"
    return "; then the rate keeps falling"
