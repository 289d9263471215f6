"""Whether something draws random numbers from the global RNGs.

Most datasets do not. Then their samples need no keys, and seeding the RNGs for each of them would take longer than
loading it.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any, cast

import numpy as np
import torch

__all__ = ["RngMark"]

_BYTES_OF_MT19937 = 2500  # 624 words of 32 bits, and the place of the next one


class RngMark:
    """The states of the global RNGs of Python, NumPy and torch at one moment; taken in some 10 microseconds.

    Example:
        >>> mark = RngMark()
        >>> mark.holds()
        True
        >>> number = random.random()
        >>> mark.holds()
        False
        >>> mark.restore()
        >>> number == random.random()
        True
    """

    __slots__ = ("_numpy", "_python", "_torch")

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = _numpy_state()
        self._torch = _torch_state()

    def holds(self) -> bool:
        """Whether the states are still those, so that nothing was drawn and nothing seeded."""
        return (
            _place_of_python(self._python) == _place_of_python(random.getstate())
            and self._numpy == _numpy_state()
            and self._torch == _torch_state()
        )

    def restore(self) -> None:
        """Have the RNGs continue from this moment."""
        random.setstate(self._python)
        _restore_numpy(self._numpy)
        torch.default_generator.set_state(torch.frombuffer(bytearray(self._torch), dtype=torch.uint8))


def _place_of_python(state: tuple[Any, ...]) -> tuple[Any, ...]:
    """What differs between two states that draws lie between: comparing all words would take as long as taking them."""
    words = state[1]
    return words[0], words[-1], state[2]


def _torch_state() -> bytes:
    return torch.default_generator.get_state().numpy().tobytes()


def _numpy_state() -> object:
    generator: Any = cast("Any", np.random).get_bit_generator()
    if type(generator) is np.random.MT19937:  # whose state takes NumPy 30 microseconds to tell
        return ctypes.string_at(generator.ctypes.state_address, _BYTES_OF_MT19937)
    return generator.state


def _restore_numpy(state: object) -> None:
    generator: Any = cast("Any", np.random).get_bit_generator()
    if isinstance(state, bytes):
        ctypes.memmove(generator.ctypes.state_address, state, _BYTES_OF_MT19937)
    else:
        generator.state = state
