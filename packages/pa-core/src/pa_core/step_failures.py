"""Saying in which step of a run, and with which batch, an error was raised, and what in them may be the cause."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from typing import Any, cast

from torch import Tensor, nn

from pa_core.batch_structure import lists_of_numbers
from pa_core.errors import BatchMismatchError, is_explained
from pa_data.batches import describe_batch

__all__ = ["name_step"]

_BUILT_IN = {"builtins", "torch"}
_Convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BatchNorm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def name_step(error: Exception, step: str, batch: object, model: nn.Module) -> None:
    """Add the step, the structure of its batch and the layer to an error that is about to leave the step.

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
        notes = *_of_layer(error, model), *_of_lists(batch), *_of_devices(error, model), *_of_pieces(error)
        for text in notes:
            error.add_note(text)


def _of_layer(error: Exception, model: nn.Module) -> Iterator[str]:
    """The innermost layer that was called, and its input, which all layers of torch call so."""
    names = {id(module): name for name, module in _named_modules(model)}
    calls = [
        (frame.f_locals["self"], frame.f_locals.get("input"))
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if id(frame.f_locals.get("self")) in names
    ]
    layer, value = calls[-1] if calls else (model, None)
    if isinstance(value, Tensor):
        where = f"the layer {names[id(layer)]!r}" if names[id(layer)] else "the model"
        described = f"{type(layer).__name__}({layer.extra_repr()})"
        advice = _advice_on(layer, str(error))
        yield f"In {where}, which is {described}, with {describe_batch(value)} as input. {advice}"


def _of_pieces(error: Exception) -> Iterator[str]:
    if "got mixed torch.Tensor and DTensor" in str(error):
        yield (
            "A layer of a sharded model was called by itself. Call self.model, and before the run "
            'torch.distributed.fsdp.register_fsdp_forward_method(model, "NAME") for a method other than forward.'
        )


def _advice_on(layer: nn.Module, message: str) -> str:
    if isinstance(layer, nn.Embedding):
        return "It takes indices from 0 to num_embeddings - 1, which are whole numbers: inputs.long()."
    if isinstance(layer, _BatchNorm) and "more than 1 value" in message:
        return 'Leave out a last batch of one sample: train(..., train_dataloader_kwargs={"drop_last": True}).'
    if "type" in message:
        return "Convert the inputs to the dtype of its weights, for example with inputs.float()."
    if isinstance(layer, nn.Linear) and "shapes" in message:
        return "The last dimension of its input is in_features: change that, or put nn.Flatten() before the layer."
    if isinstance(layer, _Convolution) and "xpected" in message:
        return (
            "The second dimension of its input is in_channels: change that, add the dimension with "
            "inputs.unsqueeze(1), or move it there, for example with inputs.permute(0, 3, 1, 2)."
        )
    return ""


def _of_lists(batch: object) -> Iterator[str]:
    for key in lists_of_numbers(batch):
        yield (
            f"The lists under {key!r} were taken apart. Let the dataset return tensors: one of `datasets` does "
            'after dataset.with_format("torch").'
        )


def _of_devices(error: Exception, model: nn.Module) -> Iterator[str]:
    """The tensors that are neither parameters nor buffers, and are not where the model is.

    Torch takes numbers, which have no dimension, from any device.
    """
    if "device" not in str(error):
        return
    there = next((parameter.device for parameter in model.parameters()), None)
    for prefix, module in _named_modules(model):
        attributes: dict[str, Any] = vars(module)
        for name, value in attributes.items():
            if isinstance(value, Tensor) and value.dim() > 0 and there not in {None, value.device}:
                yield (
                    f"{type(model).__name__}.{prefix}{'.' if prefix else ''}{name} is a tensor on {value.device}, and "
                    "does not move with the model: make it a buffer with "
                    f"self.register_buffer({name!r}, ..., persistent=False)."
                )


def _named_modules(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    return cast("Iterable[tuple[str, nn.Module]]", model.named_modules())  # not annotated by torch
