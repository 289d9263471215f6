"""Writing predictions: each sample of a dataset once, in order, on any number of processes.

A `ResumableWriter` writes them to Parquet, CSV or JSON lines files, or passes them to a function, in pieces that
survive a kill. ``Trainer.predict(dataset, write=...)`` creates it. Parquet files need pyarrow: ``pip install
pa-core[predict]``.
"""

from __future__ import annotations

from pa_core.predictions.writer import ResumableWriter

__all__ = ["ResumableWriter"]
