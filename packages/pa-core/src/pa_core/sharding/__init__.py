"""Training a model whose parameters are split over the processes, and functions for callbacks of such a model.

A callback that changes weights works on the pieces of this process, for any model:

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> reshard(model)  # a plain model stays as it is
    >>> is_sharded_module(model), [piece.shape for piece in local_pieces(model.parameters())]
    (False, [torch.Size([1, 2]), torch.Size([1])])
"""

from __future__ import annotations

from pa_core._tensors import is_sharded, is_sharded_module, local_piece, local_pieces, reshard

__all__ = ["is_sharded", "is_sharded_module", "local_piece", "local_pieces", "reshard"]
