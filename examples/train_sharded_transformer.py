"""Train a small transformer of which each process has a piece, on the documentation strings of Python itself.

It learns to guess the next character, and writes some lines of its own at the end. The text comes with Python, so that
nothing is downloaded. Start it in several processes; on one, the model is not sharded:

    torchrun --nproc-per-node 2 examples/train_sharded_transformer.py
    accelerate launch --use_fsdp --fsdp_version 2 --num_processes 2 examples/train_sharded_transformer.py

Start it again with the same `--output` after it was killed, also on one process or on four: it goes on from its last
training state. Without GPUs, set ACCELERATE_USE_CPU=true.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import Dataset
from typing_extensions import override

from pa_core import DEFAULT_CALLBACKS, AnyTrainer, SaveTrainingStateCallback, Trainer

MODULES = "argparse", "calendar", "datetime", "difflib", "functools", "heapq", "inspect", "random", "statistics"
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
CONTEXT = 64
SAMPLES_PER_UPDATE = 64


class Block(nn.Module):
    """Attention to the characters before, then a layer with one hidden layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    @override
    def forward(self, hidden: Tensor) -> Tensor:
        by_head = self.attend(self.before_attention(hidden)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        queries, keys, values = by_head.unbind(2)
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.project(attended.transpose(1, 2).flatten(2))
        transformed: Tensor = hidden + self.layers(self.before_layers(hidden))
        return transformed


class CharacterTransformer(nn.Module):
    """Maps characters, as numbers, to the logits of the character after each."""

    def __init__(self, width: int = 64, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(CHARACTERS), width)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.logits = nn.Linear(width, len(CHARACTERS))

    @override
    def forward(self, characters: Tensor) -> Tensor:
        hidden = self.characters(characters) + self.positions[: characters.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.logits(hidden)
        return logits


class Excerpts(Dataset[tuple[Tensor, Tensor]]):
    """Excerpts of a text, each with the characters that come next."""

    def __init__(self, text: str) -> None:
        self.numbers: Tensor = torch.tensor([CHARACTERS.index(one) for one in text if one in CHARACTERS])

    def __len__(self) -> int:
        return (len(self.numbers) - 1) // CONTEXT

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        begin = index * CONTEXT
        return self.numbers[begin : begin + CONTEXT], self.numbers[begin + 1 : begin + CONTEXT + 1]


class ShardingTrainer(Trainer[CharacterTransformer]):
    """Splits its model over the processes, also where the launcher does not ask for it."""

    @override
    def _create_accelerator(self) -> Any:
        from accelerate import Accelerator
        from accelerate.utils import FullyShardedDataParallelPlugin

        return Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))


def documentation() -> Iterator[str]:
    """Yield the documentation strings of some modules of Python, of what is in them, and of the methods."""
    for name in MODULES:
        module = importlib.import_module(name)
        for member in [module, *vars(module).values()]:
            methods = vars(member).values() if inspect.isclass(member) else ()
            yield from (one.__doc__ for one in (member, *methods) if isinstance(one.__doc__, str))


def loss_of_next_characters(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all characters."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def write(trainer: AnyTrainer, length: int = 200) -> str:
    """Let the model write; every process must call this, since each has a piece of the model."""
    model, text = trainer.get_model().eval(), torch.tensor([[CHARACTERS.index("R")]], device=trainer.device)
    generator = torch.Generator(trainer.device).manual_seed(0)  # all processes draw the same characters
    for _ in range(length):
        chances = model(text[:, -CONTEXT:])[:, -1].float().softmax(dim=-1)
        text = torch.cat([text, torch.multinomial(chances, 1, generator=generator)], dim=1)
    return "".join(CHARACTERS[int(number)] for number in text.flatten())


def parameters_of_this_process(model: nn.Module) -> int:
    """Return the number of parameters that are in the memory of this process."""
    from torch.distributed.tensor import DTensor

    pieces = (one.to_local() if isinstance(one, DTensor) else one for one in model.parameters())
    return sum(piece.numel() for piece in pieces)


def main(output: str = "characters", epochs: int = 10, length: int | None = None) -> None:
    """Train, export the weights, and print what the model writes."""
    text = "\n".join(documentation())[:length]
    end = len(text) * 9 // 10
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch
    model = CharacterTransformer()
    optimizer = AdamW(model.parameters(), lr=3e-3)  # made before the model is split, it trains the pieces afterwards
    states = Path(output, "states")
    save = SaveTrainingStateCallback(states, save_every_n_epochs=1, max_checkpoints=2, asynchronous=True)

    trainer = ShardingTrainer(model, loss_of_next_characters, optimizer, callbacks=[save, *DEFAULT_CALLBACKS])
    trainer.train(
        Excerpts(text[:end]),
        epochs,
        eval_dataset=Excerpts(text[end:]),
        per_device_batch_size=SAMPLES_PER_UPDATE // trainer.num_processes,
        gradient_clip_norm=1.0,
        resume_from=states,
        resume_missing="start",
    )

    own, whole = parameters_of_this_process(model), sum(one.numel() for one in model.parameters())
    trainer.print(f"This process has {own:,} of {whole:,} parameters")
    trainer.save_model(Path(output, "weights"))
    written = write(trainer)
    trainer.print(f"The model writes:\n{written}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="characters", help="folder of training states and weights")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--length", type=int, help="how many characters of the text to use; by default all")
    main(**vars(parser.parse_args()))
