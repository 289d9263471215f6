"""An optimizer that averages the weights itself, as those of schedulefree do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD
from typing_extensions import override


class Averaging(SGD):
    """Steps a sequence of weights, evaluates their average, and takes gradients between the two."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)
        for group in self.param_groups:
            group |= {"train_mode": False, "steps": 0}

    def eval(self) -> None:
        """Leave the average in the model."""
        self._change(to_training=False, weight=1 - 1 / 0.9)

    def train(self) -> None:
        """Leave the weights in the model that gradients are taken at."""
        self._change(to_training=True, weight=1 - 0.9)

    @torch.no_grad()
    def _change(self, *, to_training: bool, weight: float) -> None:
        for group in self.param_groups:
            for parameter in group["params"] if group["train_mode"] != to_training else ():
                if "z" in self.state[parameter]:
                    parameter.lerp_(self.state[parameter]["z"], weight)
            group["train_mode"] = to_training

    @override
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure here
        """Make an update, in training mode only."""
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("Call train() before step().")
            group["steps"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                z = state.setdefault("z", parameter.clone())
                average = parameter.lerp(z, 1 - 1 / 0.9)
                z.sub_(parameter.grad, alpha=group["lr"])
                average.lerp_(z, 1 / group["steps"])
                parameter.copy_(average.lerp(z, 1 - 0.9))
