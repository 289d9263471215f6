"""Runs trainings of pa-core on Ray, which restarts them after failures and searches for hyperparameters.

The public names are those in ``__all__`` of ``pa_ray``.
"""

from __future__ import annotations

from pa_ray._notice import RayPreemptionNotice
from pa_ray._report import ReportToRay
from pa_ray._states import newest_state
from pa_ray._train import train_on_ray

__all__ = [
    "RayPreemptionNotice",
    "ReportToRay",
    "newest_state",
    "train_on_ray",
]
