"""Why a layer of torch could not take its input: told from the layer and the input, once it has failed."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from pa_core.errors import BatchMismatchError

__all__ = ["explain_failed_layer"]

_Convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BatchNorm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_CHANNELS = 1
_DIMENSIONS_WITHOUT_LENGTH = 2


def explain_failed_layer(error: Exception, model: nn.Module, inputs: object) -> BatchMismatchError | None:
    """Return what did not fit between the input and the layer that raised an error; None where nothing is known of it.

    Args:
        error: What left the model, with the traceback in which the layer is found.
        model: The model, in which the layer has its name.
        inputs: What the model was called with.
    """
    failed = _innermost_layer(error)
    if failed is None:
        return None
    layer, value = failed
    names = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())  # not annotated by torch
    name = next((name for name, module in names if module is layer), "") or type(model).__name__
    mismatch = _Mismatch(name, layer, value, inputs)
    if isinstance(layer, nn.Linear):
        found = mismatch.of_linear(layer)
    elif isinstance(layer, _Convolution):
        found = mismatch.of_convolution(layer)
    elif isinstance(layer, nn.Embedding):
        return mismatch.of_embedding(layer)
    elif isinstance(layer, _BatchNorm):
        return mismatch.of_batch_norm(layer)
    else:
        return None
    return found or mismatch.of_dtype(layer.weight.dtype, error)


def _innermost_layer(error: Exception) -> tuple[nn.Module, Tensor] | None:
    """The module whose forward raised the error, and its input, which all layers of torch call so."""
    found: tuple[nn.Module, Tensor] | None = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        names = frame.f_locals
        if isinstance(names.get("self"), nn.Module):
            value = names.get("input")
            found = (cast("nn.Module", names["self"]), value) if isinstance(value, Tensor) else None
    return found


class _Mismatch:
    """What there is to say about a layer and its input."""

    def __init__(self, name: str, layer: nn.Module, value: Tensor, inputs: object) -> None:
        self._layer = f"{name}, which is {layer}"
        self._value = value
        self._is_batch = value is inputs
        self._inputs = inputs

    def of_linear(self, layer: nn.Linear) -> BatchMismatchError | None:
        shape, features = tuple(self._value.shape), layer.in_features
        if shape[-1] == features:
            return None
        do = f"Create the layer with in_features={shape[-1]}, the size of the last dimension of its input."
        if len(shape) > _DIMENSIONS_WITHOUT_LENGTH and math.prod(shape[1:]) == features:
            do = "Flatten its input to one dimension for each sample: put nn.Flatten() before the layer."
        return self._error(f"a last dimension of {features}", do)

    def of_convolution(self, layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> BatchMismatchError | None:
        shape, channels, dimensions = tuple(self._value.shape), layer.in_channels, len(layer.kernel_size)
        if len(shape) == dimensions + 2 and shape[_CHANNELS] == channels:
            return None
        order = ", ".join(("batch", "channels", *("depth", "height", "width")[3 - dimensions :]))
        do = f"Create the layer with in_channels={shape[min(_CHANNELS, len(shape) - 1)]}."
        if len(shape) == dimensions + 1 and channels == 1:
            do = "Add the dimension of the channels: inputs.unsqueeze(1)."
        elif len(shape) == dimensions + 2 and shape[-1] == channels:
            axes = ", ".join(map(str, (0, dimensions + 1, *range(1, dimensions + 1))))
            do = f"Put the channels before height and width: inputs.permute({axes})."
        elif len(shape) != dimensions + 2:
            do = f"Give the model inputs of {dimensions + 2} dimensions: {order}."
        return self._error(f"dimensions ({order}), with {channels} channels", do)

    def of_embedding(self, layer: nn.Embedding) -> BatchMismatchError | None:
        indices = self._value
        if indices.dtype not in {torch.int32, torch.int64}:
            return self._error("indices of dtype int64", "Convert the indices to whole numbers: inputs.long().")
        lowest, highest = int(indices.min()), int(indices.max())
        if lowest >= 0 and highest < layer.num_embeddings:
            return None
        do = f"Create the layer with num_embeddings={highest + 1} or more, one for each index that may occur."
        if lowest < 0:
            do = "Replace the negative indices in the dataset, for example by the index of the padding."
        return self._error(f"indices from 0 to {layer.num_embeddings - 1}", do, f", with values {lowest} to {highest}")

    def of_batch_norm(self, layer: Any) -> BatchMismatchError | None:
        shape = tuple(self._value.shape)
        if len(shape) < 2:  # noqa: PLR2004  # batch and channels
            return None
        if shape[_CHANNELS] != layer.num_features:
            return self._error(
                f"{layer.num_features} channels", f"Create the layer with num_features={shape[_CHANNELS]}."
            )
        if layer.training and self._value.numel() == shape[_CHANNELS]:
            return self._error(
                "more than one value for each channel, of which it takes the mean",
                'Leave out a last batch of one sample: train(..., train_dataloader_kwargs={"drop_last": True}).',
            )
        return None

    def of_dtype(self, dtype: torch.dtype, error: Exception) -> BatchMismatchError | None:
        """Floating-point types may differ under autocast, so that the layer itself has to complain of them."""
        if self._value.dtype is dtype or (self._value.is_floating_point() and "type" not in str(error)):
            return None
        conversion = "float()" if dtype is torch.float32 else f"to({dtype})"
        return self._error(
            f"dtype {_name_of(dtype)}, the dtype of its weights", f"Convert the inputs: inputs.{conversion}."
        )

    def _error(self, expected: str, do: str, values: str = "") -> BatchMismatchError:
        batch = "" if self._is_batch or not isinstance(self._inputs, Tensor) else f"inputs {_describe(self._inputs)}, "
        which = "the inputs" if self._is_batch else "its input"
        return BatchMismatchError(
            "A layer of the model cannot take its input.",
            given=f"{batch}{which} {_describe(self._value)}{values}, for {self._layer}",
            expected=expected,
            do=do,
        )


def _describe(tensor: Tensor) -> str:
    return f"of shape {tuple(tensor.shape)} and dtype {_name_of(tensor.dtype)}"


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
