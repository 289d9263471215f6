"""Mixed precision by ``context.experimental.use_amp()``: forward passes under autocast, and the gradient scaler."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pa_trial.types import rebuilt
from pa_trial.user_warnings import warn_user


def create_scaler(device: torch.device) -> torch.amp.GradScaler:
    """Return the scaler of automatic mixed precision; without CUDA, the scaler does nothing, and a warning says so.

    Args:
        device: The device of the training.
    """
    if device.type != "cuda":
        warn_user(
            f"use_amp() has no effect on {device.type}: the training computes in full precision, and its gradients are "
            "not scaled. Call it only if context.device is a GPU."
        )
    return torch.amp.GradScaler(device.type, enabled=device.type == "cuda")


def to_full_precision(output: object) -> Any:
    """Return the output of a model with its fp16 tensors as fp32, in any nesting.

    Args:
        output: A tensor, or lists, tuples and mappings of tensors and other values, which are not changed.

    Example:
        >>> import torch
        >>> to_full_precision({"logits": torch.ones(1, dtype=torch.float16), "number": 1})
        {'logits': tensor([1.]), 'number': 1}
    """
    if isinstance(output, Tensor):
        return output.float() if output.dtype is torch.float16 else output
    return rebuilt(output, to_full_precision)


class AutocastHooks:
    """Runs the forward passes of a module under autocast, in fp16, and returns their outputs in fp32.

    The module is not wrapped; copies and pickles of it have the same hooks.

    Args:
        device_type: The kind of device that computes in fp16.

    Example:
        >>> import torch
        >>> hooks, model = AutocastHooks("cpu"), torch.nn.Linear(2, 1)
        >>> handles = hooks.register(model)
        >>> model(torch.zeros(1, 2)).dtype
        torch.float32
        >>> for handle in handles:
        ...     handle.remove()
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._entered: list[Any] = []  # the autocast contexts of forward passes in progress

    def register(self, module: nn.Module) -> list[RemovableHandle]:
        """Register the hooks. Hooks of the user run under autocast, too.

        Args:
            module: The module.
        """
        before = module.register_forward_pre_hook(self._enter, prepend=True)
        after = module.register_forward_hook(self._leave, always_call=True)
        return [before, after]

    def _enter(self, _module: nn.Module, _inputs: Any) -> None:
        context: Any = torch.autocast(self._device_type, dtype=torch.float16)
        context.__enter__()
        self._entered.append(context)

    def _leave(self, _module: nn.Module, _inputs: Any, output: Any) -> Any:
        if self._entered:  # else the pass failed before it began
            self._entered.pop().__exit__(None, None, None)
        return to_full_precision(output)
