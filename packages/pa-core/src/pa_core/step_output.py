"""What a step must return, checked where it was returned."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn

from pa_core.errors import BatchOutputError

__all__ = ["check_step_output", "count_items", "no_sample_counted"]

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
    if trained is not None and not loss.requires_grad:
        raise _no_gradient(method, trained)
    batch_size = fields["batch_size"]
    # Asked of the class first, as asking the abstract one takes several times as long.
    if not (batch_size.__class__ is int or isinstance(batch_size, numbers.Integral)) or batch_size < 0:
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
    is_count = isinstance(items, numbers.Integral) or (isinstance(items, Tensor) and items.numel() == 1)
    if not is_count or items < 0:
        do = "Return a whole number as num_items_in_batch, for example (labels != -100).sum(), or leave the key out."
        expected = "the number of items that the loss is the mean over"
        raise _error(method, f"num_items_in_batch={items!r}", expected, do)
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
        expected="parameters with requires_grad=True",
        do="Unfreeze what is to be trained before train(), for example with model.requires_grad_().",
    )


def _error(method: str, given: str, expected: str, do: str | None = None) -> BatchOutputError:
    return BatchOutputError(
        f"The trainer cannot use what {method} returned.",
        given=given,
        expected=expected,
        do=do or f"Return {{'loss': ..., 'model_outputs': ..., 'batch_size': ...}} from {method}.",
    )
