"""Which chapter of Python's manual is a sentence from? Sequences of different lengths, padded batch by batch."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: D102, D103, T201

import re
from pydoc_data.topics import topics

import torch
from torch import nn, optim
from torch.nn.utils.rnn import pad_sequence

from pytorch_accelerated.callbacks import EarlyStoppingCallback, SaveBestModelCallback, TrainerCallback
from pytorch_accelerated.schedulers import CosineLrScheduler
from pytorch_accelerated.trainer import Trainer
from pytorch_accelerated.utils import local_process_zero_first, remove_padding

CHAPTERS = ["debugger", "formatstrings", "import", "typesseq"]
PAD_TOKEN = 0
IGNORED = -100


def read_pieces():
    """Pieces of a few words from the manual that Python's own help shows."""
    words_of_labels = [re.findall(r"[a-z]+", topics[chapter].lower())[:1500] for chapter in CHAPTERS]
    pieces = []
    for label, words in enumerate(words_of_labels):
        start = 0
        while start < len(words):
            length = 4 + (start * 7 + label) % 9
            pieces.append((words[start : start + length], label))
            start += length
    vocabulary = sorted({word for words in words_of_labels for word in words})
    token_of = {word: token for token, word in enumerate(vocabulary, start=PAD_TOKEN + 1)}
    return [([token_of[word] for word in words], label) for words, label in pieces], len(vocabulary) + 1


class Sentences(torch.utils.data.Dataset):
    """Token ids of different lengths, each with a label."""

    def __init__(self, pieces):
        self.pieces = pieces

    def __len__(self):
        """The number of sentences."""
        return len(self.pieces)

    def __getitem__(self, index):
        tokens, label = self.pieces[index]
        return {"input_ids": tokens, "labels": label}


def pad_batch(samples):
    """As long as the longest sentence of the batch."""
    input_ids = pad_sequence(
        [torch.tensor(sample["input_ids"]) for sample in samples], batch_first=True, padding_value=PAD_TOKEN
    )
    return {
        "input_ids": input_ids,
        "attention_mask": (input_ids != PAD_TOKEN).long(),
        "labels": torch.tensor([sample["labels"] for sample in samples]),
    }


class SequenceClassifier(nn.Module):
    """The mean of the embedded tokens, classified."""

    def __init__(self, vocabulary_size, num_labels):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, 32, padding_idx=PAD_TOKEN)
        self.classifier = nn.Linear(32, num_labels)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(-1)
        return self.classifier((self.embedding(input_ids) * mask).sum(1) / mask.sum(1))


class TextTrainer(Trainer):
    """Classifies sentences, and keeps what was predicted for all those that are long enough to judge."""

    def calculate_train_batch_loss(self, batch):
        labels = batch.pop("labels")
        logits = self.model(**batch)
        return {"loss": self.loss_func(logits, labels), "model_outputs": logits, "batch_size": labels.size(0)}

    def calculate_eval_batch_loss(self, batch):
        judged = batch["attention_mask"].sum(1) > 5
        labels = batch["labels"]
        with torch.no_grad():
            output = self.calculate_train_batch_loss(batch)
        predictions = output["model_outputs"].argmax(-1)
        pairs = torch.stack([predictions[judged], labels[judged]], dim=1)
        output["pairs"] = remove_padding(self.gather(pairs, padding_value=IGNORED), IGNORED)
        return output


class RecordAccuracy(TrainerCallback):
    """The share of correct predictions among the sentences that were judged."""

    def __init__(self):
        self.pairs = []

    def on_eval_step_end(self, trainer, batch, batch_output, **kwargs):
        self.pairs.append(batch_output["pairs"].cpu())

    def on_eval_epoch_end(self, trainer, **kwargs):
        predictions, labels = torch.cat(self.pairs).unbind(1)
        trainer.run_history.update_metric("accuracy", (predictions == labels).float().mean())
        trainer.run_history.update_metric("num_judged", len(labels))
        self.pairs.clear()


def main(per_device_batch_size=16):
    torch.manual_seed(0)
    with local_process_zero_first():
        pieces, vocabulary_size = read_pieces()
    eval_pieces = pieces[::4]
    train_pieces = [piece for index, piece in enumerate(pieces) if index % 4]
    model = SequenceClassifier(vocabulary_size, len(CHAPTERS))
    trainer = TextTrainer(
        model,
        nn.CrossEntropyLoss(),
        optim.AdamW(model.parameters(), lr=0.02),
        callbacks=[
            RecordAccuracy,
            SaveBestModelCallback("text_classifier.pt", watch_metric="accuracy", greater_is_better=True),
            EarlyStoppingCallback(early_stopping_patience=4, watch_metric="accuracy", greater_is_better=True),
        ],
    )
    trainer.train(
        train_dataset=Sentences(train_pieces),
        eval_dataset=Sentences(eval_pieces),
        num_epochs=8,
        per_device_batch_size=per_device_batch_size,
        create_scheduler_fn=CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1),
        collate_fn=pad_batch,
        train_dataloader_kwargs={"num_workers": 0},
        eval_dataloader_kwargs={"num_workers": 0},
    )
    history = trainer.run_history
    return {
        "train_loss_epoch": [float(value) for value in history.get_metric_values("train_loss_epoch")],
        "accuracy": [float(value) for value in history.get_metric_values("accuracy")],
        "num_judged": history.get_latest_metric("num_judged"),
        "num_long_enough": sum(len(tokens) > 5 for tokens, _ in eval_pieces),
    }


if __name__ == "__main__":
    print(main())
