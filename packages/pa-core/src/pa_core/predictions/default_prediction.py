"""What a trainer predicts that does not override ``predict_batch``: the outputs of its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from pa_core.default_step import forward_takes
from pa_core.errors import BatchMismatchError
from pa_core.model_tensors import unwrap_model
from pa_data.batches import describe_batch, is_mapping, keys_of


def predict_batch(model: nn.Module, batch: Any) -> Any:
    """Return what the model makes of the inputs of a batch.

    Args:
        model: The model.
        batch: A mapping, with whose items the model is called; a list or a tuple, of which the first item is the
            inputs; or the inputs.

    Returns:
        The outputs; of a mapping without its ``"loss"``, which is not a prediction.

    Raises:
        BatchMismatchError: The model takes other arguments.
    """
    inputs: Any = batch[0] if issubclass(type(batch), list | tuple) else batch
    args: tuple[Any, ...] = () if is_mapping(batch) else (inputs,)
    kwargs: Mapping[Any, Any] = batch if is_mapping(batch) else {}
    try:
        outputs = model(*args, **kwargs)
    except TypeError as error:
        if forward_takes(model, *args, **kwargs):
            raise
        name = type(unwrap_model(model, keep_torch_compile=False)).__name__
        raise BatchMismatchError(
            f"A trainer without predict_batch calls the model with the inputs of a batch, and {name} takes others.",
            given=f"{describe_batch(batch)} as a batch",
            do="Override predict_batch(self, batch) in a subclass of Trainer, and call self.model in it.",
        ) from error
    if is_mapping(outputs) and "loss" in keys_of(outputs):
        return {key: outputs[key] for key in keys_of(outputs) if key != "loss"}
    return outputs
