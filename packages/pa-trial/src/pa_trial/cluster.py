"""The cluster of a trial: a trial runs without a cluster."""

from __future__ import annotations

from typing import Any


def get_cluster_info() -> Any | None:
    """Return None, as Determined does if a script runs without a cluster.

    It exists so that scripts for Determined run unchanged. For ``get_cluster_info().latest_checkpoint``, call
    ``context.get_latest_checkpoint()`` instead; for ``user_data``, pass ``hparams`` to ``init``.

    Returns:
        Always None.

    Example:
        >>> from pa_trial import get_cluster_info
        >>> get_cluster_info() is None
        True
    """
    return None
