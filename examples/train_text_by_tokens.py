"""Train a language model in batches of at most so many characters, on the documentation strings of Python itself.

Paragraphs are short and long. Batches of a fixed number of them would be mostly padding, and the longest would decide
how much memory a step needs. Here a budget decides how many paragraphs of like length come together, and each update is
the mean over all its characters. The text comes with Python, so that nothing is downloaded.

    python examples/train_text_by_tokens.py
    torchrun --nproc-per-node 2 examples/train_text_by_tokens.py

Both make the same updates. Start it again with the same `--output` after it was killed, also on another number of
processes: it goes on from its last training state.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW
from torch.utils.data import Dataset, Subset
from typing_extensions import override

from pa_core import DEFAULT_CALLBACKS, BatchOutput, SaveTrainingStateCallback, Trainer
from pa_core.orders import TokenBudget

MODULES = "argparse", "calendar", "datetime", "difflib", "functools", "heapq", "inspect", "random", "statistics"
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
LONGEST = 400
BATCHES_PER_UPDATE = 4
PADDING = -100  # what cross_entropy leaves out


class Paragraphs(Dataset[Tensor]):
    """The paragraphs of the documentation, each as the numbers of its characters.

    Attributes:
        lengths: The number of characters of each.
    """

    def __init__(self) -> None:
        known = {character: number for number, character in enumerate(CHARACTERS)}
        texts = dict.fromkeys(text.strip()[:LONGEST] for text in documentation())
        paragraphs = [[known[one] for one in text if one in known] for text in texts]
        self.paragraphs: list[Tensor] = [torch.tensor(one) for one in paragraphs if len(one) > 1]
        self.lengths: Tensor = torch.tensor([len(one) for one in self.paragraphs])

    def __len__(self) -> int:
        return len(self.paragraphs)

    @override
    def __getitem__(self, index: int) -> Tensor:
        return self.paragraphs[index]


class CharacterModel(nn.Module):
    """Maps characters, as numbers, to the logits of the character after each."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(CHARACTERS), width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.logits = nn.Linear(width, len(CHARACTERS))

    @override
    def forward(self, characters: Tensor) -> Tensor:
        hidden: Tensor = self.recurrent(self.characters(characters))[0]
        logits: Tensor = self.logits(hidden)
        return logits


class TextTrainer(Trainer[CharacterModel, Tensor, BatchOutput]):
    """Guesses the next character of each."""

    @override
    def calculate_train_batch_loss(self, batch: Tensor) -> BatchOutput:
        targets = batch[:, 1:]
        logits = self.model(batch[:, :-1].clamp(min=0))
        return {
            "loss": cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING),
            "model_outputs": logits,
            "batch_size": len(batch),
            "num_items_in_batch": int((targets != PADDING).sum()),
        }

    @override
    def calculate_eval_batch_loss(self, batch: Tensor) -> BatchOutput:
        return self.calculate_train_batch_loss(batch)


def documentation() -> Iterator[str]:
    """Yield the paragraphs of the documentation of some modules of Python, of what is in them, and of the methods."""
    for name in MODULES:
        module = importlib.import_module(name)
        for member in [module, *vars(module).values()]:
            methods = vars(member).values() if inspect.isclass(member) else ()
            for one in (member, *methods):
                yield from (one.__doc__ if isinstance(one.__doc__, str) else "").split("\n\n")


def pad(paragraphs: list[Tensor]) -> Tensor:
    """Make a batch as wide as its longest paragraph."""
    return pad_sequence(paragraphs, batch_first=True, padding_value=PADDING)


def main() -> None:
    """Train, and save training states."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--max-characters", type=int, default=4096, help="of a batch of one process, with padding")
    parser.add_argument("--output", type=Path, default=Path("text-by-tokens"))
    arguments = parser.parse_args()

    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
    whole = Paragraphs()
    training, evaluation = range(200, len(whole)), range(200)
    order = TokenBudget(whole.lengths[training.start :], max_tokens=arguments.max_characters)
    model = CharacterModel()
    saving = SaveTrainingStateCallback(arguments.output / "states", save_every_n_steps=20)
    trainer = TextTrainer(model, None, AdamW(model.parameters(), lr=3e-3), callbacks=(*DEFAULT_CALLBACKS, saving))
    trainer.print(f"{len(training):,} paragraphs in {order.num_batches} batches")
    trainer.train(
        Subset(whole, training),
        arguments.epochs,
        eval_dataset=Subset(whole, evaluation),
        per_device_batch_size=32,  # of the evaluation
        gradient_accumulation_steps=max(1, BATCHES_PER_UPDATE // trainer.num_processes),
        order=order,
        collate_fn=pad,
        train_dataloader_kwargs={"num_workers": 0},  # the paragraphs are in memory
        eval_dataloader_kwargs={"num_workers": 0},
        resume_from=arguments.output / "states",
        resume_missing="start",
    )


if __name__ == "__main__":
    main()
