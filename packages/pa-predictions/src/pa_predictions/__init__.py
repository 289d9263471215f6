"""Predictions to Parquet, CSV and JSON lines, or to a function, in pieces that survive a kill.

``Trainer.predict(dataset, write=...)`` of ``pa_core`` uses it where it is installed.

Public are the names in ``__all__`` of ``pa_predictions``.
"""

from __future__ import annotations

from pa_predictions._writer import ResumableWriter

__all__ = ["ResumableWriter"]
