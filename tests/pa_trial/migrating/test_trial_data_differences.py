"""What docs/maintainers/differences-from-determined.md says of data, schedules and metrics: a test for each row."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DistributedSampler, Sampler
from typing_extensions import override

import pa_trial as pytorch
from pa_trial.trial_data import TrialData
from tests.pa_trial.migrating.line_trial import LineTrial, Numbers, fit

Batch = tuple[Tensor, Tensor]


class Augmented(Numbers):
    """Numbers that random ones are added to."""

    @override
    def __getitem__(self, index: int) -> Batch:
        number, target = super().__getitem__(index)
        return number + torch.rand(1), target


def test_draws(tmp_path: Path) -> None:
    """No worker and two of them draw the same numbers for a sample."""

    def trial_with(workers: int) -> type[LineTrial]:
        class Trial(LineTrial):
            @override
            def build_training_data_loader(self) -> pytorch.DataLoader:
                return pytorch.DataLoader(Augmented(), batch_size=2, num_workers=workers)

        return Trial

    alone, by_workers = (fit(tmp_path / str(workers), trial_with(workers)) for workers in (0, 2))
    assert alone.seen == by_workers.seen
    assert alone.seen[0] != [0, 1]


def test_validation_draws(tmp_path: Path) -> None:
    """A training that is validated after each batch draws what one without a validation draws, and validates alike."""
    validated: list[list[float]] = []

    class Trial(LineTrial):
        @override
        def build_training_data_loader(self) -> pytorch.DataLoader:
            return pytorch.DataLoader(Augmented(), batch_size=2, shuffle=True)

        @override
        def build_validation_data_loader(self) -> pytorch.DataLoader:
            return pytorch.DataLoader(Augmented(), batch_size=8)

        @override
        def evaluate_batch(self, batch: Batch, batch_idx: int) -> pytorch.Metrics:
            validated.append(batch[0].flatten().tolist())
            return {}

    often = fit(tmp_path / "often", Trial, validation_period=pytorch.Batch(1))
    assert len(validated) == 4
    assert all(drawn == validated[0] for drawn in validated)
    assert fit(tmp_path / "once", Trial).seen == often.seen


def test_own_sampler(tmp_path: Path) -> None:
    """A training of one seed has one order, whatever else was drawn before; each epoch is announced."""
    announced: list[int] = []

    class Shuffled(Sampler[int]):
        def __len__(self) -> int:
            return 8

        @override
        def __iter__(self) -> Iterator[int]:
            return iter(random.sample(range(8), 8))

        def set_epoch(self, epoch: int) -> None:
            announced.append(epoch)

    class Trial(LineTrial):
        @override
        def build_training_data_loader(self) -> pytorch.DataLoader:
            random.seed(len(announced))
            return pytorch.DataLoader(Numbers(), batch_size=2, sampler=Shuffled())

    first, second = (fit(tmp_path / name, Trial, batches=8) for name in ("first", "second"))
    assert announced == [0, 1, 0, 1]
    assert first.seen == second.seen
    assert first.seen[:4] != first.seen[4:]


def test_shared_twice() -> None:
    """It is refused where there is more than one process, with the advice to leave it out."""

    class Loaders:
        def build_training_data_loader(self) -> pytorch.DataLoader:
            return pytorch.DataLoader(Numbers(), sampler=DistributedSampler(Numbers(), num_replicas=2, rank=0))

        def build_validation_data_loader(self) -> pytorch.DataLoader:
            return pytorch.DataLoader(Numbers())

    with pytest.raises(ValueError, match="Leave the sampler out"):
        TrialData.build(Loaders(), checks=True, rank=0, num_processes=2, seed=1, skip=0)


def test_prefetch() -> None:
    """A loader without workers needs no word about it; with one, it is torch's error."""
    pytorch.DataLoader(Numbers())
    with pytest.raises(ValueError, match="prefetch_factor"):
        pytorch.DataLoader(Numbers(), prefetch_factor=2)


def test_optimizer_steps(tmp_path: Path) -> None:
    """A step in every second batch, a change of the rate with every second step: after batches 3, 7 and 11."""
    changed: list[int] = []

    class Trial(LineTrial):
        @override
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            self.schedule = StepLR(self.optimizer, 1)
            mode = pytorch.LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP
            context.wrap_lr_scheduler(self.schedule, mode, frequency=2)

        @override
        def train_batch(self, batch: Batch, epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            if self.schedule.last_epoch > len(changed):
                changed.append(batch_idx - 1)
            return super().train_batch(batch, epoch_idx, batch_idx)

    fit(tmp_path, Trial, batches=13, aggregation_frequency=2)
    assert changed == [3, 7, 11]


def test_json(tmp_path: Path) -> None:
    """The error names the metric."""

    class Trial(LineTrial):
        @override
        def evaluate_batch(self, batch: Batch, batch_idx: int) -> pytorch.Metrics:
            return {"network": self.model}

        @override
        def evaluation_reducer(self) -> pytorch.Reducer:
            return pytorch.Reducer.MAX

    with pytest.raises(TypeError, match="network"):
        fit(tmp_path, Trial)


def test_not_a_dict(tmp_path: Path) -> None:
    """The error names the method; it is the one that Determined raised, and the one that it meant to raise."""

    class Trial(LineTrial):
        @override
        def evaluate_batch(self, batch: Batch, batch_idx: int) -> Any:
            return 0.5

    with pytest.raises(TypeError, match="evaluate_batch") as raised:
        fit(tmp_path, Trial)
    assert isinstance(raised.value, AttributeError)


def test_weights(tmp_path: Path) -> None:
    """The mean of 0, 1, ..., 6 is 3; that of the batches (0, 1), (2, 3), (4, 5) and (6) is not."""
    means: list[float] = []

    class Listener(pytorch.PyTorchCallback):
        @override
        def on_validation_end(self, metrics: pytorch.Metrics) -> None:
            means.append(float(metrics["mean"]))

    class Trial(LineTrial):
        @override
        def evaluate_batch(self, batch: Batch, batch_idx: int) -> pytorch.Metrics:
            return {"mean": batch[0].mean()}

        @override
        def build_validation_data_loader(self) -> pytorch.DataLoader:
            return pytorch.DataLoader(Numbers(7), batch_size=2)

        @override
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"listener": Listener()}

    for weigh_by_records in (False, True):
        fit(tmp_path, Trial, weigh_by_records=weigh_by_records)
    assert means == pytest.approx([(0.5 + 2.5 + 4.5 + 6) / 4, 3])


def test_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that always calls it runs by itself too; without word of machines, there is one."""
    for create in (pytorch.DistributedContext.from_torch_distributed, pytorch.DistributedContext.from_deepspeed):
        with monkeypatch.context() as environment:
            distributed = create()
            assert (distributed.get_rank(), distributed.get_size()) == (0, 1)
            environment.setenv("RANK", "1")
            environment.setenv("WORLD_SIZE", "2")
            distributed = create()
            assert (distributed.get_rank(), distributed.get_local_rank(), distributed.get_num_agents()) == (1, 1, 1)
