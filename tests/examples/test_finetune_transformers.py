"""The example with a model of transformers saves what it has trained, and says how good it is for each token."""

from __future__ import annotations

import re
import runpy
from typing import Any

import pytest
import torch

from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import EXAMPLES
from tests.support.beside_torchvision import make_torchvision_importable


def test_the_saved_model_has_the_printed_loss(shared_launch: SharedLaunches) -> None:
    """Trained on two ranks, it is loaded by transformers alone; its mean over all tokens is what was printed."""
    launched = shared_launch("finetune_transformers", "torchrun with two ranks")

    assert launched.status == 0
    trained, loaded = map(float, re.findall(r"(\d\.\d{3})", launched.output.splitlines()[-1]))
    make_torchvision_importable()
    example: dict[str, Any] = runpy.run_path(str(EXAMPLES / "finetune_transformers.py"))
    model = (
        example["GPT2LMHeadModel"]
        .from_pretrained(launched.folder / "outputs" / "finetune_transformers" / "model")
        .eval()
    )
    loss = num_tokens = 0.0
    for paragraph in example["load_data"]()[1]:
        with torch.no_grad():
            logits = model(paragraph[None]).logits[0, :-1]
        loss += torch.nn.functional.cross_entropy(logits, paragraph[1:], reduction="sum").item()
        num_tokens += len(paragraph) - 1
    assert [trained, loaded] == pytest.approx([loss / num_tokens] * 2, abs=0.001)
