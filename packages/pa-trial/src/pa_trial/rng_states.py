"""The RNG states of a process, as a checkpoint stores them: only tensors, numbers and strings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pa_data.rng import capture_rng_state, restore_rng_state
from pa_trial.types import rebuilt

_NAMES = {
    "random_rng_state": "python",
    "np_rng_state": "numpy",
    "cpu_rng_state": "torch",
    "gpu_rng_state": "device",
}
"""By their names in checkpoints and in the engine."""


def capture(device: torch.device) -> dict[str, Any]:
    """Return the RNG states of this process.

    Args:
        device: Its device.

    Example:
        >>> sorted(capture(torch.device("cpu")))
        ['cpu_rng_state', 'np_rng_state', 'random_rng_state']
    """
    states = capture_rng_state(device)
    return {name: _changed(states[own], np.ndarray, torch.tensor) for name, own in _NAMES.items() if own in states}


def restore(states: Mapping[str, Any], device: torch.device) -> None:
    """Continue drawing where another process stopped.

    Args:
        states: The return value of ``capture`` on that process.
        device: The device of this process.
    """
    restored = {own: states[name] for name, own in _NAMES.items() if states.get(name) is not None}
    restore_rng_state({**restored, "numpy": _changed(restored["numpy"], Tensor, Tensor.numpy)}, device)


def _changed(value: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    """Return a nested value with its values of a type changed."""
    return change(value) if isinstance(value, kind) else rebuilt(value, lambda item: _changed(item, kind, change))
