"""Freezing and unfreezing, under the path that scripts know."""

from __future__ import annotations

from pa_finetuning import ModelFreezer

__all__ = ["ModelFreezer"]
