"""Programs in the manner of the reference's code samples train as a loop by hand, on one process and on two.

With a global batch of four of sixteen samples, an epoch has four batches of each process, on one process and on two;
and what is trained is the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR, StepLR
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset
from typing_extensions import override

import pa_trial as pytorch
from pa_trial import LRScheduler, PyTorchTrialContext

pytestmark = pytest.mark.runs_on("one_process", "two_ranks")


def samples() -> TensorDataset:
    """Sixteen points of a plane."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(16, 2, generator=generator)
    return TensorDataset(inputs, inputs @ torch.tensor([[2.0], [-1.0]]) + 1)


def small_model(seed: int = 0) -> nn.Module:
    """The same network on each process."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


class Plane(pytorch.PyTorchTrial[list[Tensor]]):
    """Fits the plane, and keeps what the methods are called with."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(small_model())
        self.optimizer: torch.optim.Optimizer = context.wrap_optimizer(
            SGD(self.model.parameters(), lr=context.get_hparam("lr"))
        )
        self.trained: list[tuple[int, int]] = []
        self.evaluated: list[int] = []

    def loader(self, dataset: Any, **options: Any) -> pytorch.DataLoader:
        """A loader of the batches of a process."""
        return pytorch.DataLoader(dataset, batch_size=self.context.get_per_slot_batch_size(), **options)

    @override
    def build_training_data_loader(self) -> pytorch.DataLoader | TorchDataLoader[Any]:
        return self.loader(samples())

    @override
    def build_validation_data_loader(self) -> pytorch.DataLoader | TorchDataLoader[Any]:
        return self.loader(samples())

    def loss(self, batch: Sequence[Tensor]) -> Tensor:
        """The mean squared error of a batch."""
        inputs, targets = batch
        return nn.functional.mse_loss(self.model(inputs), targets)

    def differentiate(self, batch: list[Tensor]) -> None:
        """Compute the gradients of a batch."""
        self.context.backward(self.loss(batch))

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
        self.trained.append((epoch_idx, batch_idx))
        self.differentiate(batch)
        self.context.step_optimizer(self.optimizer)
        return {}

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> pytorch.Metrics:
        self.evaluated.append(batch_idx)
        return {"validation_loss": self.loss(batch)}


def fit(
    make_trial: Callable[[PyTorchTrialContext], Plane],
    folder: Path,
    max_length: pytorch.TrainUnit | None = None,
    **of_init: Any,
) -> Plane:
    """Train, for an epoch by default."""
    hparams = {"global_batch_size": 4, "lr": 0.05}
    with pytorch.init(hparams=hparams, checkpoint_dir=folder, **of_init) as context:
        trial = make_trial(context)
        pytorch.Trainer(trial, context).fit(max_length=max_length or pytorch.Epoch(1), checkpoint_policy="none")
    return trial


def by_hand(num_batches: int) -> nn.Module:
    """The network after so many global batches of a loop by hand."""
    model = small_model()
    optimizer = SGD(model.parameters(), lr=0.05)
    for inputs, targets in ([*TorchDataLoader(samples(), batch_size=4)] * 2)[:num_batches]:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return model


def assert_same_weights(model: nn.Module, expected: nn.Module) -> None:
    """Up to the order in which gradients are added."""
    torch.testing.assert_close(model.state_dict(), expected.state_dict())


