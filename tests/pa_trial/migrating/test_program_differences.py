"""What docs/maintainers/differences-from-determined.md says of programs and their context: a test for each row."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

import pa_trial as pytorch
from tests.pa_trial.migrating.line_trial import LineTrial, checkpoints_in, fit

Batch = tuple[Tensor, Tensor]


def test_seed() -> None:
    """The same seed gives the same numbers, and is told; without one, no generator is touched."""
    drawn: list[tuple[float, float, float]] = []
    for _ in range(2):
        with pytorch.init(seed=7) as context:
            assert context.get_trial_seed() == 7
            drawn.append((random.random(), float(np.random.rand()), torch.rand(()).item()))
    assert drawn[0] == drawn[1]
    before = torch.get_rng_state()
    with pytorch.init() as context:
        assert torch.equal(torch.get_rng_state(), before)
        with pytest.raises(pytorch.InternalException):
            context.get_trial_seed()


def test_ids() -> None:
    """Code that puts them into file names works."""
    with pytorch.init() as context:
        assert (context.get_experiment_id(), context.get_trial_id()) == (0, 0)


def test_errors() -> None:
    """An optimizer that cannot be is caught as any other error."""
    with pytorch.init() as context:
        optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
        with pytest.raises(Exception, match="backward_passes_per_step") as caught:
            context.wrap_optimizer(optimizer, backward_passes_per_step=0)
    assert isinstance(caught.value, pytorch.InvalidExperimentException)
    assert isinstance(caught.value, Exception)


def test_tensorboard(tmp_path: Path) -> None:
    """Metrics, and what a trial writes itself, are where it was told."""
    pytest.importorskip("tensorboard")
    written = tmp_path / "events"

    class Trial(LineTrial):
        @override
        def train_batch(self, batch: Batch, epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            assert self.context.get_tensorboard_path() == written
            self.context.get_tensorboard_writer().add_scalar("mine", 1.0, batch_idx)
            return super().train_batch(batch, epoch_idx, batch_idx)

    fit(tmp_path, Trial, tensorboard_path=written)
    assert [path for path in written.rglob("events.out.tfevents*") if path.stat().st_size] != []


def test_cluster_info(tmp_path: Path) -> None:
    """There is no cluster; the newest checkpoint is known without it."""
    assert pytorch.get_cluster_info() is None
    with pytorch.init(checkpoint_dir=tmp_path) as context:
        assert context.get_latest_checkpoint() is None
    fit(tmp_path, LineTrial, batches=2)
    with pytorch.init(checkpoint_dir=tmp_path) as context:
        found = context.get_latest_checkpoint()
        assert found is not None
        assert checkpoints_in(tmp_path) == [tmp_path / found]


def test_scope(tmp_path: Path) -> None:
    """Training after the block, or asking the context, is an error that names the block."""
    with pytorch.init(checkpoint_dir=tmp_path) as context:
        trainer = pytorch.Trainer(LineTrial(context), context)
    with pytest.raises(pytorch.InternalException, match="with"):
        trainer.fit(max_length=pytorch.Batch(1))


def test_apex() -> None:
    """A program that can switch it off runs; one that needs it is told what to use."""
    with pytorch.init() as context:
        model = context.wrap_model(nn.Linear(1, 1))
        optimizer = context.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        assert context.configure_apex_amp(model, optimizer, enabled=False) == (model, optimizer)
        with pytest.raises(pytorch.InvalidExperimentException, match="use_amp"):
            context.configure_apex_amp(model, optimizer)


def test_autocast() -> None:
    """The model is the one that was made, and the context has no attribute of its name."""
    with pytorch.init() as context:
        with pytest.warns(UserWarning, match=r"CUDA|GPU|scaler"):
            context.experimental.use_amp()
        model = nn.Linear(1, 1)
        assert context.wrap_model(model) is model
        assert not hasattr(context, "model")


def test_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a trace of the batches, and no folder of that name."""

    class Trial(LineTrial):
        @override
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
            context.set_profiler(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule)

    monkeypatch.chdir(tmp_path)
    fit(tmp_path / "checkpoints", Trial)
    assert not Path("None").exists()
    assert [path.parent.name for path in tmp_path.rglob("*.pt.trace.json")] == ["runs"]


def test_logger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever configures that logger sees the metrics."""
    caplog.set_level(logging.INFO, logger="pa_trial")
    fit(tmp_path, LineTrial)
    lines = [record.getMessage() for record in caplog.records if record.name == "pa_trial"]
    assert any("'loss'" in line for line in lines)
    assert any("'error'" in line for line in lines)
