"""Models, optimizers and schedulers of a trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler as TorchScheduler

from pa_trial.lr_scheduler import LRScheduler
from pa_trial.progress import TrialProgress

__all__ = ["TrainedParts"]

_ModelT = TypeVar("_ModelT", bound=nn.Module)
_OptimizerT = TypeVar("_OptimizerT", bound=Optimizer)
_SchedulerT = TypeVar("_SchedulerT", bound=TorchScheduler)
_ScalerT = TypeVar("_ScalerT", bound=torch.amp.GradScaler)


class TrainedParts:
    """Models, optimizers and schedulers of a trial."""

    def __init__(
        self,
        device: torch.device,
        *,
        num_processes: int,
        aggregation_frequency: int,
        progress: TrialProgress,
        can_train: bool = True,
    ) -> None:
        self.models: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.scaler: torch.amp.GradScaler | None = None
        self._device = device

    def wrap_model(self, model: _ModelT) -> _ModelT:
        """Take a model."""
        self.models.append(model)
        return model.to(self._device)

    def wrap_optimizer(
        self,
        optimizer: _OptimizerT,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> _OptimizerT:
        """Take an optimizer."""
        self.optimizers.append(optimizer)
        return optimizer

    def wrap_lr_scheduler(
        self, lr_scheduler: _SchedulerT, step_mode: LRScheduler.StepMode, frequency: int = 1
    ) -> _SchedulerT:
        """Take a scheduler."""
        self.lr_schedulers.append(LRScheduler(lr_scheduler, step_mode, frequency))
        return lr_scheduler

    def wrap_scaler(self, scaler: _ScalerT) -> _ScalerT:
        """Take a scaler."""
        self.scaler = scaler
        return scaler

    def use_amp(self) -> None:
        """Compute in mixed precision."""

    def backward(
        self,
        loss: Tensor,
        gradient: Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Compute gradients."""
        loss.backward(gradient, retain_graph, create_graph)  # type: ignore[no-untyped-call]  # not annotated by torch

    def step_optimizer(
        self,
        optimizer: Optimizer,
        clip_grads: Callable[[list[nn.Parameter]], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        """Step an optimizer."""
        optimizer.step()
        optimizer.zero_grad()
