"""Which states may go when there are more than are wanted."""

from __future__ import annotations

from collections.abc import Iterable

from pa_core.storage.state_record import StateRecord

__all__ = ["states_to_remove"]


def states_to_remove(records: Iterable[StateRecord], max_checkpoints: int, run: str) -> list[StateRecord]:
    """Choose the states of a run that are no longer needed, oldest first.

    The newest ``max_checkpoints`` valid states of the run stay, and so do all states of other runs. Invalid
    states do not count; those of the run that are older than all that stay are chosen as well.

    Args:
        records: The states of one folder, in any order.
        max_checkpoints: How many valid states of the run stay, at least 1.
        run: The run whose states may be removed.

    Raises:
        ConfigurationError: ``max_checkpoints`` is less than 1.
    """
    raise NotImplementedError
