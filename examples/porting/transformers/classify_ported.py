"""Tell lines of code from lines of documentation with a small transformer."""

import argparse
import inspect
from typing import Any

import torch
from pydoc_data.topics import topics
from torch.utils.data import Dataset, random_split
from transformers import DistilBertConfig, DistilBertForSequenceClassification, set_seed

from pa_core import DEFAULT_CALLBACKS, SaveBestModelCallback, SaveTrainingStateCallback, Trainer

MAX_LENGTH = 48


class Lines(Dataset[dict[str, Any]]):
    """As many lines of Python's code as of its documentation, as numbers of characters."""

    def __init__(self, num_lines: int) -> None:
        texts = "\n".join(topics.values()), inspect.getsource(argparse)
        lines = [[line.strip() for line in text.splitlines() if len(line.strip()) > 10] for text in texts]
        self.lines = [(line, label) for label in (0, 1) for line in lines[label][: num_lines // 2]]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> dict[str, Any]:
        line, label = self.lines[index]
        return {"input_ids": [1, *(min(ord(char), 127) for char in line[:MAX_LENGTH])], "labels": label}


def collate(lines: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    input_ids = torch.zeros(len(lines), MAX_LENGTH + 1, dtype=torch.long)
    for row, line in zip(input_ids, lines, strict=True):
        row[: len(line["input_ids"])] = torch.tensor(line["input_ids"])
    labels = torch.tensor([line["labels"] for line in lines])
    return {"input_ids": input_ids, "attention_mask": (input_ids != 0).long(), "labels": labels}


class LinesTrainer(Trainer):
    def calculate_eval_batch_loss(self, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        self.log("accuracy", (output["model_outputs"].logits.argmax(dim=-1) == batch["labels"]).float().mean())
        return output


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--num-lines", type=int, default=2000)
    parser.add_argument("--output", default="classified")
    args = parser.parse_args()

    set_seed(0)
    lines = Lines(args.num_lines)
    train_data, eval_data = random_split(lines, [0.8, 0.2], generator=torch.Generator().manual_seed(0))
    config = DistilBertConfig(
        vocab_size=128, max_position_embeddings=MAX_LENGTH + 1, dim=48, n_layers=2, n_heads=4, hidden_dim=96
    )
    model = DistilBertForSequenceClassification(config)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    best = SaveBestModelCallback(f"{args.output}/best.pt", watch_metric="eval_accuracy_epoch", greater_is_better=True)
    save = SaveTrainingStateCallback(f"{args.output}/states", save_every_n_epochs=1)
    trainer = LinesTrainer(model, None, optimizer, callbacks=[*DEFAULT_CALLBACKS, best, save])
    trainer.train(train_data, args.epochs, eval_data, 16, collate_fn=collate, gradient_clip_norm=1.0,
                  resume_from=f"{args.output}/states", resume_missing="start")
    print(f"accuracy {best.best.value:.3f}")
    model.save_pretrained(f"{args.output}/best")


if __name__ == "__main__":
    main()
