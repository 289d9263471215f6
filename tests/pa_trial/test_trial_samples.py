"""Programs in the manner of the reference's code samples train as a loop by hand, on one process and on two."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader as TorchDataLoader
from typing_extensions import override

import pa_trial as pytorch
from pa_trial import LRScheduler, PyTorchTrialContext
from tests.pa_trial.plane import (
    HPARAMS,
    Listener,
    Plane,
    assert_same_weights,
    by_hand,
    fit,
    listening,
    samples,
    small_model,
)

pytestmark = pytest.mark.runs_on("one_process", "two_ranks")


def test_the_shortest_program_trains_as_a_loop_by_hand(folder: Path) -> None:
    """Two epochs, with indices that count over the whole training."""
    trial = fit(Plane, folder, pytorch.Epoch(2))

    assert trial.trained == [(index // 4, index) for index in range(8)]
    assert trial.evaluated == [0, 1, 2, 3]
    assert_same_weights(trial.model, by_hand(8))


def test_gradients_are_aggregated_over_batches(folder: Path) -> None:
    """Of two batches, their mean; an unfinished group is not stepped."""
    trial = fit(Plane, folder, pytorch.Batch(7), init={"aggregation_frequency": 2})

    assert_same_weights(trial.model, by_hand(7, aggregation=2))


def test_a_trial_may_return_the_loss_alone(folder: Path) -> None:
    """It is the metric "loss", whose mean over the batches is a float."""

    class LossAlone(Plane):
        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> Tensor:
            metrics = super().train_batch(batch, epoch_idx, batch_idx)
            assert isinstance(metrics, dict)
            loss: Tensor = metrics["loss"]
            return loss

    listener = Listener()
    fit(listening(LossAlone, listener), folder)

    (average,), (batches,) = listener.averages, listener.batch_metrics
    assert isinstance(average["loss"], float)
    assert average["batches"] == 4
    assert average["epochs"] == 1
    losses = [metrics["loss"] for metrics in batches]
    assert all(isinstance(loss, np.ndarray) and loss.ndim == 0 for loss in losses)
    assert average["loss"] == pytest.approx(np.mean(losses))


def test_callbacks_hear_everything_in_order(folder: Path) -> None:
    """Of an epoch that is validated after two batches and at its end."""
    listener = Listener()
    fit(listening(Plane, listener), folder, validation_period=pytorch.Batch(2), checkpoint_policy="all")

    validation = [("validation start",), ("validation epoch start",), ("validation epoch end", 4), ("validation end",)]
    assert listener.heard == [
        ("startup", 0, None),
        ("training start",),
        ("epoch start", 0),
        ("workload", 2),
        *validation,
        ("upload end",),
        ("epoch end", 0),
        ("workload", 2),
        *validation,
        ("upload end",),
        ("shutdown",),
    ]


def test_evaluate_full_dataset_sees_all_samples_on_the_chief(folder: Path) -> None:
    """The loader is torch's and is not shared out; without gradients, in evaluation mode."""

    class Full(pytorch.PyTorchTrial[list[Tensor]]):
        def __init__(self, context: PyTorchTrialContext) -> None:
            self.inner = Plane(context)
            self.seen: list[int] = []

        @override
        def build_training_data_loader(self) -> pytorch.DataLoader | TorchDataLoader[Any]:
            return self.inner.build_training_data_loader()

        @override
        def build_validation_data_loader(self) -> pytorch.DataLoader | TorchDataLoader[Any]:
            return self.inner.build_validation_data_loader()

        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            return self.inner.train_batch(batch, epoch_idx, batch_idx)

        @override
        def evaluate_full_dataset(self, data_loader: TorchDataLoader[Any]) -> pytorch.Metrics:
            assert isinstance(data_loader, TorchDataLoader)
            assert not torch.is_grad_enabled()
            assert not self.inner.model.training
            self.seen = [len(inputs) for inputs, _ in data_loader]
            return {"samples": sum(self.seen)}

        @override
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"listener": listener}

    listener = Listener()
    with pytorch.init(hparams=HPARAMS, checkpoint_dir=folder) as context:
        trial = Full(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(1), checkpoint_policy="none")
        is_chief = context.distributed.get_rank() == 0

    assert sum(trial.seen) == (16 if is_chief else 0)
    assert listener.validations[0]["samples"] == 16
    assert "validation epoch start" not in listener.names


