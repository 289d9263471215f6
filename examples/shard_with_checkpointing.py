"""Shard a transformer (FSDP2), with activation checkpointing.

Several processes divide the parameters, the gradients and the optimizer's state. For the backward pass, each keeps only
the inputs of its blocks and computes the rest again. The saved model is a whole one, which plain PyTorch loads.
On one process, nothing is sharded or computed twice.

    python examples/shard_with_checkpointing.py
    torchrun --nproc-per-node 2 examples/shard_with_checkpointing.py
    accelerate launch --use_fsdp --fsdp_version 2 --num_processes 2 examples/shard_with_checkpointing.py

For a billion parameters on 8 GPUs, set `LENGTH` and the vocabulary, return your tokens from `load_data`, and start it
with `accelerate launch --use_fsdp --fsdp_version 2 --num_processes 8 --mixed_precision bf16`
and the arguments `--width=2048 --depth=20`.
If no process can hold the model, create it on the meta device, as docs/sharding.md shows.

The last two lines that it prints:

    This process holds 60,352 of 120,704 parameters
    Loaded by plain PyTorch, the model has an evaluation loss of 2.68
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from pa_core import Trainer

LENGTH = 64


class Transformer(nn.Module):
    """Maps characters to logits of the character after each."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.positions = nn.Parameter(torch.randn(LENGTH, width) / 10)
        self.blocks = nn.ModuleList(  # each block is gathered and checkpointed separately
            nn.TransformerEncoderLayer(width, width // 32, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 128))

    def forward(self, characters: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=characters.device)
        hidden = self.embed(characters) + self.positions
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits.transpose(1, 2).contiguous()


class ShardingTrainer(Trainer):
    """A trainer that shards its model if there are several processes."""

    def create_accelerator(self) -> Any:
        return Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, activation_checkpointing=True))


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return excerpts of Python's manual to train on, and others to evaluate on."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore")[: 1200 * LENGTH + 1]
    characters = torch.tensor(list(text))
    inputs, targets = characters[:-1].view(-1, LENGTH), characters[1:].view(-1, LENGTH)
    return TensorDataset(inputs[:1000], targets[:1000]), TensorDataset(inputs[1000:], targets[1000:])


def main(epochs: int, width: int, depth: int, output: Path) -> None:
    """Train, save the model, and load it without the trainer."""
    torch.manual_seed(0)
    train_dataset, eval_dataset = load_data()
    model = Transformer(width, depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # of the shards, once the model is sharded
    trainer = ShardingTrainer(model, cross_entropy, optimizer)
    trainer.train(train_dataset, epochs, eval_dataset, 32 // trainer.num_processes, gradient_clip_norm=1.0)
    trainer.save_model(output)  # on every process
    held = [one.to_local() if isinstance(one, DTensor) else one for one in model.parameters()]
    counts = [sum(one.numel() for one in parameters) for parameters in (held, model.parameters())]
    trainer.print("This process holds {:,} of {:,} parameters".format(*counts))

    if trainer.is_main_process:
        plain = Transformer(width, depth).eval()
        plain.load_state_dict(load_file(output / "model.safetensors"))
        inputs, targets = eval_dataset.tensors
        with torch.no_grad():
            loss = cross_entropy(plain(inputs), targets)
        print(f"Loaded by plain PyTorch, the model has an evaluation loss of {loss:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a sharded transformer.")
    parser.add_argument("--epochs", type=int, default=3, help="how often to go over the text")
    parser.add_argument("--width", type=int, default=64, help="numbers for each character in the blocks")
    parser.add_argument("--depth", type=int, default=2, help="the number of blocks")
    parser.add_argument("--output", type=Path, default=Path("outputs/shard_with_checkpointing"), help="where it writes")
    main(**vars(parser.parse_args()))
