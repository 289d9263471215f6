"""The profiler that a trial requested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.profiler import profile, tensorboard_trace_handler

__all__ = ["make_profiler"]


def make_profiler(tensorboard_path: Path | None, *args: Any, **kwargs: Any) -> profile:
    """Return a ``torch.profiler.profile`` that writes its traces to the TensorBoard folder.

    Args:
        tensorboard_path: That folder; None for ``runs``, the default folder of TensorBoard's writer.
        args: Positional arguments of ``torch.profiler.profile``.
        kwargs: Keyword arguments of ``torch.profiler.profile``; ``on_trace_ready`` replaces the folder.
    """
    kwargs.setdefault("on_trace_ready", tensorboard_trace_handler(str(tensorboard_path or "runs")))
    return profile(*args, **kwargs)
