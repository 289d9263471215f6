"""Trials after ``accelerate launch`` in bf16, which is for trainers: a trial has mixed precision of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from pa_core import gather_objects
from pa_trial import Batch, PyTorchTrialContext
from tests.support.models import weights_of
from tests.support.trials import TinyTrial, TrialT, fit

pytestmark = pytest.mark.runs_on("bf16", "two_ranks")
LAUNCHED_IN = "ACCELERATE_MIXED_PRECISION"


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


def launched_in_bf16(trial_class: type[TrialT], folder: Path, **asked: Any) -> TrialT:
    """Train a trial after `accelerate launch --mixed_precision bf16`, which it warns of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LAUNCHED_IN, "bf16")
        with pytest.warns(UserWarning, match=r"mixed_precision=bf16 of accelerate launch has no effect on a trial"):
            return fit(trial_class, folder, **asked)


def launched_in_fp32(trial_class: type[TrialT], folder: Path, **asked: Any) -> TrialT:
    """Train a trial after `accelerate launch --mixed_precision no`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LAUNCHED_IN, "no")
        return fit(trial_class, folder, **asked)


def test_a_trial_launched_in_bf16_warns_and_trains_in_full_precision(folder: Path) -> None:
    """Its model computes in fp32, and it ends with the bits that it has when it was launched without."""
    bf16 = launched_in_bf16(NotesPrecision, folder / "bf16", max_length=Batch(4))
    fp32 = launched_in_fp32(NotesPrecision, folder / "fp32", max_length=Batch(4))
    assert bf16.seen == {torch.float32}
    assert torch.equal(weights_of(bf16.model), weights_of(fp32.model))


def test_autocast_of_a_trial_computes_in_bf16_and_keeps_weights_in_fp32(folder: Path) -> None:
    """Gradients and weights are fp32, and all processes have the same weights, near those of full precision."""
    trial = launched_in_bf16(OwnAutocast, folder / "own", max_length=Batch(4))
    plain = launched_in_fp32(NotesPrecision, folder / "plain", max_length=Batch(4))
    weights = weights_of(trial.model)
    assert torch.bfloat16 in trial.seen
    assert [parameter.dtype for parameter in trial.model.parameters()] == [torch.float32] * 2
    assert not torch.equal(weights, weights_of(plain.model))
    assert torch.allclose(weights, weights_of(plain.model), atol=0.02)
    (first, *others) = gather_objects(weights.tolist())
    assert all(other == first for other in others)


def test_a_trial_with_autocast_is_resumed_with_the_same_bits(folder: Path) -> None:
    """Stopped after two batches and continued to four, it has the weights of one that went through."""
    whole = launched_in_bf16(OwnAutocast, folder / "whole", max_length=Batch(4))
    launched_in_bf16(OwnAutocast, folder / "parts", max_length=Batch(2), checkpoint_period=Batch(2))
    (checkpoint,) = (path.name for path in (folder / "parts").iterdir() if path.is_dir())
    resumed = launched_in_bf16(OwnAutocast, folder / "parts", max_length=Batch(4), latest_checkpoint=checkpoint)
    assert torch.equal(weights_of(resumed.model), weights_of(whole.model))


def test_the_evaluation_of_a_trial_launched_in_bf16_is_in_full_precision(folder: Path) -> None:
    """Only what the trial itself puts under autocast is; its validation is not."""
    trial = launched_in_bf16(OwnAutocast, folder, max_length=Batch(2), validation_period=Batch(2))
    assert trial.seen == {torch.bfloat16, torch.float32}
