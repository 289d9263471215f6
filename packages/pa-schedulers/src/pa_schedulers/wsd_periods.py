"""The plan of a warmup-stable-decay schedule: its checkpoints, and the period that leads to each of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from pa_core import ConfigurationError

_PARTS_BEFORE_THE_FIRST_OF_SEVERAL = 4  # the first of several checkpoints is at a quarter of the steps, or earlier


@dataclass(frozen=True)
class Period:
    """The steps from a checkpoint, or the start, to the next checkpoint: stable, and then decaying.

    Attributes:
        start: The number of steps before the period.
        end: The number of steps up to its checkpoint.
        decay_steps: The number of steps of the decay, which ends with the period.
    """

    start: int
    end: int
    decay_steps: int

    @property
    def pre_decay_step(self) -> int:
        """The number of steps before the decay."""
        return self.end - self.decay_steps


def checkpoint_steps(total_steps: int, num_checkpoints: int) -> list[int]:
    """Return the steps of the checkpoints.

    A single checkpoint is at the end. With several, each is at twice the step of the checkpoint before; the first is at
    a quarter of the steps, or earlier if the last would otherwise be beyond the end.

    Args:
        total_steps: The number of steps of the schedule.
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
            f"num_checkpoints={num_checkpoints} in {total_steps} steps are too many: each checkpoint is at twice the "
            f"step of the checkpoint before, so they need at least {parts} steps. Train for longer, or plan fewer "
            "checkpoints."
        )
    return [first * 2**index for index in range(num_checkpoints)]


@lru_cache(maxsize=32)
def plan_periods(total_steps: int, num_checkpoints: int, decay_phase_ratio: float) -> tuple[Period, ...]:
    """Return the period of each checkpoint; the result is cached, since a schedule reads it at each step.

    Args:
        total_steps: The number of steps of the schedule.
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
