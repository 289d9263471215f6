"""The settings of a run, under the path that scripts know."""

from __future__ import annotations

from pa_core import TrainerRunConfig

__all__ = ["TrainerRunConfig"]
