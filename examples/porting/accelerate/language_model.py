"""Train a character model on lines of different lengths: each token weighs the same in an update."""

import argparse
import math
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from pydoc_data.topics import topics
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

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
    accelerator = Accelerator()
    set_seed(0)
    train_data, eval_data, num_chars = load_data()
    train_loader = DataLoader(train_data, args.batch_size, shuffle=True, collate_fn=collate)
    eval_loader = DataLoader(eval_data, 64, collate_fn=collate)
    model = CharacterModel(num_chars)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)
    updates_per_epoch = math.ceil(len(train_loader) / args.accumulation)
    scheduler = OneCycleLR(optimizer.optimizer, max_lr=1e-2, total_steps=args.epochs * updates_per_epoch)
    accelerator.register_for_checkpointing(scheduler)

    first_epoch = len(list(Path(args.output).glob("epoch_*")))
    if first_epoch:
        accelerator.load_state(f"{args.output}/epoch_{first_epoch - 1}")
    for epoch in range(first_epoch, args.epochs):
        model.train()
        batches = iter(train_loader)
        for _ in range(updates_per_epoch):
            group = list(islice(batches, args.accumulation))
            num_items = sum((labels != IGNORED).sum() for _, labels in group)
            num_items = accelerator.gather(num_items).sum().item()
            for i, (inputs, labels) in enumerate(group):
                is_last = i == len(group) - 1
                with nullcontext() if is_last else accelerator.no_sync(model):
                    loss = loss_over_tokens(model(inputs), labels)
                    weight = (labels != IGNORED).sum() / num_items
                    accelerator.backward(loss * weight * accelerator.num_processes)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

        model.eval()
        sums = torch.zeros(2, device=accelerator.device)
        for inputs, labels in eval_loader:
            with torch.no_grad():
                loss = loss_over_tokens(model(inputs), labels)
            num_items = (labels != IGNORED).sum()
            sums += torch.stack([loss * num_items, num_items])
        loss_sum, num_tokens = accelerator.reduce(sums, "sum").tolist()
        accelerator.print(f"epoch {epoch} perplexity {math.exp(loss_sum / num_tokens):.2f}")
        accelerator.save_state(f"{args.output}/epoch_{epoch}")

    accelerator.save_model(model, f"{args.output}/model")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--output", default="lines")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
