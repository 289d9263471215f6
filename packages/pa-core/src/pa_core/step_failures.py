"""Saying in which step of a run, and with which batch, an error was raised, and what in them may be the cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from pa_core.batch_structure import lists_of_numbers
from pa_core.errors import BatchMismatchError, is_explained
from pa_data.batches import describe_batch

__all__ = ["name_step"]

_BUILT_IN = {"builtins", "torch"}


def name_step(error: Exception, step: str, batch: object, model: nn.Module) -> None:
    """Add the step, and the structure of its batch, to an error that is about to leave the step.

    Errors that explain themselves are left alone, and so are exceptions of custom classes.

    Args:
        error: Any exception that the step raised.
        step: The step, such as ``"training step 3 of epoch 1"``.
        batch: What the step was called with.
        model: The model of the trainer, without what it is wrapped in.
    """
    if isinstance(error, BatchMismatchError):
        error.name_step(step)
    elif not is_explained(error) and type(error).__module__ in _BUILT_IN:
        error.add_note(f"Raised in {step}, whose batch is {describe_batch(batch)}.")
        for key in lists_of_numbers(batch):
            error.add_note(
                f"The lists under {key!r} were taken apart. Let the dataset return tensors: one of `datasets` does "
                'after dataset.with_format("torch").'
            )
        if isinstance(error, RuntimeError) and "device" in str(error):
            for name, device in _tensors_left_behind(model):
                error.add_note(
                    f"{name} is a tensor on {device}, and does not move with the model: make it a buffer with "
                    f"self.register_buffer({name.rpartition('.')[2]!r}, ..., persistent=False)."
                )


def _tensors_left_behind(model: nn.Module) -> Iterator[tuple[str, torch.device]]:
    """The tensors that are neither parameters nor buffers, and are not where the model is.

    Torch takes numbers, which have no dimension, from any device.
    """
    there = next((parameter.device for parameter in model.parameters()), None)
    for prefix, module in cast("Iterable[tuple[str, nn.Module]]", model.named_modules()):  # not annotated by torch
        attributes: dict[str, Any] = vars(module)
        for name, value in attributes.items():
            if isinstance(value, Tensor) and value.dim() > 0 and there not in {None, value.device}:
                yield f"{type(model).__name__}.{prefix}{'.' if prefix else ''}{name}", value.device
