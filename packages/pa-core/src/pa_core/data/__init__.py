"""Data of a run: datasets, orders and loaders, and evaluation sets."""

from __future__ import annotations

from pa_core.data.batch_limit import DataLoaderSlice
from pa_core.data.evaluation_sets import EvaluationSet
from pa_core.distributed.collectives import remove_padding
from pa_data import KeyedDataLoader

__all__ = ["DataLoaderSlice", "EvaluationSet", "KeyedDataLoader", "remove_padding"]
