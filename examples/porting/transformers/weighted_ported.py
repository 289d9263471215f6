"""Find rare lines of code: a subclass of the trainer weighs the loss, and a callback freezes the embeddings."""

import argparse
import inspect
from typing import Any

import torch
from pydoc_data.topics import topics
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import TensorDataset, random_split
from transformers import BertConfig, BertForSequenceClassification
from transformers import set_seed

from pa_core import DEFAULT_CALLBACKS, AnyTrainer, SaveTrainingStateCallback, Trainer, TrainerCallback

MAX_LENGTH = 40


def load_data(num_lines: int) -> TensorDataset:
    """Lines of Python's documentation, and a tenth as many of its code, as numbers of characters."""
    texts = "\n".join(topics.values()), inspect.getsource(argparse)
    lines = [[line.strip() for line in text.splitlines() if len(line.strip()) > 10] for text in texts]
    lines = [lines[0][:num_lines], lines[1][: num_lines // 10]]
    ids = torch.zeros(sum(map(len, lines)), MAX_LENGTH, dtype=torch.long)
    for row, line in zip(ids, lines[0] + lines[1], strict=True):
        chars = torch.tensor([1, *(min(ord(char), 127) for char in line)])[:MAX_LENGTH]
        row[: len(chars)] = chars
    return TensorDataset(ids, torch.tensor([0] * len(lines[0]) + [1] * len(lines[1])))


def collate(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    input_ids, labels = (torch.stack(column) for column in zip(*samples, strict=True))
    return {"input_ids": input_ids, "attention_mask": (input_ids != 0).long(), "labels": labels}


class WeightedTrainer(Trainer):
    """Errors on lines of code count as much as the others together."""

    def calculate_train_batch_loss(self, inputs: dict[str, Tensor]) -> dict[str, Any]:
        labels = inputs.pop("labels")
        outputs = self.model(**inputs)
        loss = F.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 10.0], device=labels.device))
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(labels)}

    calculate_eval_batch_loss = calculate_train_batch_loss


class FreezeEmbeddings(TrainerCallback):
    """Trains the embeddings in the first epoch only."""

    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        trainer.get_model().bert.embeddings.requires_grad_(trainer.num_epochs_completed < 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--num-lines", type=int, default=2000)
    parser.add_argument("--output", default="rare")
    args = parser.parse_args()

    set_seed(0)
    lines = load_data(args.num_lines)
    train_data, eval_data = random_split(lines, [0.8, 0.2], generator=torch.Generator().manual_seed(0))
    model = BertForSequenceClassification(BertConfig(
        vocab_size=128, max_position_embeddings=MAX_LENGTH, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=96,
    ))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    save = SaveTrainingStateCallback(f"{args.output}/states", save_every_n_epochs=1)
    trainer = WeightedTrainer(model, None, optimizer, callbacks=[*DEFAULT_CALLBACKS, FreezeEmbeddings(), save])
    trainer.train(train_data, args.epochs, eval_data, per_device_batch_size=16, collate_fn=collate,
                  gradient_clip_norm=1.0, resume_from=f"{args.output}/states", resume_missing="start")
    print(f"eval loss {trainer.run_history.get_latest_metric('eval_loss_epoch'):.3f}")
    model.save_pretrained(f"{args.output}/last")


if __name__ == "__main__":
    main()
