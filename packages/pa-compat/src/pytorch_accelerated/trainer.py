"""The trainers, under the path that scripts know."""

from __future__ import annotations

from pa_core import (
    DEFAULT_CALLBACKS,
    Trainer,
    TrainerPlaceholderValues,
    TrainerWithTimmScheduler,
    get_default_callbacks,
)

__all__ = [
    "DEFAULT_CALLBACKS",
    "Trainer",
    "TrainerPlaceholderValues",
    "TrainerWithTimmScheduler",
    "get_default_callbacks",
]
