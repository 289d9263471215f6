"""What a step must return, checked where it was returned."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from pa_core.errors import BatchOutputError

__all__ = ["check_step_output", "count_items", "no_sample_counted", "require_count", "unusable_kind"]

_KEYS = ("loss", "model_outputs", "batch_size")


def check_step_output(output: object, method: str, *, trained: nn.Module | None) -> Tensor:
    """Return the loss of a step.

    Args:
        output: What the step returned.
        method: The method that returned it, for the message.
        trained: The model, if a backward pass follows.

    Raises:
        BatchOutputError: The output is not a dictionary, a key is missing, or the loss or the batch size cannot be
            used.
    """
    if not isinstance(output, dict):
        given = "nothing: None" if output is None else f"an object of type {type(output).__name__}"
        raise _error(method, given, "a dictionary")
    fields = cast("dict[str, Any]", output)
    for key in _KEYS:
        if key not in fields:
            raise _error(method, f"a dictionary with the keys {', '.join(map(str, fields))}", f"the key {key} as well")
    loss = fields["loss"]
    if not isinstance(loss, Tensor):
        do = "Return the loss as the tensor that the loss function returned, without item() or float()."
        raise _error(method, f"a loss of type {type(loss).__name__}", "a tensor with one element", do)
    if loss.numel() != 1:
        do = "Return the mean of the losses: loss.mean(), or a loss function without reduction='none'."
        raise _error(method, f"a loss of shape {tuple(loss.shape)}", "a tensor with one element, such as its mean", do)
    odd = unusable_kind(loss)
    if odd is not None and (trained is not None or not _counts(loss)):
        do = "Return a real number that was computed from the outputs: of a complex loss, loss.abs() for example."
        raise _error(method, odd, "a tensor with one real element, such as one of dtype float32", do)
    if trained is not None and not loss.requires_grad:
        raise _no_gradient(method, trained)
    batch_size = fields["batch_size"]
    # Asked of the class first, as asking the abstract one takes several times as long.
    if not (batch_size.__class__ is int or _is_integer(batch_size)) or batch_size < 0:
        do = "Return the number of samples as the batch_size, for example len(targets)."
        raise _error(method, f"batch_size={batch_size!r}", "the number of samples in the batch, a whole number", do)
    return loss


def count_items(output: Mapping[str, Any], method: str) -> int | None:
    """Return what a step says its loss is the mean over; None if that is the samples.

    Args:
        output: What the step returned. A tensor as a count is read, which waits for an accelerator.
        method: The method that returned it, for the message.

    Raises:
        BatchOutputError: The number cannot be used.
    """
    items = output.get("num_items_in_batch")
    if items is None:
        return None
    number = _as_count(items)
    if number is None:
        raise BatchOutputError(f"num_items_in_batch of {method} must be a whole number >= 0, got {items!r}.")
    return number


def require_count(num_items: object, call: str) -> int:
    """Return the ``num_items`` that a call was passed.

    Args:
        num_items: What was passed. A tensor is read, which waits for an accelerator.
        call: The call, for the message.

    Raises:
        BatchOutputError: The number cannot be used.
    """
    number = num_items if num_items.__class__ is int else _as_count(num_items)
    if not isinstance(number, int) or number < 0:
        raise BatchOutputError(f"num_items in {call} must be a whole number >= 0, got {num_items!r}.")
    return number


def unusable_kind(loss: Tensor) -> str | None:
    """Return what a loss is that torch differentiates for no parameter, None if it is a real number.

    Args:
        loss: A tensor with one element.

    Example:
        >>> import torch
        >>> unusable_kind(torch.tensor(True)), unusable_kind(torch.tensor(0.5))
        ('a loss of dtype torch.bool', None)
    """
    if not loss.is_floating_point():
        return f"a loss of dtype {loss.dtype}"
    if loss.is_meta:
        return "a loss on the device 'meta', which holds no numbers"
    return None if loss.layout is torch.strided else f"a loss of layout {loss.layout}"


def no_sample_counted(metric_name: str) -> BatchOutputError:
    """Return the error of an epoch whose steps all say that their losses are means over nothing.

    Args:
        metric_name: What was to be recorded.
    """
    return BatchOutputError(
        f"There is no {metric_name}: each step of the epoch has returned a batch_size or num_items_in_batch of 0. "
        "Return the number of samples, and look at whether all items are masked."
    )


def _is_integer(value: object) -> bool:
    return value.__class__ is not bool and isinstance(value, numbers.Integral)


def _as_count(value: object) -> int | None:
    """A whole number, possibly as a tensor or as a float from a sum; None if it counts nothing."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex() or value.dtype is torch.bool:
            return None
        value = value.item()
    is_whole = value.is_integer() if isinstance(value, float) else _is_integer(value)
    number = int(cast("int | float", value)) if is_whole else -1
    return None if number < 0 else number


def _counts(loss: Tensor) -> bool:
    """Whether it is a whole number, as an evaluation may count errors."""
    return not (loss.is_floating_point() or loss.is_complex() or loss.dtype is torch.bool)


def _no_gradient(method: str, model: nn.Module) -> BatchOutputError:
    if any(parameter.requires_grad for parameter in model.parameters()):
        return _error(
            method,
            "a loss without a gradient: it was detached",
            "a loss that depends on trainable parameters",
            "Calculate the loss from the model's outputs without detach(), item() or no_grad() on the way.",
        )
    return BatchOutputError(
        "There is nothing to train.",
        given=f"{method} returned a loss without a gradient, since every parameter of {type(model).__name__} is frozen",
        do="Unfreeze what is to be trained before train(), for example with model.requires_grad_().",
    )


def _error(method: str, given: str, expected: str, do: str | None = None) -> BatchOutputError:
    return BatchOutputError(
        f"The trainer cannot use what {method} returned.",
        given=given,
        expected=expected,
        do=do or f"Return {{'loss': ..., 'model_outputs': ..., 'batch_size': ...}} from {method}.",
    )
