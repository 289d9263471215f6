"""What does not fit between samples, model and loss function of a default step, told from shapes and dtypes."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable
from itertools import dropwhile
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pa_core.errors import BatchMismatchError
from pa_data.batches import describe_batch, is_mapping, keys_of

__all__ = ["explain_failed_layer", "explain_failed_loss", "explain_silent_mismatch"]

_CROSS_ENTROPY = {"CrossEntropyLoss", "cross_entropy"}
_OF_CLASSES = {*_CROSS_ENTROPY, "NLLLoss", "nll_loss"}
_HUBER = {"HuberLoss", "huber_loss"}
_OF_PROBABILITIES = {"BCELoss", "binary_cross_entropy"}
_ELEMENTWISE = {
    *(*_HUBER, *_OF_PROBABILITIES, "BCEWithLogitsLoss", "binary_cross_entropy_with_logits", "KLDivLoss", "kl_div"),
    *("L1Loss", "l1_loss", "MSELoss", "mse_loss", "PoissonNLLLoss", "poisson_nll_loss"),
    *("SmoothL1Loss", "smooth_l1_loss", "SoftMarginLoss", "soft_margin_loss"),
}
_Convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CLASSES = _CHANNELS = 1
_TABLE = 2  # dimensions: samples and classes, or samples and features


def explain_silent_mismatch(loss_func: object, outputs: object, targets: object) -> BatchMismatchError | None:
    """Return what torch would compute a wrong loss of, or fail with in the backward pass; None if all is well.

    It looks at shapes and dtypes alone, and waits for no accelerator.
    """
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return None
    if _is_one_of(loss_func, _ELEMENTWISE):
        # Broadcasting may only add dimensions, as to a batch of one sample that the model has squeezed.
        is_paired = _without_leading_ones(outputs) == _without_leading_ones(targets)
        # Other losses convert the targets; this one leaves that to its backward pass, which does not.
        is_converted = outputs.dtype is targets.dtype or not _is_one_of(loss_func, _HUBER)
        return None if is_paired and is_converted else _of_elements(loss_func, outputs, targets)
    if _is_one_of(loss_func, _CROSS_ENTROPY) and outputs.dim() >= _TABLE and outputs.shape[_CLASSES] == 1:
        return _mismatch(
            outputs,
            targets,
            "an output for each class, two at least: the loss of a single one is always 0",
            "Use nn.BCEWithLogitsLoss() with targets of dtype float32 and the shape of the outputs.",
        )
    return None


def explain_failed_loss(loss_func: object, outputs: object, targets: object) -> BatchMismatchError | None:
    """Return what a loss function of torch could not use; None where nothing is known of it.

    Args:
        loss_func: The loss function, which raised an error.
        outputs: What the model returned.
        targets: What the loss function was to compare it with.
    """
    if not _is_one_of(loss_func, _OF_CLASSES | _ELEMENTWISE):
        return None
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return _not_tensors(outputs, targets)
    devices = {outputs.device, targets.device}
    if isinstance(loss_func, nn.Module):
        devices |= {tensor.device for tensor in (*loss_func.parameters(), *loss_func.buffers())}
    if len(devices) > 1:
        return _mismatch(
            outputs,
            targets,
            f"outputs, targets and the weights of the loss function on the device of the run, {targets.device}",
            "Add MoveModulesToDeviceCallback to the callbacks, one of the default ones, which moves the weights of the "
            "loss function. Return outputs on the device of the inputs from the model.",
            f"; on {' and '.join(sorted(map(str, devices)))}",
        )
    if _is_one_of(loss_func, _OF_CLASSES):
        return _of_classes(loss_func, outputs, targets)
    return _of_elements(loss_func, outputs, targets)


def _of_elements(loss_func: object, outputs: Tensor, targets: Tensor) -> BatchMismatchError | None:
    of_outputs, of_targets, values = tuple(outputs.shape), tuple(targets.shape), ""
    expected = "outputs and targets of the same shape, which are compared element by element"
    if not of_outputs and of_targets == (1,):
        do = "Keep the dimension of the samples in the model's forward, with squeeze(1) instead of squeeze()."
    elif of_outputs == (*of_targets, 1):
        do = f"Add the last dimension to the targets: targets.unsqueeze({len(of_targets)})."
    elif of_targets == (*of_outputs, 1):
        do = f"Take the last dimension from the targets: targets.squeeze({len(of_outputs)})."
    elif of_outputs != of_targets and of_outputs[:-1] == of_targets[:-1]:
        do = f"Let the last layer of the model have {of_targets[-1]} output{'' if of_targets[-1] == 1 else 's'}."
    elif of_outputs != of_targets:
        do = "Let the dataset return targets of the shape that the model's outputs have."
    elif targets.dtype is not outputs.dtype:
        expected = f"targets of dtype {_name_of(outputs.dtype)}, as the outputs"
        do = f"Convert the targets: targets.{_conversion(outputs.dtype)}."
    elif _is_one_of(loss_func, _OF_PROBABILITIES):
        outside = "outputs" if _range(outputs)[0] < 0 or _range(outputs)[1] > 1 else "targets"
        lowest, highest = _range(outputs if outside == "outputs" else targets)
        expected, values = f"{outside} from 0 to 1", f"; {outside} from {lowest:.4g} to {highest:.4g}"
        do = "Use nn.BCEWithLogitsLoss(), which applies the sigmoid to the outputs itself."
        if outside == "targets":
            do = "Let the dataset return targets of 0 and 1."
    else:
        return None
    return _mismatch(outputs, targets, expected, do, values)


def _of_classes(loss_func: object, outputs: Tensor, targets: Tensor) -> BatchMismatchError | None:
    of_outputs, of_targets, values = tuple(outputs.shape), tuple(targets.shape), ""
    classes = of_outputs[min(_CLASSES, outputs.dim() - 1)]
    expected = f"{classes} outputs for each sample, one for each class, and a target that is an index from 0 to "
    expected += f"{classes - 1}, of dtype int64; or targets that are probabilities, of the shape of the outputs"
    are_indices = targets.dtype in {torch.int64, torch.uint8}
    do = "Convert the targets: targets.long()."
    if len(of_outputs) >= _TABLE and of_targets and of_outputs[0] != of_targets[0]:
        do = "Keep the first dimension in the model's forward, for example with x.flatten(1) instead of a view()."
    elif len(of_outputs) >= _TABLE and of_targets == (len(targets), 1, *of_outputs[2:]):
        squeezed = "targets.squeeze(1)" if are_indices else "targets.squeeze(1).long()"
        do = f"Take the second dimension away: {squeezed}."
    elif len(of_outputs) == len(of_targets) == 1:
        do = "Let the model return outputs of shape (samples, classes)."
    elif of_outputs == of_targets and targets.is_floating_point():
        return None
    elif of_outputs == of_targets:
        do = "Convert the targets: targets.float()."
    elif are_indices:
        of_range = _out_of_range(loss_func, targets, classes)
        if of_range is None and targets.dtype is torch.int64:
            return None
        do, values = of_range or (do, values)
    return _mismatch(outputs, targets, expected, do, values)


def _out_of_range(loss_func: object, targets: Tensor, classes: int) -> tuple[str, str] | None:
    """The loss function has raised, so that reading the targets costs nothing any more."""
    counted = targets[targets != int(getattr(loss_func, "ignore_index", -100))]  # the default of the functions
    lowest, highest = map(int, _range(counted)) if counted.numel() else (0, 0)
    if lowest >= 0 and highest < classes:
        return None
    do = f"Let the last layer of the model have {highest + 1} outputs, or more: one for each class."
    if lowest < 0:
        name = type(loss_func).__name__ if isinstance(loss_func, nn.Module) else "the loss function"
        do = f"Name the targets that stand for no class: {name} with ignore_index={lowest}."
    elif lowest == 1 and highest == classes:
        do = "Count the classes from 0: targets - 1."
    return do, f", with values {lowest} to {highest}"


def _not_tensors(outputs: object, targets: object) -> BatchMismatchError:
    part = "[0]"
    if is_mapping(outputs):
        names = keys_of(outputs)
        part = f"[{'logits' if 'logits' in names else next(iter(names), '...')!r}]"
    elif hasattr(outputs, "logits"):
        part = ".logits"
    do = (
        "Let the dataset return numbers as targets, or one tensor for each sample."
        if isinstance(outputs, Tensor)
        else "Pass a function that takes the tensor from them, for example "
        f"loss_func=lambda outputs, targets: your_loss(outputs{part}, targets)."
    )
    return BatchMismatchError(
        "The loss function cannot use the model's outputs and the targets.",
        given=f"model outputs that are {describe_batch(outputs)}, and targets that are {describe_batch(targets)}",
        expected="two tensors",
        do=do,
    )


def _mismatch(outputs: Tensor, targets: Tensor, expected: str, do: str, values: str = "") -> BatchMismatchError:
    of_outputs, of_targets = (f"of shape {tuple(one.shape)}" for one in (outputs, targets))
    given = f"outputs {of_outputs}, targets {of_targets}, both of dtype {_name_of(outputs.dtype)}"
    if outputs.dtype is not targets.dtype:
        given = f"outputs {_describe(outputs)}, targets {_describe(targets)}"
    problem = "The model's outputs and the targets do not fit the loss function."
    return BatchMismatchError(problem, given=given + values, expected=expected, do=do)


def explain_failed_layer(error: Exception, model: nn.Module, inputs: object) -> BatchMismatchError | None:
    """Return what did not fit between the input and the layer that raised an error; None where nothing is known of it.

    Args:
        error: What left the model, with the traceback in which the layer is found.
        model: The model, in which the layer has its name.
        inputs: What the model was called with.
    """
    layer, value = _innermost_layer(error)
    if layer is None or value is None:
        return None
    do = _advice_on_layer(layer, value)
    if do is None and isinstance(layer, (nn.Linear, *_Convolution)) and value.dtype is not layer.weight.dtype:
        # Floating-point types may differ under autocast, so that the layer itself has to complain of them.
        is_wrong = not value.is_floating_point() or "type" in str(error)
        do = f"Convert the inputs: inputs.{_conversion(layer.weight.dtype)}." if is_wrong else None
    if do is None:
        return None
    names = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())  # not annotated by torch
    name = next((name for name, module in names if module is layer), "") or type(model).__name__
    batch = f"inputs {_describe(inputs)}, its input" if value is not inputs and isinstance(inputs, Tensor) else "inputs"
    values = f", with values {int(value.min())} to {int(value.max())}" if isinstance(layer, nn.Embedding) else ""
    return BatchMismatchError(
        "A layer of the model cannot take its input.",
        given=f"{batch} {_describe(value)}{values}, for {name}, which is {layer}",
        expected=f"an input that fits the arguments of {type(layer).__name__}, and the dtype of its weights",
        do=do,
    )


def _innermost_layer(error: Exception) -> tuple[nn.Module | None, Tensor | None]:
    """The module whose forward raised the error, and its input, which all layers of torch call so."""
    found: tuple[nn.Module | None, Tensor | None] = None, None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        names = frame.f_locals
        if isinstance(names.get("self"), nn.Module):
            value = names.get("input")
            found = cast("nn.Module", names["self"]), value if isinstance(value, Tensor) else None
    return found


def _advice_on_layer(layer: nn.Module, value: Tensor) -> str | None:
    shape = tuple(value.shape)
    do = None
    if isinstance(layer, nn.Linear) and shape[-1] != layer.in_features:
        do = f"Create the layer with in_features={shape[-1]}, the size of the last dimension of its input."
        if len(shape) > _TABLE and math.prod(shape[1:]) == layer.in_features:
            do = "Flatten its input to one dimension for each sample: put nn.Flatten() before the layer."
    elif isinstance(layer, _Convolution):
        do = _advice_on_convolution(shape, layer.in_channels, len(layer.kernel_size))
    elif isinstance(layer, nn.Embedding):
        do = f"Create the layer with num_embeddings={int(value.max()) + 1} or more, one for each index that may occur."
        if value.dtype not in {torch.int32, torch.int64}:
            do = "Convert the indices to whole numbers: inputs.long()."
        elif int(value.min()) < 0:
            do = "Replace the negative indices in the dataset, for example by the index of the padding."
    elif (
        isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm) and len(shape) >= _TABLE
    ):
        if shape[_CHANNELS] != layer.num_features:
            do = f"Create the layer with num_features={shape[_CHANNELS]}."
        elif layer.training and value.numel() == shape[_CHANNELS]:
            do = 'Leave out a last batch of one sample: train(..., train_dataloader_kwargs={"drop_last": True}).'
    return do


def _advice_on_convolution(shape: tuple[int, ...], channels: int, dimensions: int) -> str | None:
    if len(shape) == dimensions + 2 and shape[_CHANNELS] == channels:
        return None
    if len(shape) == dimensions + 1 and channels == 1:
        return "Add the dimension of the channels: inputs.unsqueeze(1)."
    if len(shape) != dimensions + 2:
        order = ", ".join(("batch", "channels", *("depth", "height", "width")[3 - dimensions :]))
        return f"Give the model inputs of {dimensions + 2} dimensions: {order}."
    if shape[-1] == channels:
        axes = ", ".join(map(str, (0, dimensions + 1, *range(1, dimensions + 1))))
        return f"Put the channels before height and width: inputs.permute({axes})."
    return f"Create the layer with in_channels={shape[_CHANNELS]}."


def _range(tensor: Tensor) -> tuple[float, float]:
    return float(tensor.detach().min()), float(tensor.detach().max())


def _conversion(dtype: torch.dtype) -> str:
    return "float()" if dtype is torch.float32 else f"to({dtype})"


def _without_leading_ones(tensor: Tensor) -> tuple[int, ...]:
    return tuple(dropwhile(lambda size: size == 1, tensor.shape))


def _is_one_of(loss_func: object, names: set[str]) -> bool:
    """Whether it is exactly one of torch's: a class derived from them may compute something else."""
    kind = type(loss_func)
    if kind.__module__ == nn.modules.loss.__name__:
        return kind.__name__ in names
    name = getattr(loss_func, "__name__", "")
    return name in names and getattr(functional, name) is loss_func


def _describe(tensor: Tensor) -> str:
    return f"of shape {tuple(tensor.shape)} and dtype {_name_of(tensor.dtype)}"


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
