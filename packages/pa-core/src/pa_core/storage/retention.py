"""Which states may go when there are more than are wanted."""

from __future__ import annotations

from collections.abc import Iterable

from pa_core.errors import ConfigurationError
from pa_core.storage.state_record import StateRecord, age

__all__ = ["states_to_remove"]


def states_to_remove(records: Iterable[StateRecord], max_checkpoints: int, run: str) -> list[StateRecord]:
    """Choose the states of a run that are no longer needed, oldest first.

    The newest ``max_checkpoints`` valid states of the run stay, and so do all states of other runs. Invalid
    states do not count; those of the run that are older than all valid ones that stay go as well. While the run
    has no valid state, nothing goes.

    Args:
        records: The states of one folder, in any order.
        max_checkpoints: How many valid states of the run stay, at least 1.
        run: The run whose states may be removed.

    Raises:
        ConfigurationError: ``max_checkpoints`` is less than 1.

    Example:
        >>> from pathlib import Path
        >>> records = [StateRecord(Path(f"state_{n}"), n, "first", n * 10, 1, False, None) for n in range(5)]
        >>> [record.sequence for record in states_to_remove(records, 2, "first")]
        [0, 1, 2]
    """
    if max_checkpoints < 1:
        raise ConfigurationError(
            "At least one training state has to stay.",
            given=f"max_checkpoints={max_checkpoints}",
            expected="an integer of at least 1",
            do="Pass how many states are to be kept.",
        )
    own = sorted((record for record in records if record.run == run), key=age)
    kept = [record for record in own if record.problem is None][-max_checkpoints:]
    return [record for record in own if kept and age(record) < age(kept[0])]
