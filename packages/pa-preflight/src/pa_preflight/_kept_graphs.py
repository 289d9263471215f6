"""Whether the graphs of earlier steps stay in memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from pa_core import AnyTrainer, BatchOutput, TrainerCallback
from pa_preflight._findings import Finding, noticed
from pa_preflight._observer import tensors_in

_WATCHED_STEPS, _ENOUGH, _MOST_LAYERS = 6, 4, 30


class _Marker:
    """Is held by a node of a graph, as long as there is one."""

    def __call__(self, *_gradients: object) -> None:
        """Leave gradients as they are."""


class KeptGraphs(TrainerCallback):
    """Marks the graphs of the first steps, and tells which are still there.

    Args:
        model: The model, whose layers' outputs are marked.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [one for one in model.modules() if not any(True for _ in one.children())][:_MOST_LAYERS]
        self._hooks: list[RemovableHandle] = []
        self._steps: list[list[weakref.ref[_Marker]]] = []
        self.count = 0

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.count += 1
        self.close()
        if len(self._steps) < _WATCHED_STEPS:
            self._steps.append([])
            self._hooks = [one.register_forward_hook(self._mark_output) for one in self._layers]

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        if self._hooks:
            self._mark(batch_output["loss"])
        self.close()

    def close(self) -> None:
        """Let the layers be."""
        while self._hooks:
            self._hooks.pop().remove()

    def _mark_output(self, _layer: nn.Module, _args: object, output: Any) -> None:
        for one in tensors_in(output)[:1]:
            self._mark(one)

    def _mark(self, tensor: Any) -> None:
        if tensor.grad_fn is not None:
            marker = _Marker()
            tensor.grad_fn.register_hook(marker)
            self._steps[-1].append(weakref.ref(marker))

    def check(self) -> Iterator[Finding]:
        """Yield a finding if graphs of several steps are kept."""
        self.close()
        if self.count <= _WATCHED_STEPS or self._kept() < _ENOUGH:
            return
        gc.collect()  # what holds itself
        if self._kept() >= _ENOUGH:
            yield noticed(
                "graphs-kept",
                f"After {self.count} steps, the graphs of {self._kept()} of the first {_WATCHED_STEPS} are still in "
                "memory, with what they need for a backward pass: memory grows with each step.",
                "Look for losses and outputs that are added up or put into a list: keep value.detach(), or log them.",
            )

    def _kept(self) -> int:
        return sum(any(one() is not None for one in markers) for markers in self._steps)
