"""Scripts that were written for accelerate and for Lightning, ported with as few changes as possible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pa_core.distributed import num_processes
from tests.cells import forget_accelerate_state
from tests.pa_compat.script_runs import names_of

everywhere = pytest.mark.runs_on("one_process", "two_ranks", "bf16")


@everywhere
@pytest.mark.filterwarnings("ignore:A custom loader or sampler:UserWarning")  # as the script does it
@pytest.mark.parametrize("trainer_class", ["TrainerWithAccuracy", "TrainerWithLoadersOfItsOwn"])
def test_a_loop_of_accelerate(trainer_class: str) -> None:
    """Weights and gathered accuracies are those of the loop, with the loaders of the trainer or those of the script."""
    script = names_of("ported_from_accelerate.py")
    batch_size = 16 // num_processes()
    expected_accuracies, expected_number, expected = script["with_accelerate"](batch_size)
    forget_accelerate_state()

    accuracies, number, weights = script["with_trainer"](batch_size, script[trainer_class])

    assert number == expected_number == 101
    assert accuracies == pytest.approx(expected_accuracies, abs=0.011)  # one sample may be a draw in bf16
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-4)


@everywhere
def test_a_module_of_lightning(shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with steps of its own learns, and is the same on all processes."""
    monkeypatch.chdir(shared_tmp_path)

    recorded: dict[str, Any] = names_of("ported_from_lightning.py")["main"]()

    assert recorded["train_loss_epoch"][-1] < recorded["train_loss_epoch"][0] * 0.8
    assert recorded["eval_loss_epoch"][-1] < 0.08
    assert recorded["embeddings"] == (8, 3)
    assert torch.equal(
        recorded["weights_of_processes"], recorded["weights_of_processes"][:1].expand(num_processes(), -1)
    )
    assert (shared_tmp_path / "autoencoder.pt").exists()
