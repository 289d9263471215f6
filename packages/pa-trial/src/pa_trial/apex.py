"""NVIDIA's Apex, which torch's own mixed precision has taken the place of."""

from __future__ import annotations

from pa_trial.errors import InvalidExperimentException

__all__ = ["refuse_apex"]


def refuse_apex() -> InvalidExperimentException:
    """Return the error of a trial that requests mixed precision with Apex."""
    return InvalidExperimentException(
        "Mixed precision with Apex is not supported.",
        given="context.configure_apex_amp(...)",
        expected="enabled=False, which returns models and optimizers unchanged",
        do="Call context.experimental.use_amp() before the models are wrapped, and remove this call.",
    )
