"""Train a small transformer on characters, and let it write.

It reads paragraphs of Python's own manual, the texts that `help("assert")` and the like show, and guesses the next
character of each. Paragraphs are short and long: `TokenBudget` puts those of like length into batches of at most so
many characters, and each update is the mean over all its characters, which `num_items_in_batch` counts.

    python examples/character_transformer.py
    torchrun --nproc-per-node 2 examples/character_transformer.py
    accelerate launch --mixed_precision bf16 examples/character_transformer.py

The last line that it prints begins as follows, and goes on with what the model makes up:

    The loss of a character is 2.37, and it writes: The ...
"""

from __future__ import annotations

import argparse
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from typing_extensions import override

from pa_core import BatchOutput, Trainer
from pa_core.orders import TokenBudget

LONGEST = 128
PADDING = -100  # what cross_entropy leaves out


class CharacterTransformer(nn.Module):
    """Maps characters, as numbers, to the logits of the character after each."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(128, width)
        self.positions = nn.Embedding(LONGEST, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.logits = nn.Linear(width, 128)

    @override
    def forward(self, characters: Tensor) -> Tensor:
        length = characters.shape[1]
        hidden = self.characters(characters) + self.positions.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=characters.device)
        logits: Tensor = self.logits(self.layers(hidden, mask=mask, is_causal=True))
        return logits

    @torch.no_grad()
    def write(self, beginning: str) -> str:
        """Continue a text to the length of a paragraph, each character drawn by its probability."""
        characters = list(beginning.encode())
        dice = torch.Generator().manual_seed(0)
        while len(characters) < LONGEST:
            logits: Tensor = self(torch.tensor([characters], device=self.logits.weight.device))
            probabilities = (logits[0, -1].float().cpu() / 0.7).softmax(dim=0)
            characters.append(int(torch.multinomial(probabilities, 1, generator=dice)))
        return "".join(map(chr, characters))


class TextTrainer(Trainer[CharacterTransformer, Tensor, BatchOutput]):
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


class Paragraphs(Dataset[Tensor]):
    """Some paragraphs of the manual, as the numbers of their characters."""

    def __init__(self, first: int, last: int) -> None:
        manual = "\n\n".join(text for _, text in sorted(topics.items()))
        texts = dict.fromkeys(" ".join(one.split())[:LONGEST] for one in manual.split("\n\n"))
        self.texts = [one.encode("ascii", "ignore") for one in texts if len(one) > 1][first:last]

    def __len__(self) -> int:
        return len(self.texts)

    @override
    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(list(self.texts[index]))


def pad(paragraphs: list[Tensor]) -> Tensor:
    """Make a batch as wide as its longest paragraph."""
    return pad_sequence(paragraphs, batch_first=True, padding_value=PADDING)


def main(epochs: int = 10) -> None:
    """Train, and print what the model writes."""
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
    train_dataset, eval_dataset = Paragraphs(100, 1100), Paragraphs(0, 100)
    model = CharacterTransformer()
    trainer = TextTrainer(model, None, torch.optim.AdamW(model.parameters(), lr=3e-3))
    trainer.train(
        train_dataset,
        num_epochs=epochs,
        eval_dataset=eval_dataset,
        per_device_batch_size=50,  # of the evaluation
        order=TokenBudget([len(text) for text in train_dataset.texts], max_tokens=2048),
        collate_fn=pad,
        gradient_clip_norm=1.0,
    )
    loss = float(trainer.run_history.get_latest_metric("eval_loss_epoch"))
    trainer.print(f"The loss of a character is {loss:.2f}, and it writes: {model.eval().write('The ')}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small transformer on the characters of Python's manual.")
    parser.add_argument("--epochs", type=int, default=10, help="how often to go over the paragraphs")
    main(parser.parse_args().epochs)