def test_the_shortest_program_trains_as_a_loop_by_hand(shared_tmp_path: Path) -> None:
    """Two epochs, with indices that count over the whole training."""
    trial = fit(Plane, shared_tmp_path, pytorch.Epoch(2))

    assert trial.trained == [(index // 4, index) for index in range(8)]
    assert trial.evaluated == [0, 1, 2, 3]
    assert_same_weights(trial.model, by_hand(8))


class SeveralPasses(Plane):
    """`backward_passes_per_step` belongs to `wrap_optimizer`."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.optimizer = context.wrap_optimizer(
            SGD(self.model.parameters(), lr=0.05), backward_passes_per_step=2, average_aggregated_gradients=True
        )

    @override
    def differentiate(self, batch: list[Tensor]) -> None:
        for _ in range(2):
            self.context.backward(0.5 * self.loss(batch))


class MovesItself(Plane):
    """`context.to_device` moves what it is given, and turns arrays into tensors."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        context.experimental.disable_auto_to_device()

    @override
    def build_training_data_loader(self) -> pytorch.DataLoader:
        return self.loader(samples(), collate_fn=stack)

    @override
    def differentiate(self, batch: Any) -> None:
        assert isinstance(batch[0], np.ndarray)
        super().differentiate(self.context.to_device(batch))


def stack(rows: list[tuple[Tensor, Tensor]]) -> Any:
    """Make an array of the inputs."""
    return np.stack([row[0].numpy() for row in rows]), torch.stack([row[1] for row in rows])


@pytest.mark.parametrize("trial_class", [SeveralPasses, MovesItself])
def test_other_ways_to_train_on_a_batch_train_the_same(trial_class: type[Plane], shared_tmp_path: Path) -> None:
    """The gradients add up, over all processes."""
    assert_same_weights(fit(trial_class, shared_tmp_path).model, by_hand(4))


class TwoModels(Plane):
    """The reference's sample of a trial with two models, two optimizers, two schedulers and apex."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.a = self.context.wrap_model(small_model(0))
        self.b = self.context.wrap_model(small_model(1))
        self.opt1 = self.context.wrap_optimizer(Adam(self.a.parameters()))
        self.opt2 = self.context.wrap_optimizer(Adam(self.b.parameters()))
        (self.a, self.b), (self.opt1, self.opt2) = self.context.configure_apex_amp(
            models=[self.a, self.b], optimizers=[self.opt1, self.opt2], num_losses=2, enabled=False
        )
        self.context.wrap_lr_scheduler(
            lr_scheduler=LambdaLR(self.opt1, lr_lambda=lambda epoch: 0.95**epoch),
            step_mode=LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )
        self.lrs2 = self.context.wrap_lr_scheduler(
            lr_scheduler=StepLR(self.opt2, step_size=1, gamma=0.5), step_mode=LRScheduler.StepMode.MANUAL_STEP
        )

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
        loss1, loss2 = losses_of(self.a, self.b, *batch)
        self.context.backward(loss1)
        self.context.backward(loss2)
        self.context.step_optimizer(self.opt1, clip_grads=clip)
        self.context.step_optimizer(self.opt2)
        self.lrs2.step()
        return {"loss1": loss1, "loss2": loss2}

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> pytorch.Metrics:
        return {"error": (self.a(batch[0]) - self.b(batch[0])).abs().mean()}


def losses_of(a: nn.Module, b: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The losses of two models."""
    return nn.functional.mse_loss(a(inputs), targets), nn.functional.l1_loss(b(inputs), targets)


def clip(parameters: Iterable[Tensor]) -> None:
    """Make gradients small."""
    torch.nn.utils.clip_grad_norm_(parameters, 0.0001)


def test_the_sample_with_two_models_trains_as_by_hand(shared_tmp_path: Path) -> None:
    """Apex that is not enabled passes through; one gradient is clipped; each schedule has its own pace."""
    trial = fit(TwoModels, shared_tmp_path, pytorch.Epoch(2))
    assert isinstance(trial, TwoModels)

    a, b = small_model(0), small_model(1)
    opt1, opt2 = Adam(a.parameters()), Adam(b.parameters())
    for index, (inputs, targets) in enumerate([*TorchDataLoader(samples(), batch_size=4)] * 2):
        opt1.param_groups[0]["lr"] = 0.001 * 0.95 ** (index // 4)
        opt2.param_groups[0]["lr"] = 0.001 * 0.5**index
        for optimizer, loss in zip((opt1, opt2), losses_of(a, b, inputs, targets), strict=True):
            torch.autograd.backward(loss)
            if optimizer is opt1:
                clip(a.parameters())
            optimizer.step()
            optimizer.zero_grad()
    assert_same_weights(trial.a, a)
    assert_same_weights(trial.b, b)
    assert trial.opt1.param_groups[0]["lr"] == pytest.approx(0.001 * 0.95**2)
    assert trial.opt2.param_groups[0]["lr"] == pytest.approx(0.001 * 0.5**8)


class Sentence:
    """A batch of a kind of its own."""

    def __init__(self, words: list[str]) -> None:
        self.words = words


def test_batches_of_a_kind_of_their_own(shared_tmp_path: Path) -> None:
    """A `collate_fn` makes them, `get_batch_length` counts them; they are passed on as they are, with one warning."""
    words: Any = ["word" * number for number in range(1, 17)]

    class Sentences(Plane):
        @override
        def build_training_data_loader(self) -> pytorch.DataLoader:
            return self.loader(words, collate_fn=Sentence)

        @override
        def differentiate(self, batch: Any) -> None:
            assert isinstance(batch, Sentence)
            self.context.backward(self.model(torch.tensor([[float(len(word)), 1.0] for word in batch.words])).mean())

        @override
        def get_batch_length(self, batch: Any) -> int:
            return len(batch.words) if isinstance(batch, Sentence) else super().get_batch_length(batch)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(Sentences, shared_tmp_path)
    assert len([one for one in caught if "Sentence" in str(one.message)]) == 1
