"""Gradients are cleared after each update, by the optimizer's own method if it has one."""

from __future__ import annotations

from types import MethodType

import pytest
from torch import nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import Run, Trainer
from pa_core.testing import make_regression


class Own(SGD):
    """Notes whether there were gradients to clear."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.had_gradients: list[bool] = []

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        self.had_gradients.append(self.param_groups[0]["params"][0].grad is not None)
        super().zero_grad(set_to_none)


@pytest.mark.parametrize("is_assigned", [False, True])
@pytest.mark.parametrize("loop", ["Trainer", "Run"])
def test_an_optimizer_that_clears_gradients_in_its_own_way_is_asked_to(loop: str, is_assigned: bool) -> None:
    """Its zero_grad is called after each update, whether its class defines it or the script assigned it."""
    model = nn.Linear(4, 1)
    own = Own(model)
    optimizer = SGD(model.parameters(), lr=0.1) if is_assigned else own
    if is_assigned:
        optimizer.zero_grad = MethodType(Own.zero_grad, own)  # type: ignore[method-assign]
    if loop == "Trainer":
        Trainer(model, nn.MSELoss(), optimizer, callbacks=[]).train(make_regression(16), 1, per_device_batch_size=8)
    else:
        with Run(model, optimizer, make_regression(16), num_epochs=1, per_device_batch_size=8) as run:
            for update in run.updates():
                for inputs, targets in update:
                    update.backward((model(inputs) - targets).square().mean())
                update.step()
    assert own.had_gradients.count(True) == 2
