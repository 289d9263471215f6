"""The cluster of a trial: a trial runs without a cluster."""

from __future__ import annotations

from typing import Any


def get_cluster_info() -> Any | None:
    """Return None, as Determined does where a script runs without its cluster.

    In a script for Determined, replace ``get_cluster_info().latest_checkpoint`` by
    ``context.get_latest_checkpoint()``.

    Example:
        >>> get_cluster_info() is None
        True
    """
    return None
