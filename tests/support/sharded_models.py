"""A small transformer of blocks, and sharding it as a script does by itself."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

WORDS, LENGTH = 11, 5


class Block(nn.Module):
    """A block of a transformer: attention, then a layer with one hidden layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width, bias=False)  # the gradient of a bias of keys is noise around zero
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    @override
    def forward(self, hidden: Tensor) -> Tensor:
        queries, keys, values = self.attend(self.norm(hidden)).chunk(3, dim=-1)
        hidden = hidden + nn.functional.scaled_dot_product_attention(queries, keys, values)
        fed: Tensor = hidden + self.feed(hidden)
        return fed


class TinyTransformer(nn.Module):
    """Maps words to the logits of a class; of widths that do not divide by the number of processes."""

    def __init__(self, width: int = 7, depth: int = 2, classes: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    @override
    def forward(self, words: Tensor) -> Tensor:
        hidden = self.embed(words)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden.mean(dim=1))
        return logits


def tiny_transformer(seed: int = 0) -> TinyTransformer:
    """A transformer in double precision, the same on each process."""
    torch.manual_seed(seed)
    return TinyTransformer().double()


def sentences(number: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Words and classes to learn."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(WORDS, (number, LENGTH), generator=generator)
    return words, words.sum(dim=1) % 3


def sharded(model: TinyTransformer, replicas: int = 1, **settings: Any) -> TinyTransformer:
    """Shard each block and the model, as a script does by itself.

    Args:
        model: The same on each process.
        replicas: Of how many groups of processes each has all of the model.
        **settings: What torch is told beside the mesh.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    processes, device = dist.get_world_size(), next(model.parameters()).device.type
    if replicas == 1:
        mesh = init_device_mesh(device, (processes,))
    else:
        mesh = init_device_mesh(device, (replicas, processes // replicas), mesh_dim_names=("replicate", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **settings)
    fully_shard(model, mesh=mesh, **settings)
    return model


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model, put together; every process must call this."""
    from pa_core._tensors import whole_tensor

    return {name: whole_tensor(parameter.detach()).clone() for name, parameter in model.named_parameters()}
