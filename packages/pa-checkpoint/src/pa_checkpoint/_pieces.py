"""Which process has which piece of a sharded tensor, and which of them writes it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

from pa_checkpoint._tensor_file import DTYPE_NAMES
from pa_checkpoint._torch import local_piece, local_shape_and_offset

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["PieceLayout", "ShardedPiece", "UnknownLayoutError", "file_of_pieces"]


@dataclass(frozen=True, slots=True)
class ShardedPiece:
    """What this process has of a sharded tensor, and where the rest is.

    Attributes:
        tensor: The piece of this process, detached and not copied; without elements where the process has none.
        is_written_here: Whether this process writes its piece. Where several have the same one, one of them does.
        description: What the document of a checkpoint says of the whole tensor besides its name: the same on all
            processes, with pieces that are not empty, and together the whole tensor.
    """

    tensor: Tensor
    is_written_here: bool
    description: dict[str, Any]


class UnknownLayoutError(ValueError):
    """The pieces of a tensor are not blocks that make up the whole; says in a few words why."""


def file_of_pieces(part: str, process: int, *, constant: bool = False) -> str:
    """Return the name of the file in which a process writes its pieces of a part of a checkpoint.

    Args:
        part: The name of the part.
        process: The rank of the process.
        constant: Whether it is the file of those that are as in the checkpoint before.
    """
    return f"{part}.{'constant.' if constant else ''}{process}-of-{dist.get_world_size()}.safetensors"


class PieceLayout:
    """Plans who writes the pieces of several tensors, so that each process writes about as much.

    All processes come to the same plan without an exchange: it follows from the meshes and the placements alone.

    Args:
        part: The name of the part of the checkpoint.
    """

    def __init__(self, part: str) -> None:
        self._part = part
        self._bytes_to_write: dict[int, int] = {}

    def plan(self, tensor: DTensor) -> ShardedPiece:
        """Plan the next tensor; in the same order on all processes.

        Raises:
            UnknownLayoutError: The pieces are partial sums, or do not make up the whole tensor.
        """
        mesh: Any = tensor.device_mesh  # torch annotates it only in part
        shape = tuple(tensor.shape)
        blocks = _blocks(shape, tuple(mesh.shape), tuple(mesh.mesh.flatten().tolist()), tuple(tensor.placements))
        pieces: list[dict[str, Any]] = []
        is_written_here = False
        for block in blocks:
            size = math.prod(block.shape) * tensor.element_size()
            writer = min(block.holders, key=lambda rank: (self._bytes_to_write.get(rank, 0), rank))
            self._bytes_to_write[writer] = self._bytes_to_write.get(writer, 0) + size
            is_written_here |= writer == dist.get_rank()
            file = file_of_pieces(self._part, writer)
            pieces.append({"file": file, "offsets": list(block.offsets), "shape": list(block.shape)})
        description = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(shape), "pieces": pieces}
        return ShardedPiece(local_piece(tensor.detach()), is_written_here, description)


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of a tensor, and the processes that have it."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    holders: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def _blocks(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], ranks: tuple[int, ...], placements: tuple[Any, ...]
) -> tuple[_Block, ...]:
    """Return the blocks that are not empty, in the order of the processes of a mesh.

    Args:
        shape: The shape of the whole tensor.
        mesh_shape: The shape of the mesh.
        ranks: The processes of the mesh, row by row.
        placements: How each dimension of the mesh splits the tensor.

    Raises:
        UnknownLayoutError: As for ``plan``.
    """
    if any(placement.is_partial() for placement in placements):
        message = "each process has a part of a sum"
        raise UnknownLayoutError(message)
    holders: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for rank, coordinate in zip(ranks, itertools.product(*map(range, mesh_shape)), strict=True):
        of_rank, offsets = local_shape_and_offset(shape, mesh_shape, coordinate, placements)
        if math.prod(of_rank):
            holders.setdefault((offsets, of_rank), []).append(rank)
    blocks = tuple(_Block(offsets, of_rank, tuple(held)) for (offsets, of_rank), held in holders.items())
    _require_whole(shape, blocks)
    return blocks


def _require_whole(shape: Sequence[int], blocks: Sequence[_Block]) -> None:
    covered = sum(math.prod(block.shape) for block in blocks)
    if covered != math.prod(shape) or any(itertools.starmap(_overlap, itertools.combinations(blocks, 2))):
        message = f"pieces of a tensor of shape {tuple(shape)} that are not blocks side by side"
        raise UnknownLayoutError(message)


def _overlap(one: _Block, other: _Block) -> bool:
    return all(
        begin < other_begin + other_size and other_begin < begin + size
        for begin, size, other_begin, other_size in zip(one.offsets, one.shape, other.offsets, other.shape, strict=True)
    )
