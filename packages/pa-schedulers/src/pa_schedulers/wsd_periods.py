"""The plan of a warmup-stable-decay schedule: its checkpoints, and the period that leads to each of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from pa_core import ConfigurationError

_PARTS_BEFORE_THE_FIRST_OF_SEVERAL = 4  # the first checkpoint of several is at a quarter of the steps, or earlier


@dataclass(frozen=True)
class Period:
    """The steps from one checkpoint, or the start, to the next: stable, and then decaying.

    Attributes:
        start: Steps before the period.
        end: Steps up to its checkpoint.
        decay_steps: Steps of the decay, which ends with the period.
    """

    start: int
    end: int
    decay_steps: int

    @property
    def pre_decay_step(self) -> int:
        """Steps before the decay."""
        return self.end - self.decay_steps


def checkpoint_steps(total_steps: int, num_checkpoints: int) -> list[int]:
    """Return the steps of the checkpoints.

    A single one is at the end. Of several, each is at twice the step of the one before; the first is at a
    quarter of the steps, or earlier if the last one would otherwise be past the end.

    Args:
        total_steps: Steps of the schedule.
        num_checkpoints: How many checkpoints to plan.

    Raises:
        ConfigurationError: There are too few steps for so many checkpoints.

    Example:
        >>> checkpoint_steps(200_000, 3)
        [50000, 100000, 200000]
    """
    if num_checkpoints == 1:
        return [total_steps]
    parts = max(_PARTS_BEFORE_THE_FIRST_OF_SEVERAL, 2 ** (num_checkpoints - 1))
    first = total_steps // parts
    if first == 0:
        raise ConfigurationError(
            f"num_checkpoints={num_checkpoints} in {total_steps} steps are too many, each at twice the step of the one "
            f"before: they need at least {parts} steps. Train for longer, or plan fewer checkpoints."
        )
    return [first * 2**index for index in range(num_checkpoints)]


@lru_cache(maxsize=32)
def plan_periods(total_steps: int, num_checkpoints: int, decay_phase_ratio: float) -> tuple[Period, ...]:
    """Return the period of each checkpoint; a schedule needs them at each of its steps.

    Args:
        total_steps: Steps of the schedule.
        num_checkpoints: How many checkpoints to plan.
        decay_phase_ratio: The fraction of a period in which the rate decays, rounded down to whole steps.

    Example:
        >>> plan_periods(100, num_checkpoints=1, decay_phase_ratio=0.1)
        (Period(start=0, end=100, decay_steps=10),)
    """
    return tuple(
        Period(start, end, decay_steps=int((end - start) * decay_phase_ratio))
        for start, end in pairwise([0, *checkpoint_steps(total_steps, num_checkpoints)])
    )
