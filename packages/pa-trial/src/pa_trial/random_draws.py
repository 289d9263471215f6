"""The states of the global RNGs: whether something drew from them, and states that are something's own.

Most datasets do not draw. Then their samples need no keys, and seeding the RNGs for each of them would take longer than
loading it.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from pa_data.rng import seed_rng

_BYTES_OF_MT19937 = 2500  # 624 words of 32 bits, and the place of the next one


class RngStates:
    """The states of the global RNGs of Python, NumPy and torch at one moment; taken in 10 microseconds.

    Example:
        >>> states = RngStates()
        >>> states.have_changed()
        False
        >>> number = random.random()
        >>> states.have_changed()
        True
        >>> states.restore()
        >>> number == random.random()
        True
    """

    def __init__(self) -> None:
        self._no_normal_at: object = None
        self.capture()

    def capture(self) -> None:
        """Take the states of this moment."""
        self._python = random.getstate()
        self._torch = _torch_state()
        self._numpy = _numpy_state()
        # NumPy makes normal numbers in pairs and keeps the second one. It can have none where it had none, as long as
        # its state is the same; to ask takes 30 microseconds.
        if self._numpy != self._no_normal_at:
            state = _numpy_random().get_state(legacy=False)
            self._normal = (1, state["gauss"]) if state["has_gauss"] else (0, 0.0)
            self._no_normal_at = None if state["has_gauss"] else self._numpy

    def have_changed(self) -> bool:
        """Whether something was drawn or seeded since."""
        return (
            _place_of_python(self._python) != _place_of_python(random.getstate())
            or self._numpy != _numpy_state()
            or self._torch != _torch_state()
        )

    def restore(self, now: RngStates | None = None) -> None:
        """Have the RNGs continue from that moment.

        Args:
            now: Their states as they are, which saves reading them.
        """
        random.setstate(self._python)
        torch.default_generator.set_state(torch.frombuffer(bytearray(self._torch), dtype=torch.uint8))
        _restore_numpy(self._numpy)
        if now is None or now._normal != self._normal:
            state = _numpy_random().get_state(legacy=False)
            state["has_gauss"], state["gauss"] = self._normal
            _numpy_random().set_state(state)


class OwnRngs:
    """Separate RNGs for code that draws from the global ones now and then.

    Args:
        key: What they are seeded with.

    Example:
        >>> own = OwnRngs(7)
        >>> with own.in_use():
        ...     first = random.random()
        >>> again = OwnRngs(7)
        >>> with again.in_use():
        ...     first == random.random()
        True
    """

    def __init__(self, key: int) -> None:
        self._outside = RngStates()
        seed_rng(key)
        self._own = RngStates()
        self._outside.restore()

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Within the context, the global RNGs continue these; afterwards they are as they were."""
        self._outside.capture()
        self._own.restore(self._outside)
        try:
            yield
        finally:
            self._own.capture()
            self._outside.restore(self._own)


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
