"""What does not fit between outputs, targets and a loss function of torch, told from shapes and dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile

from torch import Tensor, nn
from torch.nn import functional

from pa_core.errors import BatchMismatchError
from pa_data.batches import describe_batch

__all__ = ["describe_failed_loss", "require_pairs"]

_CLASSES = 1
_PROBABILITIES = {"bce", "binarycrossentropy"}
_ELEMENTWISE = {
    *(*_PROBABILITIES, "bcewithlogits", "binarycrossentropywithlogits", "huber", "kldiv", "l1", "mse", "poissonnll"),
    *("smoothl1", "softmargin"),
}


def require_pairs(loss_func: object, outputs: object, targets: object) -> None:
    """Raise an error where torch would compute a wrong loss, or fail with it in the backward pass.

    It looks at shapes and dtypes alone, and waits for no accelerator.

    Raises:
        BatchMismatchError: The outputs and the targets do not fit the loss function, which is one of torch's.
    """
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return
    kind, of_dtype = _kind(loss_func), ""
    if kind == "crossentropy" and outputs.dim() > _CLASSES and outputs.shape[_CLASSES] == 1:
        expected = "an output for each class, two at least: the loss of a single one is always 0"
        do = "Use nn.BCEWithLogitsLoss() with targets of dtype float32 and the shape of the outputs."
    elif kind in _ELEMENTWISE and _without_leading_ones(outputs) != _without_leading_ones(targets):
        expected = "outputs and targets of the same shape, which are compared element by element"
        do = _advise_on_shapes(outputs, targets)
    elif kind == "huber" and outputs.dtype is not targets.dtype:
        # Other losses convert the targets; this one leaves that to its backward pass, which does not.
        of_dtype = f" and dtype {targets.dtype}"
        expected = f"targets of dtype {outputs.dtype}, as the outputs"
        do = f"Convert the targets: targets.to({outputs.dtype})."
    else:
        return
    raise BatchMismatchError(
        "The model's outputs and the targets do not fit the loss function.",
        given=f"outputs of shape {tuple(outputs.shape)}, targets of shape {tuple(targets.shape)}{of_dtype}",
        expected=expected,
        do=do,
    )


def describe_failed_loss(error: Exception, loss_func: object, outputs: object, targets: object) -> Iterator[str]:
    """Iterate over notes on a loss function that raised an error: what it was called with, and what it takes.

    Args:
        error: What it raised.
        loss_func: The loss function.
        outputs: What the model returned.
        targets: What the outputs were to be compared with.
    """
    yield f"The model returned {describe_batch(outputs)}; the targets are {describe_batch(targets)}."
    kind = _kind(loss_func)
    if kind and not isinstance(outputs, Tensor):
        yield (
            "The loss function takes tensors: pass a function that takes them from the outputs, for example "
            "loss_func=lambda outputs, targets: your_loss(outputs[0], targets)."
        )
    elif "device" in str(error):
        yield "MoveModulesToDeviceCallback, one of the default callbacks, moves the weights of a loss function."
    elif kind in {"crossentropy", "nll"}:
        yield (
            "The loss function takes outputs of shape (samples, classes, ...), and as targets the indices of classes, "
            "from 0 to classes - 1 (or ignore_index), without the second dimension: targets.squeeze(1).long(). Targets "
            "that are probabilities have the shape and the dtype of the outputs: targets.float()."
        )
    elif kind in _ELEMENTWISE:
        yield (
            "The loss function takes targets of the shape and the dtype of the outputs, as from targets.unsqueeze(1) "
            "or targets.float(). In a model, squeeze() takes away the dimension of a single sample too: use "
            "squeeze(1)."
        )
    if kind in _PROBABILITIES:
        yield "Outputs and targets are from 0 to 1: nn.BCEWithLogitsLoss() applies the sigmoid to the outputs itself."


def _advise_on_shapes(outputs: Tensor, targets: Tensor) -> str:
    of_outputs, of_targets = tuple(outputs.shape), tuple(targets.shape)
    if of_outputs == (*of_targets, 1):
        return f"Add the last dimension to the targets: targets.unsqueeze({len(of_targets)})."
    if of_targets == (*of_outputs, 1):
        return f"Take the last dimension from the targets: targets.squeeze({len(of_outputs)})."
    return f"Let the model return outputs of shape {of_targets}: its last layer decides how many a sample has."


def _without_leading_ones(tensor: Tensor) -> tuple[int, ...]:
    """Broadcasting may only add dimensions, as to a batch of one sample that the model has squeezed."""
    return tuple(dropwhile(lambda size: size == 1, tensor.shape))


def _kind(loss_func: object) -> str:
    """The name of one of torch's losses, such as "mse" of MSELoss and mse_loss; a class derived from it has none."""
    is_class = type(loss_func).__module__ == nn.modules.loss.__name__
    name = type(loss_func).__name__ if is_class else str(getattr(loss_func, "__name__", ""))
    if not is_class and getattr(functional, name or "_", None) is not loss_func:
        return ""
    return name.lower().replace("_", "").removesuffix("loss")
