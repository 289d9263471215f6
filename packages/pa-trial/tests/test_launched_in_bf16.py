"""Trials after ``accelerate launch`` in bf16, which is for trainers: a trial has mixed precision of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from pa_distributed import gather_objects
from pa_trial import Batch, PyTorchTrialContext
from tests.support.models import weights_of
from tests.support.trials import TinyTrial, TrialT, fit

pytestmark = pytest.mark.runs_on("bf16", "two_ranks")


class NotesPrecision(TinyTrial):
    """Notes in which precision its model computes."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.seen: set[torch.dtype] = set()
        self.model.register_forward_hook(self._note)

    def _note(self, _model: nn.Module, _inputs: Any, output: Tensor) -> None:
        self.seen.add(output.dtype)


class OwnAutocast(NotesPrecision):
    """Computes its losses in bf16, as any loop of torch does."""

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        with torch.autocast("cpu", torch.bfloat16):
            return super().train_batch(batch, epoch_idx, batch_idx)


def launched_in_bf16(trial_class: type[TrialT], folder: Path) -> TrialT:
    """Train a trial after `accelerate launch --mixed_precision bf16`, which it warns of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        with pytest.warns(UserWarning, match=r"MIXED_PRECISION=bf16 of accelerate launch has no effect on a trial"):
            return fit(trial_class, folder, max_length=Batch(4))


def in_full_precision(folder: Path) -> NotesPrecision:
    """The same trial after `accelerate launch --mixed_precision no`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_MIXED_PRECISION", "no")
        return fit(NotesPrecision, folder, max_length=Batch(4))


def test_a_trial_launched_in_bf16_warns_and_trains_in_full_precision(shared_tmp_path: Path) -> None:
    """Its model computes in fp32, and it ends with the bits that it has when it was launched without."""
    bf16 = launched_in_bf16(NotesPrecision, shared_tmp_path / "bf16")
    assert bf16.seen == {torch.float32}
    assert torch.equal(weights_of(bf16.model), weights_of(in_full_precision(shared_tmp_path / "fp32").model))


def test_autocast_of_a_trial_computes_in_bf16_and_keeps_weights_in_fp32(shared_tmp_path: Path) -> None:
    """Gradients, weights and the validation are fp32; all processes have the same weights, near those without."""
    trial = launched_in_bf16(OwnAutocast, shared_tmp_path / "own")
    weights, plain = weights_of(trial.model), weights_of(in_full_precision(shared_tmp_path / "plain").model)
    assert trial.seen == {torch.bfloat16, torch.float32}
    assert weights.dtype is torch.float32
    assert not torch.equal(weights, plain)
    assert torch.allclose(weights, plain, atol=0.02)
    (first, *others) = gather_objects(weights.tolist())
    assert all(other == first for other in others)
