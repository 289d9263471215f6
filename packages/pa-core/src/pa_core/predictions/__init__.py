"""Predictions: each sample of a dataset once, in its order, on any number of processes."""

from __future__ import annotations

from pa_core.predictions.types import PredictionWriter, PredictsBatches

__all__ = ["PredictionWriter", "PredictsBatches"]
