"""Whether something draws random numbers from the global RNGs.

Most datasets do not. Then their samples need no keys, and seeding the RNGs for each of them would take longer than
loading it.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np
import torch

__all__ = ["DrawWatch"]

_BYTES_OF_MT19937 = 2500  # 624 words of 32 bits, and the place of the next one


class DrawWatch:
    """Notices draws from the global RNGs of Python, NumPy and torch, and can undo them; a look takes 10 microseconds.

    Example:
        >>> watch = DrawWatch()
        >>> watch.begin()
        >>> watch.has_seen_draws()
        False
        >>> number = random.random()
        >>> watch.has_seen_draws()
        True
        >>> watch.undo()
        >>> number == random.random()
        True
    """

    def __init__(self) -> None:
        self._no_normal_at: object = None
        self.begin()

    def begin(self) -> None:
        """Watch from now on."""
        self._python = random.getstate()
        self._torch = _torch_state()
        self._numpy = _numpy_state()
        # NumPy makes normal numbers in pairs and keeps the second one. It can have none where it had none, as long as
        # its state is the same; to ask takes 30 microseconds.
        if self._numpy != self._no_normal_at:
            state = _numpy_random().get_state(legacy=False)
            self._normal = state["has_gauss"], state["gauss"]
            self._no_normal_at = None if state["has_gauss"] else self._numpy

    def has_seen_draws(self) -> bool:
        """Whether something was drawn or seeded since."""
        return (
            _place_of_python(self._python) != _place_of_python(random.getstate())
            or self._numpy != _numpy_state()
            or self._torch != _torch_state()
        )

    def undo(self) -> None:
        """Have the RNGs continue from where the watch began."""
        random.setstate(self._python)
        torch.default_generator.set_state(torch.frombuffer(bytearray(self._torch), dtype=torch.uint8))
        _restore_numpy(self._numpy)
        state = _numpy_random().get_state(legacy=False)
        state["has_gauss"], state["gauss"] = self._normal
        _numpy_random().set_state(state)


def _place_of_python(state: tuple[Any, ...]) -> tuple[Any, ...]:
    """What differs between two states that draws lie between: comparing all words would take as long as taking them."""
    words = state[1]
    return words[0], words[-1], state[2]


def _torch_state() -> bytes:
    return torch.default_generator.get_state().numpy().tobytes()


def _numpy_random() -> Any:
    return np.random


def _numpy_state() -> object:
    generator = _numpy_random().get_bit_generator()
    if type(generator) is np.random.MT19937:  # whose state takes NumPy 30 microseconds to tell
        return ctypes.string_at(generator.ctypes.state_address, _BYTES_OF_MT19937)
    return generator.state


def _restore_numpy(state: object) -> None:
    generator = _numpy_random().get_bit_generator()
    if isinstance(state, bytes):
        ctypes.memmove(generator.ctypes.state_address, state, _BYTES_OF_MT19937)
    else:
        generator.state = state
