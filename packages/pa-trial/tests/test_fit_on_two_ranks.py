"""Training on two processes: both do the same, and what differs between them is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from pa_distributed import RanksDifferError, gather_objects
from pa_trial import Batch, DataLoader, Epoch, PyTorchCallback, PyTorchTrialContext
from pa_trial.collectives import rank
from tests.support.trials import TinyTrial, fit, fit_and_fail, samples

pytestmark = pytest.mark.runs_on("two_ranks")


class Shuffled(TinyTrial):
    """Keeps its samples, which come in a random order."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.seen: list[float] = []

    @override
    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(samples(32), batch_size=4, shuffle=True)

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.seen += batch[1].flatten().tolist()
        return super().train_batch(batch, epoch_idx, batch_idx)


def test_ranks_that_were_seeded_apart_share_one_order(shared_tmp_path: Path) -> None:
    """They go through one permutation, in shares that do not overlap."""
    torch.manual_seed(rank())
    trial = fit(Shuffled, shared_tmp_path, settings={"seed": None}, max_length=Epoch(1))
    first, second = gather_objects(trial.seen)
    assert sorted(first + second) == sorted(samples(32).tensors[1].flatten().tolist())


class OtherRate(TinyTrial):
    """The learning rate of the second rank is another one."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.optimizer.param_groups[0]["lr"] = 0.1 * (1 + rank())


class OtherCallbacks(TinyTrial):
    """The second rank has a callback more."""

    @override
    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return super().build_callbacks() | ({"more": PyTorchCallback()} if rank() else {})


class OtherSamples(TinyTrial):
    """The second rank has more samples."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.num_samples = 16 + 4 * rank()


@pytest.mark.parametrize(
    ("trial_class", "text"),
    [
        (OtherRate, "lr: 0.1 on rank 0, 0.2 on rank 1"),
        (OtherCallbacks, "callback more"),
        (OtherSamples, "training loader"),
        (TinyTrial, r"max_length: .*2.* on rank 0, .*3.* on rank 1"),
    ],
)
def test_ranks_that_differ(trial_class: type[TinyTrial], text: str, shared_tmp_path: Path) -> None:
    """What the trials have, or are asked for, is refused on both before anything is trained, and named."""
    length = Batch(2 + rank()) if trial_class is TinyTrial else Batch(2)
    trial, _ = fit_and_fail(trial_class, shared_tmp_path, RanksDifferError, text, max_length=length)
    assert trial.trained == []
