"""The first batch of a run, and the experiments that checks make with it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pa_data.rng import seed_rng
from pa_preflight._calls import FunctionCall
from pa_preflight._models import in_evaluation_mode
from pa_preflight._samples import Job
from pa_preflight._tensors import tensors_in, with_tensors
from pa_preflight._watching import ModelCall


@dataclass
class FirstBatch:
    """The first batch, with the observations of its step.

    Attributes:
        job: The run that it begins.
        batch: The batch, on the device.
        loss: Its loss.
        modes: Whether modules were in training mode before the step, by their identity.
        model_calls: The calls to the model.
        loss_calls: The calls to loss functions.
        layer_inputs: The inputs of the first layer with a matrix.
        needs_graph: Whether the step fails without a graph, because it computes gradients.
    """

    job: Job
    batch: Any
    loss: Tensor
    modes: Mapping[int, bool]
    model_calls: list[ModelCall]
    loss_calls: list[FunctionCall]
    layer_inputs: list[Tensor]
    needs_graph: bool = False

    @property
    def model(self) -> nn.Module:
        """The model, in training."""
        model: nn.Module = self.job.trainer.get_model()
        return model

    def calculate_loss(self, batch: Any) -> Tensor:
        """Return the loss of a batch, which the step may change."""
        loss: Tensor = self.job.trainer.calculate_train_batch_loss(batch)["loss"]
        return loss

    def repeated(self, seed: int = 0) -> Tensor:
        """Make the step with a copy of the batch, and return its loss with the graph."""
        seed_rng(seed)
        with torch.enable_grad():
            return self.calculate_loss(copy.deepcopy(self.batch))

    def loss_of(self, batch: Any) -> float:
        """Return the loss of a batch, always with the same random numbers.

        The loss has no graph, which would need memory. The step gets a copy, because it may change a batch in place.
        """
        seed_rng(0)
        try:
            with torch.set_grad_enabled(self.needs_graph):
                return float(self.calculate_loss(copy.deepcopy(batch)).detach())
        except RuntimeError:
            if self.needs_graph:
                raise
        self.needs_graph = True
        return self.loss_of(batch)

    @property
    def inputs(self) -> list[Tensor]:
        """The inputs of the model."""
        return [tensor for call in self.model_calls for tensor in call.inputs]

    @property
    def call(self) -> ModelCall | None:
        """The call to the model, if it was called once, and its inputs and output have a row for each sample."""
        if len(self.model_calls) != 1:
            return None
        (call,) = self.model_calls
        if call.output is None or not call.inputs or not call.output.dim():
            return None
        rows = {len(tensor) for tensor in (*call.inputs, call.output)}
        return call if len(rows) == 1 and max(rows) <= self.job.batch_size else None


@dataclass
class Forward:
    """Calls the model again as the first step did, in evaluation mode and with changed inputs.

    Attributes:
        model: The model.
        call: Its call in the first step.
    """

    model: nn.Module
    call: ModelCall

    def outputs(self, change: Callable[[Tensor], Tensor] = Tensor.clone) -> list[Tensor]:
        """Return the outputs for changed inputs.

        Args:
            change: Called with each input.
        """
        with in_evaluation_mode(self.model), torch.no_grad():
            seed_rng(0)
            args, kwargs = with_tensors((self.call.args, self.call.kwargs), change)
            return [tensor for tensor in tensors_in(self.model(*args, **kwargs)) if tensor.is_floating_point()]


@contextmanager
def outputs_replaced(model: nn.Module, change: Callable[[Any], Any]) -> Generator[None]:
    """Let a model return different outputs.

    Args:
        model: The model.
        change: Called with the return value of the model; returns its replacement.
    """
    handle = model.register_forward_hook(lambda _model, _args, output: change(output))
    try:
        yield
    finally:
        handle.remove()
