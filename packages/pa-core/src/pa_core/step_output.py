"""What a step must return, checked where it was returned."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from pa_core.errors import BatchOutputError

__all__ = ["check_step_output", "count_items", "no_sample_counted"]

_KEYS = ("loss", "model_outputs", "batch_size")


def check_step_output(output: object, method: str, *, needs_gradient: bool) -> Tensor:
    """Return the loss of a step.

    Args:
        output: What the step returned.
        method: The method that returned it, for the message.
        needs_gradient: Whether a backward pass follows.

    Raises:
        BatchOutputError: The output is no dictionary, a key is missing, or the loss or the batch size cannot be used.
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
        raise _error(method, f"a loss of type {type(loss).__name__}", "a tensor with one element")
    if loss.numel() != 1:
        raise _error(method, f"a loss of shape {tuple(loss.shape)}", "a tensor with one element, such as its mean")
    if needs_gradient and not loss.requires_grad:
        raise _error(
            method,
            "a loss without a gradient: it was detached, or every parameter is frozen",
            "a loss that depends on trainable parameters",
        )
    batch_size = fields["batch_size"]
    if not isinstance(batch_size, numbers.Integral) or batch_size < 0:
        raise _error(method, f"batch_size={batch_size!r}", "the number of samples in the batch, a whole number")
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
    is_count = isinstance(items, numbers.Integral) or (isinstance(items, Tensor) and items.numel() == 1)
    if not is_count or items < 0:
        raise _error(method, f"num_items_in_batch={items!r}", "the number of items that the loss is the mean over")
    return int(items)


def no_sample_counted(metric_name: str) -> BatchOutputError:
    """Return the error of an epoch whose steps all say that their losses are means over nothing.

    Args:
        metric_name: What was to be recorded.
    """
    return BatchOutputError(
        f"There is no {metric_name}: it would be the mean of nothing.",
        given="batch_size or num_items_in_batch of 0 in each step of the epoch",
        expected="at least one sample, or one item, in an epoch",
        do="Return the number of samples of the batch as batch_size. Where num_items_in_batch is returned, look at "
        "whether all items are masked.",
    )


def _error(method: str, given: str, expected: str) -> BatchOutputError:
    return BatchOutputError(
        f"The trainer cannot use what {method} returned.",
        given=given,
        expected=expected,
        do=f"Return {{'loss': ..., 'model_outputs': ..., 'batch_size': ...}} from {method}.",
    )