def test_exactly_one_way_to_evaluate_is_overridden(folder: Path) -> None:
    """Both, or neither, is an error when `fit` starts."""

    class Both(Plane):
        @override
        def evaluate_full_dataset(self, data_loader: TorchDataLoader[Any]) -> pytorch.Metrics:
            return {}

    class Neither(Plane):
        evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    for trial_class in (Both, Neither):
        with pytest.raises(pytorch.InvalidExperimentException) as raised:
            fit(trial_class, folder)
        assert isinstance(raised.value, Exception)


def test_old_trials_leave_out_batch_idx_in_evaluate_batch(folder: Path) -> None:
    """Several of the reference's old examples do."""

    class Old(Plane):
        @override
        def evaluate_batch(self, batch: list[Tensor]) -> pytorch.Metrics:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            return {"validation_loss": self.loss(batch)}

    listener = Listener()
    fit(listening(Old, listener), folder)

    assert len(listener.validations) == 1


class TwoModels(Plane):
    """The reference's sample of a trial with two models, two optimizers, two schedulers and apex."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.a = self.context.wrap_model(small_model(0))
        self.b = self.context.wrap_model(small_model(1))
        self.opt1 = self.context.wrap_optimizer(Adam(self.a.parameters()))
        self.opt2 = self.context.wrap_optimizer(Adam(self.b.parameters()))
        (self.a, self.b), (self.opt1, self.opt2) = self.context.configure_apex_amp(
            models=[self.a, self.b],
            optimizers=[self.opt1, self.opt2],
            num_losses=2,
            enabled=False,
        )
        self.lrs1 = self.context.wrap_lr_scheduler(
            lr_scheduler=LambdaLR(self.opt1, lr_lambda=lambda epoch: 0.95**epoch),
            step_mode=LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )
        self.lrs2 = self.context.wrap_lr_scheduler(
            lr_scheduler=StepLR(self.opt2, step_size=1, gamma=0.5), step_mode=LRScheduler.StepMode.MANUAL_STEP
        )
        self.norms: list[float] = []

    @override
    def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
        inputs, targets = batch
        loss1 = nn.functional.mse_loss(self.a(inputs), targets)
        loss2 = nn.functional.l1_loss(self.b(inputs), targets)
        self.context.backward(loss1)
        self.context.backward(loss2)
        self.context.step_optimizer(self.opt1, clip_grads=lambda params: torch.nn.utils.clip_grad_norm_(params, 0.0001))
        self.context.step_optimizer(self.opt2)
        self.lrs2.step()
        return {"loss1": loss1, "loss2": loss2}

    @override
    def evaluate_batch(self, batch: list[Tensor], batch_idx: int) -> pytorch.Metrics:
        return {"error": (self.a(batch[0]) - self.b(batch[0])).abs().mean()}


def test_the_sample_with_two_models_trains_as_by_hand(folder: Path) -> None:
    """Apex that is not enabled passes through; one gradient is clipped; each schedule has its own pace."""
    trial = fit(TwoModels, folder, pytorch.Epoch(2))
    assert isinstance(trial, TwoModels)

    a, b = small_model(0), small_model(1)
    opt1, opt2 = Adam(a.parameters()), Adam(b.parameters())
    inputs, targets = samples().tensors
    for index in range(8):
        opt1.param_groups[0]["lr"] = 0.001 * 0.95 ** (index // 4)
        opt2.param_groups[0]["lr"] = 0.001 * 0.5**index
        chosen = slice(4 * (index % 4), 4 * (index % 4) + 4)
        torch.autograd.backward(nn.functional.mse_loss(a(inputs[chosen]), targets[chosen]))
        torch.autograd.backward(nn.functional.l1_loss(b(inputs[chosen]), targets[chosen]))
        nn.utils.clip_grad_norm_(a.parameters(), 0.0001)
        for optimizer in (opt1, opt2):
            optimizer.step()
            optimizer.zero_grad()
    assert_same_weights(trial.a, a)
    assert_same_weights(trial.b, b)
    assert trial.opt1.param_groups[0]["lr"] == pytest.approx(0.001 * 0.95**2)
    assert trial.opt2.param_groups[0]["lr"] == pytest.approx(0.001 * 0.5**8)


def test_context_lists_what_was_wrapped(folder: Path) -> None:
    """In order of wrapping; the schedulers as wrappers, the optimizers themselves."""
    with pytorch.init(hparams=HPARAMS, checkpoint_dir=folder) as context:
        trial = TwoModels(context)

        assert context.models == [trial.a, trial.b]
        assert context.optimizers == [trial.opt1, trial.opt2]
        assert isinstance(trial.lrs1, LambdaLR)
        assert [type(scheduler) for scheduler in context.lr_schedulers] == [LRScheduler, LRScheduler]


def test_apex_names_what_to_use_instead(folder: Path) -> None:
    """Unless it is not enabled."""
    with pytorch.init(hparams=HPARAMS, checkpoint_dir=folder) as context:
        trial = Plane(context)
        assert context.configure_apex_amp(trial.model, trial.optimizer, enabled=False) == (trial.model, trial.optimizer)
        with pytest.raises(pytorch.InvalidExperimentException, match="use_amp"):
            context.configure_apex_amp(trial.model, trial.optimizer)


def test_two_losses_of_one_graph(folder: Path) -> None:
    """`retain_graph` keeps the graph for the second; the gradients add up, over all processes."""

    class Twice(Plane):
        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            loss = self.loss(batch)
            self.context.backward(0.25 * loss, retain_graph=True)
            self.context.backward(0.75 * loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss1": 0.25 * loss, "loss2": 0.75 * loss}

    assert_same_weights(fit(Twice, folder).model, by_hand(4))


def test_several_backward_passes_as_the_sample_asks_for_them(folder: Path) -> None:
    """`backward_passes_per_step` belongs to `wrap_optimizer`."""

    class Passes(Plane):
        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            self.optimizer = context.wrap_optimizer(
                SGD(self.model.parameters(), lr=0.05), backward_passes_per_step=2, average_aggregated_gradients=True
            )

        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            inputs, targets = batch
            self.context.backward(0.5 * nn.functional.mse_loss(self.model(inputs), targets))
            self.context.backward(0.5 * nn.functional.mse_loss(self.model(inputs), targets))
            self.context.step_optimizer(self.optimizer)
            return {}

    assert_same_weights(fit(Passes, folder).model, by_hand(4))


def test_gradients_of_gradients(folder: Path) -> None:
    """A penalty on them is trained through the graph of the first."""

    class Penalty(Plane):
        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            inputs = batch[0].requires_grad_()
            (slope,) = torch.autograd.grad(self.model(inputs).sum(), inputs, create_graph=True)
            penalty = slope.square().mean()
            self.context.backward(penalty)
            self.context.step_optimizer(self.optimizer)
            return {"penalty": penalty.detach()}

    model = small_model()
    optimizer = SGD(model.parameters(), lr=0.05)
    for inputs in torch.split(samples().tensors[0], 4):
        inputs.requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        optimizer.zero_grad()
        torch.autograd.backward(slope.square().mean())
        optimizer.step()
    assert_same_weights(fit(Penalty, folder).model, model)


def test_the_gradient_of_a_loss_that_is_no_scalar(folder: Path) -> None:
    """Is passed as `gradient`, as to `Tensor.backward`."""

    class Vector(Plane):
        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            inputs, targets = batch
            losses: Tensor = (self.model(inputs) - targets).square()
            self.context.backward(losses, gradient=torch.full_like(losses, 1 / len(losses)))
            self.context.step_optimizer(self.optimizer)
            return losses

    listener = Listener()
    trial = fit(listening(Vector, listener), folder)

    assert_same_weights(trial.model, by_hand(4))
    assert isinstance(listener.averages[0]["loss"], float)


@pytest.mark.parametrize(("average", "seen"), [(True, 1.0), (False, 2.0)])
def test_gradients_are_clipped_after_they_are_averaged(average: bool, seen: float, folder: Path) -> None:
    """The function is called with a list of the parameters; of unit gradients in two batches it sees their mean."""

    class Ones(Plane):
        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            self.seen: list[float] = []
            self.optimizer = context.wrap_optimizer(
                SGD(self.model.parameters(), lr=0.05), average_aggregated_gradients=average
            )

        def clip(self, parameters: Iterable[Tensor]) -> None:
            assert isinstance(parameters, list)
            self.seen += [float(parameter.grad.mean()) for parameter in parameters if parameter.grad is not None]

        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            loss = torch.stack([parameter.sum() for parameter in self.model.parameters()]).sum()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer, self.clip)
            return {}

    trial = fit(Ones, folder, init={"aggregation_frequency": 2})
    assert isinstance(trial, Ones)
    assert trial.seen == pytest.approx([seen] * 8)


def test_gradients_are_kept_where_zeroing_is_the_users(folder: Path) -> None:
    """With `auto_zero_grads=False` the user zeroes them; over several batches that is refused."""

    class ZeroesItself(Plane):
        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            loss = self.loss(batch)
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer, auto_zero_grads=False)
            assert all(parameter.grad is not None for parameter in self.model.parameters())
            self.optimizer.zero_grad()
            return {"loss": loss}

    assert_same_weights(fit(ZeroesItself, folder).model, by_hand(4))
    with pytest.raises(pytorch.InvalidExperimentException):
        fit(ZeroesItself, folder, init={"aggregation_frequency": 2})


def test_a_scaler_of_the_users(folder: Path) -> None:
    """It scales, unscales, clips, steps and updates, as in programs of plain PyTorch."""

    class Scaled(Plane):
        def __init__(self, context: PyTorchTrialContext) -> None:
            self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=1024.0))
            super().__init__(context)

        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            loss = self.loss(batch)
            self.context.backward(self.scaler.scale(loss))
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1000.0)
            self.context.step_optimizer(self.optimizer, scaler=self.scaler)
            self.scaler.update()
            return {"loss": loss}

    assert_same_weights(fit(Scaled, folder).model, by_hand(4))


def test_amp_without_cuda_warns_and_trains(folder: Path) -> None:
    """`use_amp` of the experimental context handles everything by itself."""

    class Amp(Plane):
        def __init__(self, context: PyTorchTrialContext) -> None:
            context.experimental.use_amp()
            super().__init__(context)

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trial = fit(Amp, folder)
    assert caught
    assert len(trial.trained) == 4


def test_a_generator_and_a_discriminator(folder: Path) -> None:
    """As the reference's example: each is frozen while the other learns."""

    class Gan(Plane):
        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            self.generator = context.wrap_model(nn.Sequential(nn.Linear(1, 2)))
            self.optimizer_g = context.wrap_optimizer(Adam(self.generator.parameters(), lr=0.01))

        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            real, targets = batch
            self.generator.requires_grad_(True)
            self.model.requires_grad_(False)
            generated = self.generator(targets)
            g_loss = self.model(generated).mean()
            self.context.backward(g_loss)
            self.context.step_optimizer(self.optimizer_g)

            self.generator.requires_grad_(False)
            self.model.requires_grad_(True)
            d_loss = self.model(real).mean() - self.model(generated.detach()).mean()
            self.context.backward(d_loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": d_loss, "g_loss": g_loss, "d_loss": d_loss}

    torch.manual_seed(3)
    trial = fit(Gan, folder, pytorch.Epoch(2))
    everything = nn.ModuleList(trial.context.models)
    assert all(torch.isfinite(parameter).all() for parameter in everything.parameters())
    if dist.is_initialized():
        weights = torch.cat([parameter.detach().flatten() for parameter in everything.parameters()])
        expected = weights.clone()
        dist.broadcast(expected, 0)
        assert torch.equal(weights, expected)


StepMode = LRScheduler.StepMode


@pytest.mark.parametrize(
    ("mode", "aggregation", "frequency", "stepped_after"),
    [
        (StepMode.STEP_EVERY_BATCH, 1, 1, [*range(12)]),
        (StepMode.STEP_EVERY_BATCH, 1, 3, [2, 5, 8, 11]),
        (StepMode.STEP_EVERY_BATCH, 2, 1, [1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11]),
        (StepMode.STEP_EVERY_BATCH, 3, 2, [2, 5, 5, 8, 11, 11]),
        (StepMode.STEP_EVERY_BATCH, 2, 3, [3, 5, 9, 11]),
        (StepMode.STEP_EVERY_OPTIMIZER_STEP, 1, 2, [1, 3, 5, 7, 9, 11]),
        (StepMode.STEP_EVERY_OPTIMIZER_STEP, 2, 1, [1, 3, 5, 7, 9, 11]),
        (StepMode.STEP_EVERY_OPTIMIZER_STEP, 2, 2, [3, 7, 11]),
        (StepMode.STEP_EVERY_OPTIMIZER_STEP, 3, 2, [5, 11]),
        (StepMode.STEP_EVERY_OPTIMIZER_STEP, 3, 3, [8]),
        (StepMode.STEP_EVERY_EPOCH, 1, 1, [3, 7, 11]),
        (StepMode.STEP_EVERY_EPOCH, 2, 2, [7]),
        (StepMode.STEP_EVERY_EPOCH, 3, 1, [2, 5, 11]),
        (StepMode.MANUAL_STEP, 1, 1, []),
    ],
)
def test_schedules_step_as_their_mode_says(
    mode: LRScheduler.StepMode, aggregation: int, frequency: int, stepped_after: list[int], folder: Path
) -> None:
    """The number of steps before each of twelve batches."""

    class Scheduled(Plane):
        def __init__(self, context: PyTorchTrialContext) -> None:
            super().__init__(context)
            self.steps_before: list[int] = []
            self.scheduler = context.wrap_lr_scheduler(
                LambdaLR(self.optimizer, lambda step: 1 / (1 + step)), mode, frequency=frequency
            )

        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            self.steps_before.append(self.scheduler.last_epoch)
            return super().train_batch(batch, epoch_idx, batch_idx)

    trial = fit(Scheduled, folder, pytorch.Batch(12), init={"aggregation_frequency": aggregation})
    assert isinstance(trial, Scheduled)
    steps = [*trial.steps_before, trial.scheduler.last_epoch]
    assert steps == [sum(step < index for step in stepped_after) for index in range(13)]


def test_a_plateau_is_stepped_by_hand(folder: Path) -> None:
    """Nobody else knows what to pass; the other modes are refused."""
    with pytorch.init(hparams=HPARAMS, checkpoint_dir=folder) as context:
        trial = Plane(context)
        plateau: Any = ReduceLROnPlateau(trial.optimizer)
        with pytest.raises(pytorch.InvalidExperimentException):
            context.wrap_lr_scheduler(plateau, StepMode.STEP_EVERY_EPOCH)
        assert context.wrap_lr_scheduler(plateau, step_mode=StepMode.MANUAL_STEP) is plateau
        with pytest.raises(TypeError):
            context.wrap_lr_scheduler(StepLR(trial.optimizer, 1), 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
