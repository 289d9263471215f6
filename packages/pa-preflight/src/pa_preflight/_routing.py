"""Layers of a list that samples are sent to, or that are left out at random."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from pa_core import AnyTrainer, BatchOutput, TrainerCallback
from pa_preflight._layer_checks import named_layers
from pa_preflight._observer import tensors_in


class Routing(TrainerCallback):
    """Notes how many rows the layers of lists get in each step, and so which lists are not used as a whole.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        lists = {name: one for name, one in named_layers(model) if isinstance(one, (nn.ModuleList, nn.ModuleDict))}
        self._lists = {name: [*one.children()] for name, one in lists.items()}
        self._hooks: list[RemovableHandle] = []
        self._of_step: dict[int, list[int]] = {}
        self._of_layer: dict[tuple[int, tuple[tuple[int, ...], ...]], set[tuple[int, ...]]] = {}

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.close()
        layers = {id(one): one for each in self._lists.values() for one in each}
        self._of_step = {identity: [] for identity in layers}
        self._hooks = [one.register_forward_pre_hook(self._note, with_kwargs=True) for one in layers.values()]

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: BatchOutput, **kwargs: Any) -> None:
        self.close()
        shapes = tuple(tuple(one.shape) for one in tensors_in(batch))
        for identity, rows in self._of_step.items():
            self._of_layer.setdefault((identity, shapes), set()).add(tuple(rows))

    def _note(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = next((one for one in tensors_in((args, kwargs)) if one.dim()), None)
        self._of_step.setdefault(id(layer), []).append(0 if given is None else len(given))

    def close(self) -> None:
        """Let the layers be."""
        while self._hooks:
            self._hooks.pop().remove()

    def may_leave_out(self, parameter: str) -> bool:
        """Whether a parameter is in a list of which batches of the same shape have used the layers differently.

        Args:
            parameter: Its name.
        """
        differing = {identity for (identity, _), rows in self._of_layer.items() if len(rows) > 1}
        holding = (layers for name, layers in self._lists.items() if parameter.startswith(f"{name}." if name else ""))
        return any(id(one) in differing for layers in holding for one in layers)
