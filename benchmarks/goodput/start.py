"""Starts the script of `benchmarks/goodput/script.py`, and notes down when it has come how far.

Runs as ``python benchmarks/goodput/start.py FOLDER TASK``.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from benchmarks.goodput.progress import PROCESS, Moments


def main(arguments: list[str]) -> None:
    """Import torch and what is ours, one after the other, and train."""
    Path(arguments[0], PROCESS).write_text(str(os.getpid()))
    moments = Moments()
    moments.note("Python")
    if "--collecting" not in arguments:
        gc.disable()
    import torch  # pyright: ignore[reportUnusedImport]  # noqa: F401

    moments.note("torch")
    import pa_core  # pyright: ignore[reportUnusedImport]  # noqa: F401

    moments.note("pa_core")
    from benchmarks.goodput import script

    script.main(arguments, moments)


if __name__ == "__main__":
    main(sys.argv[1:])
