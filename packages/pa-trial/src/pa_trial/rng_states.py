"""The RNG states of a process in the form of a checkpoint, which is built of tensors, numbers and strings alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from pa_data.rng import capture_rng_state, restore_rng_state, restored_rng_states

_NAMES = {
    "random_rng_state": "python",
    "np_rng_state": "numpy",
    "cpu_rng_state": "torch",
    "gpu_rng_state": "device",
}
"""By the names that checkpoints, like the engine, have for them."""


def capture(device: torch.device) -> dict[str, Any]:
    """Return the RNG states of this process.

    Args:
        device: Its device.

    Example:
        >>> sorted(capture(torch.device("cpu")))
        ['cpu_rng_state', 'np_rng_state', 'random_rng_state']
    """
    states = capture_rng_state(device)
    return {name: _without_arrays(states[own]) for name, own in _NAMES.items() if own in states}


def check(states: Mapping[str, Any]) -> None:
    """Raise an error for anything that ``restore`` could not restore; nothing is changed.

    Args:
        states: What is said to be what ``capture`` returned.

    Raises:
        ValueError: One of the states is missing or is not one.
    """
    cpu = torch.device("cpu")
    with restored_rng_states(cpu):
        try:
            restore(states, cpu)
        except Exception as error:  # what a wrong state does is not limited to some kinds of errors
            message = f"{type(error).__name__}: {error}"
            raise ValueError(message) from error


def restore(states: Mapping[str, Any], device: torch.device) -> None:
    """Continue drawing where another process stood.

    Args:
        states: What ``capture`` returned there.
        device: The device of this process.
    """
    restore_rng_state(_of_engine(states), device)


def _of_engine(states: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {own: states[name] for name, own in _NAMES.items() if name in states}
    if "numpy" in renamed:
        renamed["numpy"] = _with_arrays(renamed["numpy"])
    if renamed.get("device") is None:
        renamed.pop("device", None)
    return renamed


def _without_arrays(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch
    return _mapped(value, _without_arrays)


def _with_arrays(value: Any) -> Any:
    return value.numpy() if isinstance(value, Tensor) else _mapped(value, _with_arrays)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {name: change(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, tuple):
        return tuple(change(item) for item in cast("Iterable[Any]", value))
    return value
