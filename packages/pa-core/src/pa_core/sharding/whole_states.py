"""Whole tensors, of which each process takes its pieces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from pa_checkpoint import StoredTensor
from pa_core.model_tensors import is_sharded

__all__ = ["load_whole_weights", "split_like"]


def load_whole_weights(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Load a state dict of whole tensors into a sharded model; nothing is exchanged.

    Args:
        model: The model without wrappers.
        weights: With keys and shapes of the model; what they lack stays as it is.
    """
    own = model.state_dict()
    split = {name: value for name, value in own.items() if name in weights and is_sharded(value)}
    # what else the state has may be refused, and comes first
    model.load_state_dict({name: value for name, value in weights.items() if name not in split}, strict=False)
    for name, value in split.items():
        StoredTensor.of(weights[name]).read_into(value)


def split_like(whole: Tensor, tensor: Tensor) -> Tensor:
    """Return what each process has of a whole tensor, split as another one of the same shape; nothing is exchanged.

    Args:
        whole: On every process, with the same values.
        tensor: Split over the processes, or a plain one.
    """
    return StoredTensor.of(whole).like(tensor)
