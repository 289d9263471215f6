"""Scripts without a mistake, some of which look like one: a check must not report any."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.pa_preflight import (
    healthy_fetching,
    healthy_loss_calls,
    healthy_losses,
    healthy_outputs,
    healthy_parts,
    healthy_samples,
    healthy_sets,
    healthy_tutorials,
    healthy_unusual,
    healthy_usual,
)
from tests.support.pa_preflight.scripts import Script

HEALTHY: dict[str, Callable[[], Script]] = {
    **healthy_usual.healthy.cases,
    **healthy_unusual.healthy.cases,
    **healthy_losses.healthy.cases,
    **healthy_loss_calls.healthy.cases,
    **healthy_samples.healthy.cases,
    **healthy_sets.healthy.cases,
    **healthy_fetching.healthy.cases,
    **healthy_outputs.healthy.cases,
    **healthy_parts.healthy.cases,
}
TUTORIALS = healthy_tutorials.healthy.cases
"""What is checked each night."""
