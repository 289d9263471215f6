"""Stored tensors are read in other pieces than those in which they were saved."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pa_checkpoint._sharded_tensor import StoredPiece, StoredTensor
from pa_checkpoint._torch import is_sharded, local_piece

WHOLE = torch.arange(35.0).view(7, 5)


def saved_in(pieces: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> StoredTensor:
    """The whole tensor as it was saved in pieces, each with its offsets and its shape."""
    return StoredTensor(WHOLE.shape, WHOLE.dtype, [StoredPiece(*piece, Kept(piece[0])) for piece in pieces])


class Kept:
    """A piece in memory, which begins at some offsets of the whole tensor."""

    def __init__(self, offsets: tuple[int, ...]) -> None:
        self.offsets = offsets

    def read_into(self, target: Tensor, offsets: Sequence[int]) -> None:
        """Fill a tensor from the whole one."""
        rows, columns = (a + b for a, b in zip(self.offsets, offsets, strict=True))
        target.copy_(WHOLE[rows : rows + target.shape[0], columns : columns + target.shape[1]])


THREE_PROCESSES = [((0, 0), (3, 5)), ((3, 0), (3, 5)), ((6, 0), (1, 5))]
FOUR_PROCESSES_AND_A_GRID = [((0, 0), (4, 3)), ((0, 3), (4, 2)), ((4, 0), (3, 3)), ((4, 3), (3, 2))]
SAVED = pytest.mark.parametrize("pieces", [THREE_PROCESSES, FOUR_PROCESSES_AND_A_GRID])


@SAVED
def test_pieces_make_the_whole(pieces: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """A tensor that was saved in pieces can be put together, in the precision of the target."""
    stored = saved_in(pieces)
    assert stored.whole().tolist() == WHOLE.tolist()
    target = torch.zeros(7, 5, dtype=torch.bfloat16)
    stored.read_into(target)
    assert target.tolist() == WHOLE.bfloat16().tolist()


@pytest.mark.runs_on("two_ranks")
@SAVED
@pytest.mark.parametrize("dimension", [0, 1])
def test_each_process_reads_its_piece(pieces: list[tuple[tuple[int, ...], tuple[int, ...]]], dimension: int) -> None:
    """A tensor is read in the pieces of the present processes, whatever those are in which it was saved."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    parameter = distribute_tensor(torch.zeros(7, 5), mesh, [Shard(dimension)])
    read = saved_in(pieces).like(parameter)
    assert is_sharded(read)
    assert local_piece(read).tolist() == WHOLE.chunk(2, dimension)[dist.get_rank()].tolist()


@pytest.mark.runs_on("two_ranks")
def test_what_has_another_shape_is_split_where_it_has_the_rows_of_the_parameter() -> None:
    """What an optimizer keeps for each row is split as the rows are; what it keeps for each column is whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    parameter = distribute_tensor(torch.zeros(1, 5), init_device_mesh("cpu", (2,)), [Shard(0)])
    columns = StoredTensor.of(torch.arange(3.0).view(3, 1)).like(parameter)
    assert local_piece(columns).tolist() == [[0.0], [1.0], [2.0]]
    row = local_piece(StoredTensor.of(torch.ones(1, 5)).like(parameter))
    assert row.tolist() == ([[1.0] * 5] if dist.get_rank() == 0 else [])
