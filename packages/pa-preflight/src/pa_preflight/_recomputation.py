"""Whether a recomputation in the backward pass moves running statistics again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from pa_core import AnyTrainer, TrainerCallback
from pa_preflight._findings import Finding, noticed
from pa_preflight._layer_checks import named_layers
from pa_preflight._model_checks import listed
from pa_preflight._torch import is_in_backward


class RecomputedNorms(TrainerCallback):
    """Notes which layers with running statistics are called in the backward passes of the first update.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(one): name for name, one in named_layers(model)}
        self._norms = [one for one in model.modules() if isinstance(getattr(one, "running_mean", None), Tensor)]
        self._hooks: list[RemovableHandle] = []
        self._has_begun = False
        self._called: dict[str, None] = {}

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._hooks = [one.register_forward_hook(self._note) for one in self._norms]

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self._close()

    def _note(self, norm: nn.Module, _args: object, _output: object) -> None:
        if norm.training and is_in_backward():
            self._called[self._names[id(norm)] or "The model"] = None

    def _close(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def check(self) -> Iterator[Finding]:
        """Yield a finding if there were such layers."""
        self._close()
        if self._called:
            names = [*self._called]
            yield noticed(
                "statistics-move-twice",
                f"{listed(names)} {'is' if len(names) == 1 else 'are'} computed again in the backward pass: each batch "
                "moves the running statistics twice, and evaluations give other losses.",
                "Build these layers with momentum=1 - math.sqrt(1 - m) in place of m, or leave them out of the "
                "checkpointed blocks.",
            )
