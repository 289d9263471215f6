"""Freezing and unfreezing, under the path that scripts know."""

from __future__ import annotations

from pa_finetuning import Layer, LayerGroup, ModelFreezer

__all__ = ["Layer", "LayerGroup", "ModelFreezer"]
