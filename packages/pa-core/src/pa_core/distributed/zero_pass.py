"""How a process without a sample takes part in what the others exchange in a step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from pa_core.distributed.collectives import synchronising_wrapper

__all__ = ["CallsOfStep", "zero_loss", "zero_pass"]


def zero_loss(module: nn.Module) -> Tensor:
    """Return a loss that depends on every trainable parameter, and has gradients of zero.

    Args:
        module: A module with trainable parameters.

    Example:
        >>> import torch
        >>> zero_loss(torch.nn.Linear(2, 1)).requires_grad
        True
    """
    return torch.stack([parameter.sum() for parameter in module.parameters() if parameter.requires_grad]).sum() * 0.0


class _Zero(nn.Module):
    """Stands in for a module on a process without a sample, and returns its ``zero_loss``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._stands_in_for = (module,)  # in a tuple, or it would be a child of this module

    @override
    def forward(self) -> Tensor:
        return zero_loss(self._stands_in_for[0])

    @override
    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """The buffers of the module, which each call of the wrapper exchanges."""
        return self._stands_in_for[0].named_buffers(prefix, recurse, remove_duplicate)


class CallsOfStep:
    """Counts how often a training step calls the model, so that a process without a sample makes as many calls.

    Each call of ``DistributedDataParallel`` may exchange the buffers of the model: a process that called it less
    often than the others would keep them waiting.

    Args:
        model: The wrapped model, as a training step calls it.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(1, 1)
        >>> calls = CallsOfStep(model)
        >>> with calls.counting():
        ...     for inputs in torch.ones(2, 1):  # a step that compares two views
        ...         _ = model(inputs)
        >>> with calls.counting():
        ...     calls.missing
        2
    """

    def __init__(self, model: nn.Module) -> None:
        self._in_this_step = 0
        self._in_a_step = 1
        self._is_in_step = False
        model.register_forward_pre_hook(self._count)

    @contextmanager
    def counting(self) -> Generator[None]:
        """Count the calls of the next step within the context; it is expected to make as many as the last one.

        This leaves out calls by the optimizer, which makes them on each process, with samples or without.
        """
        self._in_a_step = self._in_this_step or self._in_a_step
        self._in_this_step = 0
        self._is_in_step = True
        try:
            yield
        finally:
            self._is_in_step = False

    @property
    def missing(self) -> int:
        """The number of calls that the present step still lacks."""
        return max(self._in_a_step - self._in_this_step, 0)

    def _count(self, _model: nn.Module, _inputs: object) -> None:
        self._in_this_step += self._is_in_step


def zero_pass(model: nn.Module, calls: int = 1) -> Tensor:
    """Return a loss whose gradients are zero, through the wrapper that synchronises gradients.

    A process without a sample takes part in the collectives of the others this way: one that left the step out would
    keep them waiting. The model itself, and any hook on it, is not called.

    Args:
        model: A ``DistributedDataParallel``, or a compiled one.
        calls: How many calls of the model the other processes make that this process has not made. With 0, it has
            made them all, but has no loss to show for it.
    """
    wrapper = synchronising_wrapper(model)
    if wrapper is None:
        return cast("Tensor", _Zero(model)())
    module = cast("nn.Module", wrapper.module)  # pyright: ignore[reportUnknownMemberType]  # torch does not annotate it
    wrapper.module = _Zero(module)
    if calls == 0:
        wrapper.require_forward_param_sync = False  # for one call: the buffers of this step were exchanged already
    # Not wrapper(): hooks on it are not for these calls, and would count them.
    forward = cast("Callable[[], Tensor]", wrapper.forward)  # pyright: ignore[reportUnknownMemberType]  # as above
    try:
        losses = [forward() for _ in range(max(calls, 1))]
    finally:
        wrapper.module = module
    return losses[-1]
