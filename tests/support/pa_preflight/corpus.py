"""All scripts of the corpus: with a mistake each, and without, some of which look like one."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.pa_preflight import losses, networks, runs, samples, tutorials
from tests.support.pa_preflight.scripts import Mistake, Script

_PARTS = (losses, networks, samples, runs)

PLANTED: dict[str, Mistake] = {name: one for part in _PARTS for name, one in part.planted.cases.items()}

HEALTHY: dict[str, Callable[[], Script]] = {name: one for part in _PARTS for name, one in part.healthy.cases.items()}

TUTORIALS = tutorials.healthy.cases
"""What is checked each night."""

NOT_FOUND = {"linear_model_for_a_product"}
"""A model that learns one batch, and not the task: only a longer run shows it."""
