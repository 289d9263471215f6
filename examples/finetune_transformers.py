"""Train a language model of transformers, weighted by tokens.

Paragraphs of Python's manual, which comes with Python, are short and long. So batches have a budget of tokens instead
of a fixed number of paragraphs, and each update is the mean over its tokens, on any number of processes. The tiny model
is made from a configuration, so that nothing is downloaded; `from_pretrained` would take its place.

    pip install transformers
    python examples/finetune_transformers.py
    torchrun --nproc-per-node 2 examples/finetune_transformers.py
    accelerate launch --mixed_precision bf16 examples/finetune_transformers.py

The last line that it prints:

    Loss for a token of other paragraphs: 2.770; of the model that was loaded: 2.770
"""

from __future__ import annotations

import argparse
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

from pa_core import Trainer
from pa_data.orders import TokenBudget

Batch = dict[str, Tensor]
NOT_PREDICTED = -100  # what losses of transformers leave out


class Paragraphs(Dataset):
    """Paragraphs, each as the numbers of its characters."""

    def __init__(self, texts: list[bytes]) -> None:
        self.paragraphs = [torch.tensor(list(text)) for text in texts]
        self.lengths = [len(text) for text in texts]

    def __len__(self) -> int:
        return len(self.paragraphs)

    def __getitem__(self, index: int) -> Tensor:
        return self.paragraphs[index]


class LanguageModelTrainer(Trainer):
    """A trainer whose losses are means over tokens, of which batches have different numbers."""

    def calculate_train_batch_loss(self, batch: Batch) -> dict[str, Any]:
        output = self.model(**batch)
        return {
            "loss": output.loss,
            "model_outputs": output.logits,
            "batch_size": len(batch["labels"]),
            # The first token of a paragraph is not predicted, nor is padding.
            "num_items_in_batch": int((batch["labels"][:, 1:] != NOT_PREDICTED).sum()),
        }

    def calculate_eval_batch_loss(self, batch: Batch) -> dict[str, Any]:
        return self.calculate_train_batch_loss(batch)


def load_data() -> tuple[Paragraphs, Paragraphs]:
    """Return paragraphs to train on, and others to evaluate on; a token is a character."""
    manual = "\n\n".join(text for _, text in sorted(topics.items()))
    texts = dict.fromkeys(text.strip().encode("ascii", "ignore")[:200] for text in manual.split("\n\n"))
    paragraphs = [text for text in texts if len(text) > 1]
    return Paragraphs(paragraphs[100:500]), Paragraphs(paragraphs[:100])


def collate(paragraphs: list[Tensor]) -> Batch:
    """Make a batch as wide as its longest paragraph, as models of transformers take it."""
    labels = pad_sequence(paragraphs, batch_first=True, padding_value=NOT_PREDICTED)
    return {"input_ids": labels.clamp(min=0), "attention_mask": (labels >= 0).long(), "labels": labels}


def main(epochs: int = 5, output: Path = Path("outputs/finetune_transformers")) -> None:
    """Train, save the model in ``output``, and print its loss, before it was saved and after it was loaded."""
    torch.manual_seed(0)
    train_dataset, eval_dataset = load_data()
    config = GPT2Config(vocab_size=128, n_positions=200, n_embd=64, n_layer=1, n_head=4, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    trainer = LanguageModelTrainer(model, None, torch.optim.AdamW(model.parameters(), lr=3e-3))
    trainer.train(
        train_dataset,
        num_epochs=epochs,
        eval_dataset=eval_dataset,
        per_device_batch_size=50,  # of the evaluation
        order=TokenBudget(train_dataset.lengths, max_tokens=2048),
        collate_fn=collate,
        train_dataloader_kwargs={"num_workers": 0},  # the paragraphs are in memory
        eval_dataloader_kwargs={"num_workers": 0},
        gradient_clip_norm=1.0,
    )
    trained = trainer.run_history.get_latest_metric("eval_loss_epoch")
    if trainer.is_main_process:
        model.save_pretrained(output / "model")
    trainer.wait_for_everyone()

    loaded = GPT2LMHeadModel.from_pretrained(output / "model")
    trainer = LanguageModelTrainer(loaded, None, None)
    trainer.evaluate(eval_dataset, per_device_batch_size=50, collate_fn=collate)
    again = trainer.run_history.get_latest_metric("evaluation_loss")
    trainer.print(f"Loss for a token of other paragraphs: {trained:.3f}; of the model that was loaded: {again:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a tiny language model of transformers on Python's manual.")
    parser.add_argument("--epochs", type=int, default=5, help="how often to go over the paragraphs")
    parser.add_argument("--output", type=Path, default=Path("outputs/finetune_transformers"), help="where it writes")
    main(**vars(parser.parse_args()))
