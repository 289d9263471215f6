"""Train a small GPT on paragraphs of Python's own reference, which have different lengths."""

import argparse
import math
from typing import Any

import torch
from pydoc_data.topics import topics
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Subset
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

from pa_core import DEFAULT_CALLBACKS, SaveTrainingStateCallback, Trainer
from pa_schedulers import CosineLrScheduler

IGNORED = -100


def load_data(num_paragraphs: int) -> tuple[Subset[Any], Subset[Any], dict[str, int]]:
    """Paragraphs as numbers of characters, and these numbers."""
    paragraphs = [
        " ".join(paragraph.split())[:96]
        for text in topics.values()
        for paragraph in text.split("\n\n")
        if paragraph.strip() and not paragraph.startswith("      ")
    ][:num_paragraphs]
    vocabulary = {char: number for number, char in enumerate(sorted(set("".join(paragraphs))), start=1)}
    samples = [{"input_ids": torch.tensor([0, *(vocabulary[char] for char in one)])} for one in paragraphs]
    split = int(0.9 * len(samples))
    return Subset(samples, range(split)), Subset(samples, range(split, len(samples))), vocabulary


def collate(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Inputs that are filled up to the longest, and labels that leave out what they are filled up with."""
    ids = [sample["input_ids"] for sample in samples]
    input_ids = pad_sequence(ids, batch_first=True)
    labels = pad_sequence(ids, batch_first=True, padding_value=IGNORED)
    return {"input_ids": input_ids, "attention_mask": (labels != IGNORED).long(), "labels": labels}


class TokenTrainer(Trainer):
    def calculate_train_batch_loss(self, batch: dict[str, Tensor]) -> dict[str, Any]:
        num_items = int((batch["labels"][:, 1:] != IGNORED).sum())
        return {**super().calculate_train_batch_loss(batch), "num_items_in_batch": num_items}

    calculate_eval_batch_loss = calculate_train_batch_loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--num-paragraphs", type=int, default=1000)
    parser.add_argument("--output", default="gpt")
    args = parser.parse_args()

    set_seed(0)
    train_data, eval_data, vocabulary = load_data(args.num_paragraphs)
    config = GPT2Config(
        vocab_size=len(vocabulary) + 1, n_positions=97, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0)
    schedule = CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1)
    save = SaveTrainingStateCallback(f"{args.output}/states", save_every_n_steps=20, max_checkpoints=2)
    trainer = TokenTrainer(model, None, optimizer, callbacks=[*DEFAULT_CALLBACKS, save])
    trainer.train(train_data, args.epochs, eval_data, 8, gradient_accumulation_steps=2, gradient_clip_norm=1.0,
                  create_scheduler_fn=schedule, collate_fn=collate, resume_from=save.save_dir, resume_missing="start")
    print(f"perplexity {math.exp(trainer.run_history.get_latest_metric('eval_loss_epoch')):.2f}")
    model.save_pretrained(f"{args.output}/last")


if __name__ == "__main__":
    main()
