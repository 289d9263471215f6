"""Scripts without a mistake that train models of transformers with random weights."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import TensorDataset

from tests.support.pa_preflight.data import Named, pictures, texts
from tests.support.pa_preflight.scripts import Healthy, Net, Script, classes, script

healthy = Healthy()

_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def _model(kind: str, config: str, **options: Any) -> Any:
    """Return a model with random weights; type checkers may lack the package."""
    transformers = import_module("transformers")
    return getattr(transformers, kind)(getattr(transformers, config)(**options))


def _trains(model: Any, data: Any, evaluation: Any, rate: float = 1e-3) -> Script:
    return script(model, None, data, train=partial(AdamW, lr=rate), eval_dataset=evaluation)


def _sentences(num_samples: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    words, labels = texts(num_samples, seed=seed).tensors
    mask = (torch.arange(12) < 8 + labels[:, None]).long()
    return words * mask, mask, labels


def _classified(num_samples: int, seed: int) -> Named:
    return Named(TensorDataset(*_sentences(num_samples, seed)), "input_ids", "attention_mask", "labels")


def _continued(num_samples: int, seed: int) -> Named:
    words, mask, _ = _sentences(num_samples, seed)
    labels = words.masked_fill(mask == 0, -100)
    return Named(TensorDataset(words, mask, labels), "input_ids", "attention_mask", "labels")


def _vit() -> Script:
    sizes = {**_SMALL, "image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 4}
    data, evaluation = (Named(pictures(number, seed=number), "pixel_values", "labels") for number in (320, 64))
    return _trains(_model("ViTForImageClassification", "ViTConfig", **sizes), data, evaluation)


def _mean_of_states(net: Any, words: Tensor) -> Tensor:
    logits: Tensor = net.head(net.encoder(input_ids=words).last_hidden_state.mean(dim=1))
    return logits


def _continues(kind: str, config: str, **sizes: Any) -> Script:
    return _trains(_model(kind, config, vocab_size=20, **sizes), _continued(320, 1), _continued(64, 2))


# Padded texts and their classes.
healthy["bert_that_classifies"] = lambda: _trains(
    _model("BertForSequenceClassification", "BertConfig", vocab_size=20, num_labels=3, **_SMALL),
    _classified(320, 1),
    _classified(64, 2),
)
# A tag for each token, except for padding.
healthy["bert_that_tags"] = lambda: _continues("BertForTokenClassification", "BertConfig", num_labels=20, **_SMALL)
# The model shifts the labels itself, and its head has the weights of the embedding.
healthy["gpt_2"] = lambda: _continues(
    "GPT2LMHeadModel",
    "GPT2Config",
    **{"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0},
)
# Grouped attention and RMSNorm.
healthy["llama"] = lambda: _continues(
    "LlamaForCausalLM", "LlamaConfig", num_key_value_heads=1, max_position_embeddings=16, **_SMALL
)
# An encoder, and a decoder that gets the labels.
healthy["t5"] = lambda: _continues(
    "T5ForConditionalGeneration",
    "T5Config",
    **{"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
)
# Patches of small grey pictures.
healthy["vit"] = _vit
# The mean of the states of an encoder is classified, whose pooler is not used.
healthy["encoder_with_a_head"] = lambda: classes(
    Net(_mean_of_states, encoder=_model("BertModel", "BertConfig", vocab_size=20, **_SMALL), head=nn.Linear(32, 3)),
    data=texts(),
    train=partial(AdamW, lr=1e-3),
    eval_dataset=texts(64, seed=2),
)
