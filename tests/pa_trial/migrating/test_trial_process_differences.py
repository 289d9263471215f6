"""What docs/maintainers/differences-from-determined.md says of several processes: a test for each row."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

import pa_trial as pytorch
from pa_core import gather_objects
from tests.pa_trial.migrating.line_trial import LineTrial, fit

Batch = tuple[Tensor, Tensor]

two_ranks = pytest.mark.runs_on("two_ranks")


@two_ranks
def test_processes(shared_tmp_path: Path) -> None:
    """Without a word about them, the two processes share the batches and end with the same weights."""
    trial = fit(shared_tmp_path, LineTrial, batches=4)
    seen, weights = zip(*gather_objects((trial.seen, trial.model.weight.item())), strict=True)
    assert seen == ([[0, 1], [4, 5]] * 2, [[2, 3], [6, 7]] * 2)
    assert weights[0] == weights[1]


@two_ranks
def test_no_wrapper(shared_tmp_path: Path) -> None:
    """The module is of its own class, and its state has its own names."""

    class Trial(LineTrial):
        @override
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            model = nn.Linear(1, 1)
            assert context.wrap_model(model) is model
            assert list(model.state_dict()) == ["weight", "bias"]

    fit(shared_tmp_path, Trial, batches=1)


@two_ranks
def test_stop(shared_tmp_path: Path) -> None:
    """What one process asks for in its second batch, both do when its workload ends."""

    class Trial(LineTrial):
        @override
        def train_batch(self, batch: Batch, epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            if self.context.distributed.get_rank() == 1 and batch_idx == 1:
                self.context.set_stop_requested(True)
            return super().train_batch(batch, epoch_idx, batch_idx)

    trial = fit(shared_tmp_path, Trial, batches=100, reporting_period=pytorch.Batch(3))
    assert gather_objects(len(trial.seen)) == [3, 3]


@two_ranks
def test_order(shared_tmp_path: Path) -> None:
    """Processes that were seeded differently go through one permutation, in shares that do not overlap."""

    class Shuffled(LineTrial):
        shuffle = True

    torch.manual_seed(int(os.environ["RANK"]))
    trial = fit(shared_tmp_path, Shuffled, batches=2, seed=None)
    samples = [number for seen in gather_objects(trial.seen) for batch in seen for number in batch]
    assert sorted(samples) == list(range(8))


@two_ranks
def test_backward_passes(shared_tmp_path: Path) -> None:
    """Two passes, each with half of the loss, train as one pass does."""

    class Twice(LineTrial):
        @override
        def train_batch(self, batch: Batch, epoch_idx: int, batch_idx: int) -> Any:
            numbers, targets = batch
            for _ in range(2):
                self.context.backward(nn.functional.mse_loss(self.model(numbers), targets) / 2)
            self.context.step_optimizer(self.optimizer)
            return {}

    once, twice = (
        fit(shared_tmp_path / trial_class.__name__, trial_class, batches=4) for trial_class in (LineTrial, Twice)
    )
    torch.testing.assert_close(twice.model.state_dict(), once.model.state_dict())


@two_ranks
def test_ports() -> None:
    """Two contexts at once, as two jobs on one machine have: each hears its own."""
    contexts = [pytorch.DistributedContext.from_torch_distributed() for _ in range(2)]
    rank = contexts[0].get_rank()
    assert [context.allgather((rank, number)) for number, context in enumerate(contexts)] == [
        [(0, 0), (1, 0)],
        [(0, 1), (1, 1)],
    ]
    for context in contexts:
        context.close()
