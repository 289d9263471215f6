"""Scripts of users of transformers: tiny models from a configuration, with its tokenizers, data sets and adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.pa_compat.script_runs import names_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers' own, about its own functions
everywhere = pytest.mark.runs_on("one_process", "two_ranks", "bf16")


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """What the script defines."""
    return names_of("language_models.py", Path(__file__).parent / "scripts")


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_loss_over_tokens_is_that_of_one_large_batch(
    script: dict[str, Any], num_ranks: int, checkpointing: bool
) -> None:
    """Batches with different numbers of tokens, accumulated and on several processes, train as one batch of all."""
    result = script["language_model_with_trainer"](num_ranks, checkpointing)

    expected = script["language_model_by_hand"]()
    # The weights are float64, but transformers computes losses of language models in float32.
    assert result["train"] == pytest.approx(expected["train"], rel=1e-6)
    assert result["eval"] == pytest.approx(expected["eval"], rel=1e-6)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(result["weights"][name], weight, rtol=1e-5, atol=1e-6)
    assert [len(text.split()) for text in result["generated"]] == [4, 4]


@everywhere
def test_adapters(script: dict[str, Any], shared_tmp_path: Path) -> None:
    """Of a model with adapters of peft's, only these and the classifier change, and they are saved by themselves."""
    before, after = script["train_adapters"](shared_tmp_path)

    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    trained = {name for name in after if "lora_" in name or "classifier.modules_to_save" in name}
    assert changed == trained
    assert (shared_tmp_path / "adapter_config.json").exists()
    saved = load_file(shared_tmp_path / "trained" / "model.safetensors")
    assert saved.keys() == trained
    assert all(torch.equal(saved[name], after[name]) for name in trained)
