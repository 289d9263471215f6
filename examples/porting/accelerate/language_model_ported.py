"""Train a character model on lines of different lengths: each token weighs the same in an update."""

import argparse
import math
from functools import partial

import torch
from pydoc_data.topics import topics
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import OneCycleLR

from pa_core import Run, SaveTrainingStateCallback, TrainerPlaceholderValues

IGNORED = -100


def load_data() -> tuple[list[Tensor], list[Tensor], int]:
    """Lines of Python's own reference as numbers of characters, and how many characters there are."""
    lines = [line.strip() for text in topics.values() for line in text.splitlines() if 20 < len(line.strip()) < 80]
    chars = sorted(set("".join(lines)))
    number = {char: index for index, char in enumerate(chars, start=1)}
    data = [torch.tensor([0, *(number[char] for char in line)]) for line in lines[:1200:2]]
    return data[:500], data[500:], len(chars) + 1


def collate(lines: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a batch; labels of padding are ignored."""
    inputs = pad_sequence([line[:-1] for line in lines], batch_first=True)
    return inputs, pad_sequence([line[1:] for line in lines], batch_first=True, padding_value=IGNORED)


class CharacterModel(nn.Module):
    def __init__(self, num_chars: int) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(num_chars, 48), nn.Dropout(0.1)
        self.rnn = nn.GRU(48, 64, batch_first=True)
        self.head = nn.Linear(64, num_chars)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.dropout(self.rnn(self.embedding(inputs))[0]))


def loss_over_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over the characters that are no padding."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    train_data, eval_data, num_chars = load_data()
    model = CharacterModel(num_chars)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    updates = TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
    with Run(
        model, optimizer, train_data, num_epochs=args.epochs, per_device_batch_size=args.batch_size, collate_fn=collate,
        gradient_accumulation_steps=args.accumulation, gradient_clip_norm=1.0,
        create_scheduler_fn=partial(OneCycleLR, max_lr=1e-2, total_steps=updates),
        callbacks=[SaveTrainingStateCallback(args.output, save_every_n_epochs=1)],
        resume_from=args.output, resume_missing="start",
    ) as run:
        for epoch in run.epochs():
            model.train()
            for update in run.updates():
                for inputs, labels in update:
                    loss = loss_over_tokens(model(inputs), labels)
                    update.backward(loss, num_items=(labels != IGNORED).sum().item())
                update.step()

            model.eval()
            for inputs, labels in run.evaluation_batches(eval_data, per_device_batch_size=64):
                with torch.no_grad():
                    loss = loss_over_tokens(model(inputs), labels)
                run.log("loss", loss, num_items=(labels != IGNORED).sum().item())
            mean_loss = run.run_history.get_latest_metric("eval_loss_epoch")
            run.print(f"epoch {epoch} perplexity {math.exp(mean_loss):.2f}")

        run.save_model(f"{args.output}/model")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--output", default="lines")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
