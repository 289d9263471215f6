"""Counts how often tensors are read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from typing_extensions import override

READS = {"__bool__", "__float__", "__int__", "__index__", "cpu", "item", "numpy", "tolist", "__array__", "is_nonzero"}


IS_CPU: Any = vars(torch._C.TensorBase)["is_cpu"].__get__  # pyright: ignore[reportPrivateUsage]  # what torch passes on


class Reads(TorchFunctionMode):
    """Counts the calls that wait for an accelerator, by the name of the function.

    Args:
        as_on_accelerator: Whether tensors say that they are on an accelerator, so that code that reads those of the CPU
            does what it does there.
    """

    def __init__(self, *, as_on_accelerator: bool) -> None:
        super().__init__()
        self.counts = Counter[str]()
        self._as_on_accelerator = as_on_accelerator

    @override
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS:
            self.counts[name] += 1
        if self._as_on_accelerator and func == IS_CPU:
            return False
        return func(*args, **(kwargs or {}))
