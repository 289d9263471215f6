"""What a process has of a tensor that is split over processes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pa_core.model_tensors import is_sharded, is_sharded_module, local_pieces, reshard, whole_tensor


@pytest.mark.runs_on("two_ranks")
def test_each_process_has_its_piece_of_a_split_tensor() -> None:
    """A split tensor tells its piece, which shares its memory, and can be brought together."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    whole = torch.arange(6.0).view(3, 2)
    split = distribute_tensor(whole, init_device_mesh("cpu", (2,)), [Shard(0)])
    assert is_sharded(split)
    (piece,) = local_pieces([split])
    assert piece.tolist() == (whole[:2] if dist.get_rank() == 0 else whole[2:]).tolist()
    piece += 1
    assert whole_tensor(split).tolist() == (whole + 1).tolist()


@pytest.mark.runs_on("two_ranks")
def test_a_sharded_module_is_known_when_its_parameters_are_whole() -> None:
    """After a forward pass without a backward pass, a module still counts as sharded, and can be resharded."""
    from torch.distributed.fsdp import fully_shard

    layer = nn.Linear(2, 2)
    fully_shard(layer, reshard_after_forward=False)
    assert is_sharded_module(layer)
    with torch.no_grad():
        layer(torch.ones(1, 2))
    assert not is_sharded(layer.weight)
    assert is_sharded_module(layer)
    reshard(layer)
    assert is_sharded(layer.weight)
