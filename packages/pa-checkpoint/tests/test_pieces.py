"""What a process writes of tensors that are sharded over processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pa_checkpoint import CheckpointError
from pa_checkpoint._encoding import encode
from pa_checkpoint._torch import local_piece
from pa_checkpoint._writer import HostPool

pytestmark = pytest.mark.runs_on("two_ranks")


def _split(whole: Tensor, *placements: Any) -> Tensor:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    shape = (1,) * (len(placements) - 1) + (2,)
    return distribute_tensor(whole, init_device_mesh("cpu", shape), list(placements))


def _of_all(value: object) -> list[Any]:
    values: list[Any] = [None, None]
    dist.all_gather_object(values, value)
    return values


def test_each_process_writes_its_piece_and_all_describe_the_same_whole() -> None:
    """The pieces are blocks side by side; of tied weights there is one, also where a process has nothing of them."""
    from torch.distributed.tensor import Shard

    whole, single = torch.arange(6.0).view(3, 2), torch.ones(1, 4)
    one = _split(single, Shard(0))
    encoded = encode({"weight": _split(whole, Shard(0)), "one": one, "tied": one.detach()}, "model")
    first, second = _of_all(encoded.document)
    assert first == second
    assert first["weight"] == {
        "$sharded": "model/weight",
        "dtype": "F32",
        "shape": [3, 2],
        "pieces": [
            {"file": "model.0-of-2.safetensors", "offsets": [0, 0], "shape": [2, 2]},
            {"file": "model.1-of-2.safetensors", "offsets": [2, 0], "shape": [1, 2]},
        ],
    }
    assert first["tied"] == first["one"]
    assert [piece["file"] for piece in first["one"]["pieces"]] == ["model.0-of-2.safetensors"]
    written = _of_all({name: tensor.tolist() for name, tensor in encoded.all_tensors().items()})
    assert written == [{"model/weight": whole[:2].tolist(), "model/one": [[1.0] * 4]}, {"model/weight": [[4.0, 5.0]]}]


def test_what_all_processes_have_is_written_once() -> None:
    """Pieces with several holders are dealt out evenly; a tensor that each process has whole is a plain one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 1))
    values = {name: distribute_tensor(torch.ones(4), mesh, [Replicate(), Shard(0)]) for name in "abcd"}
    whole = distribute_tensor(torch.ones(3), mesh, [Replicate(), Replicate()])
    written = _of_all(list(encode({**values, "whole": whole}, "part").all_tensors()))
    assert written == [["part/whole", "part/a", "part/c"], ["part/whole", "part/b", "part/d"]]


def test_partial_sums_are_refused() -> None:
    """What is only a part of a sum on each process is named, and what to do about it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    partial = DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (2,)), [Partial()])
    with pytest.raises(CheckpointError, match=r"model\['sum'\]: a DTensor with the placements") as caught:
        encode({"sum": partial}, "model")
    assert "full_tensor()" in caught.value.do


def test_a_snapshot_holds_the_pieces() -> None:
    """A snapshot in host memory keeps the pieces as they were."""
    from torch.distributed.tensor import Shard

    weight = nn.Parameter(_split(torch.zeros(4), Shard(0)))
    snapshot = HostPool().copy({"model": encode({"weight": weight}, "model")})["model"]
    local_piece(weight.detach()).fill_(1)
    assert snapshot.pieces["model/weight"].tensor.tolist() == [0.0, 0.0]
