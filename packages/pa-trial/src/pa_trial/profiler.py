"""The profiler that a trial asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.profiler import profile, tensorboard_trace_handler

__all__ = ["make_profiler"]


def make_profiler(tensorboard_path: Path | None, *args: Any, **kwargs: Any) -> profile:
    """Return a profiler of torch that writes its traces to the folder of TensorBoard.

    Args:
        tensorboard_path: That folder; None for ``runs``, in which TensorBoard's own writer makes its folders.
        args: Arguments of ``torch.profiler.profile``.
        kwargs: The same; an ``on_trace_ready`` of the user's takes the place of the folder.
    """
    kwargs.setdefault("on_trace_ready", tensorboard_trace_handler(str(tensorboard_path or "runs")))
    return profile(*args, **kwargs)
