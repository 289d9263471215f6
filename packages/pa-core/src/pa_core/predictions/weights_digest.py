"""A digest of all weights and buffers, which tells predictions of one model from the predictions of another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pa_core.sharding.gathering import gathering

__all__ = ["digest_of_weights"]


def digest_of_weights(models: Mapping[str, nn.Module]) -> str:
    """Return a digest of the classes, the parameters and the buffers of models; every process must call this.

    It is the same whether a model is sharded or not.

    Args:
        models: The models by name, without wrappers.

    Example:
        >>> layer = nn.Linear(1, 1)
        >>> before = digest_of_weights({"model": layer})
        >>> _ = layer.weight.data.add_(1)
        >>> digest_of_weights({"model": layer}) == before
        False
    """
    whole = hashlib.sha256()
    for name, model in sorted(models.items()):
        whole.update(f"{name} {type(model).__qualname__.removeprefix('FSDP')}\n".encode())
        tensors = {key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)}
        with gathering(tensors.values()) as of_all:
            for key, tensor in zip(tensors, of_all, strict=True):
                whole.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                whole.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()
