"""Rows of `datasets` that a collator of transformers masks by chance: an interrupted run ends as a whole one."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from pa_core import SaveTrainingStateCallback, Trainer, TrainerCallback
from tests.support.pa_core.training_states.small_runs import InterruptAt, Interrupted

datasets: Any = pytest.importorskip("datasets")
transformers: Any = pytest.importorskip("transformers")

everywhere = pytest.mark.runs_on("one_process", "two_ranks")

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
WORDS = [*SPECIAL.values(), *(f"word{number}" for number in range(40))]


def make_tokenizer() -> Any:
    """A tokenizer that nobody has to download."""
    models = importlib.import_module("tokenizers.models")
    word_level = models.WordLevel({word: number for number, word in enumerate(WORDS)}, "[UNK]")
    tokenizer = importlib.import_module("tokenizers").Tokenizer(word_level)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)


def train(folder: Path, *callbacks: TrainerCallback, workers: int = 0, seed: int | None = None) -> str:
    """Train in three epochs as a script does that is started anew, or go on, and return the fingerprint."""
    rows = [[2, *(5 + (3 * row + place) % 40 for place in range(6 + row % 5)), 3] for row in range(32)]
    dataset = datasets.Dataset.from_dict({"input_ids": rows})
    collate = transformers.DataCollatorForLanguageModeling(make_tokenizer(), mlm_probability=0.3, seed=seed)
    torch.default_generator.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(WORDS), **size))
    saving = SaveTrainingStateCallback(folder, save_every_n_steps=1)
    trainer = Trainer(model, None, torch.optim.AdamW(model.parameters(), lr=0.01), callbacks=[*callbacks, saving])
    trainer.train(
        dataset,
        3,
        per_device_batch_size=8 // trainer.num_processes,
        collate_fn=collate,
        resume_from=folder,
        resume_missing="start",
        train_dataloader_kwargs={"num_workers": workers},
    )
    return trainer.fingerprint()


@everywhere
@pytest.mark.parametrize("workers", [0, 2])
def test_masks_without_a_seed_are_drawn_again(shared_tmp_path: Path, workers: int) -> None:
    """Resumed mid-epoch, with workers or without, a run ends as a whole one without workers, and warns of nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*collate_fn")
        whole = train(shared_tmp_path / "whole")
        with pytest.raises(Interrupted):
            train(shared_tmp_path / "resumed", InterruptAt("on_optimizer_step_end", 6), workers=workers)
        assert train(shared_tmp_path / "resumed", workers=workers) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_masks_with_a_seed_are_warned_of(shared_tmp_path: Path, workers: int) -> None:
    """The collator makes a generator of its own then, which is named in the first epoch."""
    with pytest.warns(UserWarning, match=r"Samples depend on collate_fn\.generator"), pytest.raises(Interrupted):
        train(shared_tmp_path, InterruptAt("on_optimizer_step_end", 3), workers=workers, seed=42)
