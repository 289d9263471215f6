"""The first batch of a run, and the experiments that checks make with it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pa_data.rng import seed_rng
from pa_preflight._calls import FunctionCall
from pa_preflight._models import in_evaluation_mode
from pa_preflight._tensors import tensors_in, with_tensors
from pa_preflight._watching import ModelCall


@dataclass
class FirstBatch:
    """The first batch and what was seen of it.

    Attributes:
        model: The model, in training.
        batch: The batch, on the device.
        loss: Its loss.
        calculate_loss: Returns the loss of a batch.
        model_calls: The calls of the model.
        loss_calls: The calls of loss functions.
        layer_inputs: What the first layer with a matrix was called with.
        batch_size: How many samples a batch has.
        smallest_batch: How many the smallest batch of an epoch has.
        is_own_step: Whether the step is one of the script, which may need no targets.
        needs_graph: Whether the step fails without a graph, as it computes gradients.
    """

    model: nn.Module
    batch: Any
    loss: Tensor
    calculate_loss: Callable[[Any], Tensor]
    model_calls: list[ModelCall]
    loss_calls: list[FunctionCall]
    layer_inputs: list[Tensor]
    batch_size: int
    smallest_batch: int
    is_own_step: bool
    needs_graph: bool = False

    def loss_of(self, batch: Any) -> float:
        """Return the loss of a batch, always with the same random numbers.

        Without its graph, which would need memory, and of a copy, as a step may change a batch in place.
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
        """What the model was called with."""
        return [one for call in self.model_calls for one in call.inputs]

    @property
    def call(self) -> ModelCall | None:
        """The call of the model, where there is one, whose inputs and output have a row for each sample."""
        if len(self.model_calls) != 1:
            return None
        (call,) = self.model_calls
        if call.output is None or not call.inputs or not call.output.dim():
            return None
        rows = {len(one) for one in (*call.inputs, call.output)}
        return call if len(rows) == 1 and max(rows) <= self.batch_size else None


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
        """Return the outputs for other inputs.

        Args:
            change: Called with each input.
        """
        with in_evaluation_mode(self.model), torch.no_grad():
            seed_rng(0)
            args, kwargs = with_tensors((self.call.args, self.call.kwargs), change)
            return [one for one in tensors_in(self.model(*args, **kwargs)) if one.is_floating_point()]


@contextmanager
def outputs_replaced(model: nn.Module, change: Callable[[Any], Any]) -> Generator[None]:
    """Let a model return something else.

    Args:
        model: The model.
        change: Called with what it returns.
    """
    handle = model.register_forward_hook(lambda _model, _args, output: change(output))
    try:
        yield
    finally:
        handle.remove()
