"""Datasets in many files (JSON lines, Parquet, tar archives) with random access to their samples."""

from __future__ import annotations

from pa_data.files import *  # noqa: F403  # the same names, under the name that they had before
from pa_data.files import __all__  # noqa: F401  # what is public here, too
