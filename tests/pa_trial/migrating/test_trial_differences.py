"""What docs/maintainers/differences-from-determined.md says of trials and training: a test for each row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typing_extensions import override

import pa_trial as pytorch
from pa_core import ExplainedError
from tests.launching import Launch
from tests.pa_trial.migrating.line_trial import LineTrial, Numbers, checkpoints_in, fit, with_tests

Batch = tuple[Tensor, Tensor]


class PyTorchTrial(LineTrial):
    """A trial with the name of its base."""

    @override
    def evaluate_batch(self, batch: Batch, batch_idx: int) -> pytorch.Metrics:
        return {"samples": len(batch[0])}


def test_overriding(tmp_path: Path) -> None:
    """A class that has the name of its base overrides what it overrides."""
    assert PyTorchTrial.evaluate_batch.__qualname__ == pytorch.PyTorchTrial.evaluate_batch.__qualname__
    assert len(fit(tmp_path, PyTorchTrial).seen) == 4


def test_no_metrics(tmp_path: Path) -> None:
    """The error names the method, and is caught by whoever catches Determined's."""

    class Trial(LineTrial):
        @override
        def train_batch(self, batch: Batch, epoch_idx: int, batch_idx: int) -> Any:
            super().train_batch(batch, epoch_idx, batch_idx)

    with pytest.raises(AttributeError, match="train_batch returned no metrics"):
        fit(tmp_path, Trial)


def test_policy(tmp_path: Path) -> None:
    """A misspelt policy would silently save nothing."""
    with pytest.raises(ValueError, match='"best", "all" or "none"'):
        fit(tmp_path, LineTrial, checkpoint_policy="bset")


class GetsWorse(LineTrial):
    """A trial that is best after its first epoch."""

    @override
    def evaluate_batch(self, batch: Batch, batch_idx: int) -> pytorch.Metrics:
        return {"epoch": self.context.current_train_epoch()}


def test_best(tmp_path: Path) -> None:
    """With a metric, only what is better is saved, and the end; without one, all validations are."""
    options: dict[str, Any] = {"batches": 12, "validation_period": pytorch.Epoch(1), "checkpoint_policy": "best"}
    searcher = {"searcher": {"metric": "epoch", "smaller_is_better": True}}
    fit(tmp_path / "metric", GetsWorse, metric="epoch", **options)
    fit(tmp_path / "configured", GetsWorse, exp_conf=searcher, **options)
    with pytest.warns(UserWarning, match="metric"):
        fit(tmp_path / "none", GetsWorse, **options)
    assert [len(checkpoints_in(tmp_path / name)) for name in ("metric", "configured", "none")] == [2, 2, 3]


SIGTERM = """
import os, signal
from pathlib import Path
import pa_trial as pytorch
from tests.pa_trial.migrating.line_trial import LineTrial, fit

class Trial(LineTrial):
    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().train_batch(batch, epoch_idx, batch_idx)

print("trained", len(fit(Path("checkpoints"), Trial, batches=1000).seen))
"""


def test_sigterm(launch: Launch, tmp_path: Path) -> None:
    """The program ends in order, far from the end of its training, and leaves a checkpoint."""
    ran = launch(SIGTERM, env=with_tests())
    assert ran.status == 0
    assert "trained 2" in ran.output
    assert len(checkpoints_in(tmp_path)) == 1


def test_checkpoint_end(tmp_path: Path) -> None:
    """The old name still works, and the new one is told."""
    folders: list[str] = []

    class Callback(pytorch.PyTorchCallback):
        @override
        def on_checkpoint_end(self, checkpoint_dir: str) -> None:
            folders.append(checkpoint_dir)

    class Trial(LineTrial):
        @override
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"old": Callback()}

    with pytest.warns(DeprecationWarning, match="on_checkpoint_write_end"):
        fit(tmp_path, Trial)
    assert [Path(folder).parent for folder in folders] == [tmp_path]


def test_units() -> None:
    """A period can be read in a log."""
    assert [repr(pytorch.Batch(3)), repr(pytorch.Epoch([1, 2]))] == ["Batch(3)", "Epoch([1, 2])"]


def test_endless(tmp_path: Path) -> None:
    """A loader of torch with two batches serves for five; one with none is an error."""

    class Plain(LineTrial):
        length = 4

        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            context.experimental.disable_dataset_reproducibility_checks()
            super().__init__(context)

        @override
        def build_training_data_loader(self) -> torch.utils.data.DataLoader[Batch]:
            return torch.utils.data.DataLoader(Numbers(self.length), batch_size=2)

    class Empty(Plain):
        length = 0

    assert fit(tmp_path, Plain, batches=5).seen == [[0, 1], [2, 3], [0, 1], [2, 3], [0, 1]]
    with pytest.raises(ExplainedError):
        fit(tmp_path, Empty)
