"""Train a character-level transformer, sharded (FSDP2) on request.

It learns to guess the next character of Python's manual, which comes with Python, and then writes by itself. Launched
on several processes, the same file divides parameters, gradients and the states of the optimizer over them. Run it
again after a kill, even on a different number of processes, and it resumes from its last training state. Delete
outputs/character_transformer to start over.

    python examples/character_transformer.py
    torchrun --nproc-per-node 2 examples/character_transformer.py
    accelerate launch --use_fsdp --fsdp_version 2 --num_processes 2 examples/character_transformer.py

The last lines that it prints:

    The model writes:
    ...
    This process has 66,464 of 116,448 parameters
"""

from __future__ import annotations

import argparse
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import TensorDataset

from pa_core import DEFAULT_CALLBACKS, AnyTrainer, SaveTrainingStateCallback, Trainer

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
CONTEXT = 64


class CharacterTransformer(nn.Module):
    """Maps characters, as numbers, to the log-probabilities of the character after each."""

    def __init__(self, width: int = 64, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(CHARACTERS), width)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.logits = nn.Linear(width, len(CHARACTERS))

    def forward(self, characters: Tensor) -> Tensor:
        length = characters.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=characters.device)
        hidden = self.characters(characters) + self.positions[:length]
        logits: Tensor = self.logits(self.layers(hidden, mask=mask, is_causal=True))
        return logits.log_softmax(dim=-1)


class ShardingTrainer(Trainer):
    """Splits its model over the processes, even if the launcher does not request it."""

    def create_accelerator(self) -> Any:
        return Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return excerpts to train on, and others to evaluate on, each with the characters that come next."""
    text = "\n".join(topics[name] for name in sorted(topics))[:60_000]
    numbers = torch.tensor([CHARACTERS.index(one) for one in text if one in CHARACTERS])
    count = (len(numbers) - 1) // CONTEXT
    inputs, targets = (numbers[first:][: count * CONTEXT].view(count, CONTEXT) for first in (0, 1))
    return TensorDataset(inputs[:-150], targets[:-150]), TensorDataset(inputs[-150:], targets[-150:])


def loss_of_next_characters(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all characters."""
    return nn.functional.nll_loss(log_probabilities.flatten(0, 1), targets.flatten())


@torch.no_grad()
def write(trainer: AnyTrainer, length: int = 200) -> str:
    """Let the model write; every process must call this, since each has a piece of the model."""
    model, text = trainer.get_model().eval(), torch.tensor([[CHARACTERS.index("R")]], device=trainer.device)
    generator = torch.Generator(trainer.device).manual_seed(0)  # all processes draw the same characters
    for _ in range(length):
        chances = model(text[:, -CONTEXT:])[:, -1].float().exp()
        text = torch.cat([text, torch.multinomial(chances, 1, generator=generator)], dim=1)
    return "".join(CHARACTERS[int(number)] for number in text.flatten())


def main(epochs: int = 10, output: Path = Path("outputs/character_transformer")) -> None:
    """Train, save states and weights in ``output``, and print what the model writes."""
    torch.manual_seed(0)
    train_dataset, eval_dataset = load_data()
    model = CharacterTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)  # made before the model is split, it trains the pieces
    save = SaveTrainingStateCallback(output / "states", save_every_n_epochs=1, max_checkpoints=2)
    trainer = ShardingTrainer(model, loss_of_next_characters, optimizer, callbacks=[*DEFAULT_CALLBACKS, save])
    trainer.train(
        train_dataset,
        num_epochs=epochs,
        eval_dataset=eval_dataset,
        per_device_batch_size=64 // trainer.num_processes,
        gradient_clip_norm=1.0,
        resume_from=output / "states",
        resume_missing="start",
    )
    trainer.save_model(output / "weights")
    written = write(trainer)
    trainer.print(f"The model writes:\n{written}")
    own = sum((one.to_local() if isinstance(one, DTensor) else one).numel() for one in model.parameters())
    trainer.print(f"This process has {own:,} of {sum(one.numel() for one in model.parameters()):,} parameters")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a transformer to write character by character.")
    parser.add_argument("--epochs", type=int, default=10, help="how often to go over the text")
    parser.add_argument("--output", type=Path, default=Path("outputs/character_transformer"), help="where it writes")
    main(**vars(parser.parse_args()))
