"""Classify texts with transformers in bf16, logged to W&B offline.

The texts are paragraphs of Python's manual, which comes with Python, and their classes are its chapters. The tokenizer
is trained on them, and the tiny model made from a configuration; `--pretrained NAME` takes both from the hub instead.
The curves, the settings and a table of the mistakes are one run, which `wandb sync` sends to an account.

    pip install transformers wandb
    python examples/classify_texts.py
    torchrun --nproc-per-node 2 examples/classify_texts.py

The last line that it prints:

    Of 120 other paragraphs, 101 were found to be of the right chapter
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import wandb
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from torch.utils.data import Dataset, random_split
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DistilBertConfig, PreTrainedTokenizerFast

from pa_callbacks_extra import TrackerCallback
from pa_core import DEFAULT_CALLBACKS, Trainer
from pa_schedulers import CosineLrScheduler

Batch = dict[str, Tensor]
CHAPTERS = ["compound", "debugger", "string-methods", "typesmapping"]


class Paragraphs(Dataset):
    """The paragraphs of the chapters, each with the number of its chapter."""

    def __init__(self) -> None:
        chapters = [topics[name].split("\n\n") for name in CHAPTERS]
        self.samples = [(text, label) for label, texts in enumerate(chapters) for text in texts if " " in text.strip()]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self.samples[index]


class TextTrainer(Trainer):
    """Records the accuracy of evaluations; the default step takes the loss that the model returns."""

    def calculate_eval_batch_loss(self, batch: Batch) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        self.log("accuracy", (output["model_outputs"].logits.argmax(dim=-1) == batch["labels"]).float().mean())
        return output


def load_model(pretrained: str, texts: list[str]) -> tuple[Any, Any]:
    """Return a tokenizer and a model: from the hub if they have a name there, else new ones for these texts."""
    if pretrained:
        model = AutoModelForSequenceClassification.from_pretrained(
            pretrained, num_labels=len(CHAPTERS), dtype=torch.float32
        )
        return AutoTokenizer.from_pretrained(pretrained), model
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=2000, special_tokens=["[PAD]", "[UNK]"]))
    config = DistilBertConfig(vocab_size=2000, dim=64, n_layers=2, n_heads=4, hidden_dim=128)
    config.num_labels = len(CHAPTERS)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer, AutoModelForSequenceClassification.from_config(config)


def collate(samples: list[tuple[str, int]], tokenizer: Any) -> Batch:
    """Make a batch as wide as its longest text."""
    tokens = tokenizer([text for text, _ in samples], padding=True, truncation=True, max_length=64, return_tensors="pt")
    return {**tokens, "labels": torch.tensor([label for _, label in samples])}


def main(epochs: int = 6, pretrained: str = "", output: Path = Path("outputs/classify_texts")) -> None:
    """Train, log the mistakes, and print how many texts were classified rightly."""
    torch.manual_seed(0)
    paragraphs = Paragraphs()
    train_data, eval_data = random_split(paragraphs, [len(paragraphs) - 120, 120])
    others = [paragraphs[index] for index in eval_data.indices]
    tokenizer, model = load_model(pretrained, [paragraphs[index][0] for index in train_data.indices])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5 if pretrained else 2e-3, weight_decay=0.01)
    output.mkdir(parents=True, exist_ok=True)
    track = TrackerCallback("wandb", "chapters", init_kwargs={"wandb": {"mode": "offline", "dir": str(output)}})
    trainer = TextTrainer(model, None, optimizer, callbacks=[*DEFAULT_CALLBACKS, track], mixed_precision="bf16")
    tokenized = partial(collate, tokenizer=tokenizer)
    schedule = CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1)
    trainer.train(train_data, epochs, eval_data, 16, collate_fn=tokenized, create_scheduler_fn=schedule)

    batches = trainer.predict(eval_data, 16, collate_fn=tokenized)
    predicted: list[int] = [number for batch in batches for number in batch["logits"].argmax(-1).tolist()]
    if trainer.is_main_process:  # the others have no predictions
        answers = [(text, CHAPTERS[label], CHAPTERS[one]) for (text, label), one in zip(others, predicted, strict=True)]
        mistakes = [answer for answer in answers if answer[1] != answer[2]]
        table = wandb.Table(columns=["text", "chapter", "predicted"], data=[*mistakes])
        track.native("wandb").log({"mistakes": table}, step=track.step)
        track.finish()  # now, so that the line below is the last one
        right = len(answers) - len(mistakes)
        trainer.print(f"Of {len(answers)} other paragraphs, {right} were found to be of the right chapter")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Classify paragraphs of Python's manual by their chapters.")
    parser.add_argument("--epochs", type=int, default=6, help="how often to go over the paragraphs")
    parser.add_argument("--pretrained", default="", help="a model of the hub, such as distilbert-base-uncased")
    parser.add_argument("--output", type=Path, default=Path("outputs/classify_texts"), help="the folder for the run")
    main(**vars(parser.parse_args()))
