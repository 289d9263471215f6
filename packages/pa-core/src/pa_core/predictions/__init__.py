"""Predictions: each sample of a dataset once, in its order, on any number of processes."""

from __future__ import annotations

from pa_core.predictions.types import PieceWriter, PredictionWriter, PredictsBatches

__all__ = ["PieceWriter", "PredictionWriter", "PredictsBatches"]
