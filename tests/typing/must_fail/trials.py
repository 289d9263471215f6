"""What must not pass a type checker around trials."""

# What is unknown because of an error is no error of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD
from typing_extensions import override

import pa_trial as pytorch
from pa_trial import samplers
from tests.typing.vocabulary import Batch, Net, make_data


class Trial(pytorch.PyTorchTrial[Batch]):
    """Overrides in ways that do not fit."""

    @override
    def train_batch(self, batch: int, epoch_idx: int, batch_idx: int) -> Tensor: ...  # type: ignore[override, empty-body]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_trial.PyTorchTrial[BatchT]: a batch of the declared type

    @override
    def evaluate_batch(self, batch: Batch, batch_idx: int, epoch: int) -> dict[str, Any]: ...  # type: ignore[override, empty-body]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_trial.PyTorchTrial.evaluate_batch: it is not called with an epoch

    @override
    def build_callbacks(self) -> list[pytorch.PyTorchCallback]: ...  # type: ignore[override, empty-body]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_trial.PyTorchTrial.build_callbacks: callbacks have names

    @override
    def build_training_data_loader(self) -> list[Tensor]: ...  # type: ignore[override, empty-body]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_trial.PyTorchTrial.build_training_data_loader: a loader

    @override
    def evaluation_reducer(self) -> str: ...  # type: ignore[override, empty-body]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_trial.PyTorchTrial.evaluation_reducer: a Reducer


class Callback(pytorch.PyTorchCallback):
    """Listens to what it is not told."""

    @override
    def on_training_epoch_start(self) -> None: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_trial.PyTorchCallback.on_training_epoch_start: it is called with the epoch

    @override
    def on_trial_startup(self, first_batch_idx: int) -> None: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # pa_trial.PyTorchCallback.on_trial_startup: and with the checkpoint

    @override
    def on_validation_ends(self, metrics: dict[str, Any]) -> None: ...  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]  # pa_trial.PyTorchCallback: no such event


pytorch.PyTorchTrial()  # type: ignore[abstract, call-arg]  # pyright: ignore[reportAbstractUsage, reportCallIssue]  # pa_trial.PyTorchTrial: it is abstract
pytorch.MetricReducer()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]  # pa_trial.MetricReducer: it is abstract

with pytorch.init(seed=1) as context:
    net = context.wrap_model(Net())
    optimizer = context.wrap_optimizer(SGD(net.parameters(), lr=0.1))
    context.wrap_model(Net)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]  # pa_trial.PyTorchTrialContext.wrap_model: a model, not its class
    context.wrap_optimizer(net)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]  # pa_trial.PyTorchTrialContext.wrap_optimizer: an optimizer


pytorch.load_trial_from_checkpoint_path("checkpoint", trial_class=Net)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]  # pa_trial.load_trial_from_checkpoint_path: the class of a trial
other_samples: pytorch.DataLoader[int] = pytorch.DataLoader(make_data())  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]  # pa_trial.DataLoader[_SampleT]: samples of the dataset
indices = torch.utils.data.SequentialSampler(make_data())
repeated: samplers.RepeatSampler[str] = samplers.RepeatSampler(indices)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]  # pa_trial.samplers.RepeatSampler[_ItemT]: what the other sampler yields
shared: samplers.DistributedSampler[str] = samplers.DistributedSampler(indices, 2, 0)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]  # pa_trial.samplers.DistributedSampler[_ItemT]: as above
skipped: samplers.SkipSampler[str] = samplers.SkipSampler(indices, 1)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]  # pa_trial.samplers.SkipSampler[_ItemT]: as above
shuffled: samplers.ReproducibleShuffleSampler[str] = samplers.ReproducibleShuffleSampler(indices, 1)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]  # pa_trial.samplers.ReproducibleShuffleSampler[_ItemT]: as above
