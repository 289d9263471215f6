"""The types of trials: those of their batches, and of what their context wraps."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from typing_extensions import override

import pa_trial as pytorch
from tests.typing.vocabulary import Batch, Net, collate, make_data


class NetTrial(pytorch.PyTorchTrial[Batch]):
    """A trial that says what its batches are."""

    @override
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        context.experimental.disable_auto_to_device()
        self.net = context.wrap_model(Net())
        self.optimizer = context.wrap_optimizer(SGD(self.net.parameters(), lr=0.1))
        self.schedule = context.wrap_lr_scheduler(
            StepLR(self.optimizer, 1), pytorch.LRScheduler.StepMode.STEP_EVERY_EPOCH
        )
        self.mean = context.wrap_reducer(Mean(), name="mean", for_validation=False)
        self.largest = context.wrap_reducer(largest_of, name="largest", for_training=False)

    @override
    def train_batch(self, batch: Batch, epoch_idx: int, batch_idx: int) -> dict[str, Tensor]:
        loss = nn.functional.cross_entropy(self.net(batch.pixels), batch.labels)
        self.mean.update(loss.item())
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, clip_grads=clip)
        return {"loss": loss}

    @override
    def evaluate_batch(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        assert_type(batch.labels, Tensor)
        logits = self.net(batch.pixels)
        self.largest.update(float(logits.amax()))
        return {"loss": nn.functional.cross_entropy(logits, batch.labels)}

    @override
    def evaluation_reducer(self) -> dict[str, pytorch.Reducer]:
        return {"loss": pytorch.Reducer.AVG}

    @override
    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(make_data(), batch_size=2, shuffle=True, collate_fn=collate)

    @override
    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(make_data(), batch_size=2, collate_fn=collate)

    @override
    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"epochs": CountEpochs()}

    @override
    def get_batch_length(self, batch: Batch) -> int:
        return len(batch.labels)


class LossTrial(pytorch.PyTorchTrial):
    """A trial that says nothing of its batches, returns its loss alone, and validates on everything at once."""

    @override
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.net = context.wrap_model(Net())
        self.optimizer = context.wrap_optimizer(SGD(self.net.parameters(), lr=0.1))

    @override
    def train_batch(self, batch: pytorch.TorchData, epoch_idx: int, batch_idx: int) -> Tensor:
        assert isinstance(batch, list)
        pixels, labels = batch
        loss: Tensor = nn.functional.cross_entropy(self.net(pixels), labels)
        return loss

    @override
    def evaluate_full_dataset(self, data_loader: torch.utils.data.DataLoader[Any]) -> dict[str, Any]:
        return {"batches": len(data_loader)}

    @override
    def build_training_data_loader(self) -> torch.utils.data.DataLoader[tuple[Tensor, ...]]:
        return torch.utils.data.DataLoader(make_data())

    @override
    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(make_data())


class Mean(pytorch.MetricReducer):
    """The mean of numbers."""

    def __init__(self) -> None:
        self.reset()

    @override
    def reset(self) -> None:
        self.values: list[float] = []

    def update(self, value: float) -> None:
        """Take a value."""
        self.values.append(value)

    @override
    def per_slot_reduce(self) -> tuple[float, int]:
        return sum(self.values), len(self.values)

    @override
    def cross_slot_reduce(self, per_slot_metrics: list[tuple[float, int]]) -> float:
        return sum(total for total, _ in per_slot_metrics) / sum(count for _, count in per_slot_metrics)


class CountEpochs(pytorch.PyTorchCallback):
    """A callback with state."""

    def __init__(self) -> None:
        self.count = 0

    @override
    def on_training_epoch_end(self, epoch_idx: int) -> None:
        self.count += 1

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}


def largest_of(values: list[float]) -> float:
    """Reduce the values of all processes."""
    return max(values)


def clip(parameters: list[nn.Parameter]) -> None:
    """Clip the gradients of parameters."""
    nn.utils.clip_grad_norm_(parameters, 1.0)


def test_a_context_keeps_the_types_of_what_it_wraps(tmp_path: Path) -> None:
    """A model stays of its class, and so do an optimizer, a scheduler and a reducer."""
    with pytorch.init(hparams={"lr": 0.1}, checkpoint_dir=tmp_path, seed=1) as context:
        assert_type(context, pytorch.PyTorchTrialContext)
        trial = NetTrial(context)
        assert_type(trial.net, Net)
        assert_type(trial.optimizer, SGD)
        assert_type(trial.schedule, StepLR)
        assert_type(trial.mean, Mean)
        assert_type(context.distributed.gather(1), list[int] | None)
        assert_type(context.distributed.allgather("a"), list[str])
        assert_type(context.distributed.broadcast(0.5), float)
        assert trial.context is context


def test_a_trial_of_tensors_has_a_type_too() -> None:
    """A trial that says nothing of its batches is one of any batches."""
    assert issubclass(LossTrial, pytorch.PyTorchTrial)
    assert_type(pytorch.data_length([torch.ones(3)]), int)
