"""The cluster that a trial runs on: there is none."""

from __future__ import annotations

from typing import Any


def get_cluster_info() -> Any | None:
    """Return None, as Determined does where a script runs without its cluster.

    A script that continues from ``get_cluster_info().latest_checkpoint`` passes
    ``latest_checkpoint=context.get_latest_checkpoint()`` instead.

    Example:
        >>> get_cluster_info() is None
        True
    """
    return None
