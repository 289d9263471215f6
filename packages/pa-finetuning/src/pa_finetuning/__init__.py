"""Freezing and unfreezing the parts of a model, for transfer learning in any PyTorch loop."""

from __future__ import annotations

from pa_finetuning.model_freezer import ModelFreezer

__all__ = ["ModelFreezer"]
