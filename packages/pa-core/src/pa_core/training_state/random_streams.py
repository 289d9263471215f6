"""The random streams of a process: those that a script draws from without naming a generator."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch

from pa_core.data.keyed_random import numpy_random, seed_streams
from pa_core.data.order import mix

__all__ = ["capture_streams", "restore_streams", "start_streams"]


def capture_streams(device: torch.device) -> dict[str, Any]:
    """Return the states of the global streams of Python, numpy, torch, and torch on the accelerator.

    Args:
        device: The device of the run.

    Example:
        >>> import torch
        >>> streams = capture_streams(torch.device("cpu"))
        >>> first = torch.rand(1)
        >>> restore_streams(streams, torch.device("cpu"))
        >>> bool(torch.rand(1) == first)
        True
    """
    streams = {
        "python": random.getstate(),
        "numpy": numpy_random().get_state(),
        "torch": torch.default_generator.get_state(),
    }
    if device.type != "cpu":
        streams["device"] = torch.get_device_module(device).get_rng_state(device)
    return streams


def restore_streams(streams: Mapping[str, Any], device: torch.device) -> None:
    """Put the global streams back to where they were.

    Args:
        streams: What ``capture_streams`` returned.
        device: The device of the run. The stream of an accelerator is left alone if the states were captured without.
    """
    random.setstate(streams["python"])
    numpy_random().set_state(streams["numpy"])
    torch.default_generator.set_state(streams["torch"])
    if device.type != "cpu" and "device" in streams:
        torch.get_device_module(device).set_rng_state(streams["device"], device)


def start_streams(seed: int, update: int, rank: int, device: torch.device) -> None:
    """Begin streams of their own on a process that has none to go on with, because there were more or fewer of them.

    Args:
        seed: The seed of the run.
        update: The number of updates after which the run goes on.
        rank: The number of this process.
        device: The device of the run.
    """
    key = mix(mix(seed, update), rank)
    seed_streams(key)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(key)
