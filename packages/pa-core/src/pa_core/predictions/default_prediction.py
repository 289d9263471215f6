"""What a trainer predicts that does not override ``predict_batch``: the outputs of its model."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from pa_core.batch_mismatches import explain_failed_layer
from pa_core.errors import BatchMismatchError
from pa_core.unwrapping import unwrap_model
from pa_data.batches import describe_batch, is_mapping, keys_of

__all__ = ["predict_batch"]

_ERRORS_OF_MISMATCHES = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)


def predict_batch(model: nn.Module, batch: Any) -> Any:
    """Return what the model makes of the inputs of a batch.

    Args:
        model: The model.
        batch: A mapping, with whose items the model is called; a list or a tuple, of which the first item is the
            inputs; or the inputs.

    Returns:
        The outputs; of a mapping without its ``"loss"``, which is not a prediction.

    Raises:
        BatchMismatchError: The model cannot take the inputs.
    """
    inputs: Any = batch[0] if issubclass(type(batch), list | tuple) else batch
    try:
        outputs = model(**batch) if is_mapping(batch) else model(inputs)
    except _ERRORS_OF_MISMATCHES as error:
        mismatch = _explain(model, batch, inputs, error)
        if mismatch is None:
            raise
        raise mismatch from error
    if is_mapping(outputs) and "loss" in keys_of(outputs):
        return {key: outputs[key] for key in keys_of(outputs) if key != "loss"}
    return outputs


def _explain(model: nn.Module, batch: object, inputs: Any, error: Exception) -> BatchMismatchError | None:
    plain = unwrap_model(model, keep_torch_compile=False)
    if not isinstance(error, TypeError):
        return explain_failed_layer(error, plain, inputs) if type(error) in _ERRORS_OF_MISMATCHES else None
    forward = inspect.signature(type(plain).forward)
    try:
        if is_mapping(batch):
            forward.bind(plain, **batch)
        else:
            forward.bind(plain, inputs)
    except TypeError:
        name = type(plain).__name__
        return BatchMismatchError(
            f"A trainer without predict_batch calls the model with the inputs of a batch, and {name} takes others.",
            given=f"{name}.forward{forward}, and {describe_batch(batch)} as a batch",
            expected="a batch that is the inputs, a list or a tuple that begins with them, or a mapping of the "
            "model's arguments",
            do="Override predict_batch(self, batch) in a subclass of Trainer, and call self.model in it.",
        )
    return None
