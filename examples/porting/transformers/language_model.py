"""Train a small GPT on paragraphs of Python's own reference, which have different lengths."""

import argparse
import math
from typing import Any

import torch
from pydoc_data.topics import topics
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Subset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

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

    training_args = TrainingArguments(
        output_dir=args.output,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=32,
        gradient_accumulation_steps=2,
        learning_rate=5e-3,
        lr_scheduler_type="cosine",
        warmup_steps=50,
        eval_strategy="epoch",
        save_strategy="steps",
        save_steps=20,
        save_total_limit=2,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_data,
        eval_dataset=eval_data,
        data_collator=collate,
    )
    trainer.train()
    print(f"perplexity {math.exp(trainer.evaluate()['eval_loss']):.2f}")
    model.save_pretrained(f"{args.output}/last")


if __name__ == "__main__":
    main()
