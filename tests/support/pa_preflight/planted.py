"""Scripts with one mistake each, as users make them, and what a check must find."""

from __future__ import annotations

import importlib.util

from tests.support.pa_preflight import (
    planted_in_data,
    planted_in_dependence,
    planted_in_fetching,
    planted_in_loss_calls,
    planted_in_losses,
    planted_in_models,
    planted_in_outputs,
    planted_in_parts,
    planted_in_runs,
    planted_in_samples,
    planted_in_sets,
    planted_in_settings,
    planted_in_states,
)
from tests.support.pa_preflight.scripts import Planted

PLANTED: dict[str, Planted] = {
    **planted_in_losses.planted.cases,
    **planted_in_loss_calls.planted.cases,
    **planted_in_models.planted.cases,
    **planted_in_data.planted.cases,
    **planted_in_dependence.planted.cases,
    **planted_in_fetching.planted.cases,
    **planted_in_outputs.planted.cases,
    **planted_in_parts.planted.cases,
    **planted_in_samples.planted.cases,
    **planted_in_sets.planted.cases,
    **planted_in_runs.planted.cases,
    **planted_in_settings.planted.cases,
    **planted_in_states.planted.cases,
}

if importlib.util.find_spec("pa_callbacks_extra") is not None:
    from tests.support.pa_preflight import planted_in_extra_callbacks

    PLANTED.update(planted_in_extra_callbacks.planted.cases)

NOT_FOUND = {"linear_model_for_a_product"}
"""A model that learns one batch, and not the task: only a longer run shows it."""
