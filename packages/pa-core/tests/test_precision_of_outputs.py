"""Outputs of a model in mixed precision: float32, whatever they are in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import Run, Trainer
from pa_core.testing import make_regression

pytestmark = pytest.mark.runs_on("bf16")


@dataclass(frozen=True)
class Output:
    """What a model of a user's returns."""

    value: Any
    name: str = "value"


class Pair(NamedTuple):
    """The same as a named tuple."""

    value: Any
    name: str = "value"


class Model(nn.Module):
    """Returns its result within something."""

    def __init__(self, within: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.within = within

    @override
    def forward(self, inputs: Tensor) -> Any:
        return self.within(self.layer(inputs))


WAYS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "dataclass": (Output, lambda output: output.value),
    "dataclass in a dictionary": (lambda value: {"head": Output(value)}, lambda output: output["head"].value),
    "list in a dataclass": (lambda value: Output([value, 3]), lambda output: output.value[0]),
    "dataclass in a dataclass": (lambda value: Output(Output(value)), lambda output: output.value.value),
    "named tuple": (Pair, lambda output: output.value),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("within", "value_of"), WAYS.values(), ids=WAYS)
def test_tensors_in_an_output_of_any_structure_are_float32(
    within: Callable[[Tensor], Any], value_of: Callable[[Any], Tensor], compiled: bool
) -> None:
    """In training, evaluation, predictions and a custom loop, compiled or not; nothing is left in the model."""
    seen: set[torch.dtype] = set()

    class Step(Trainer[Any]):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            value = value_of(self.model(batch[0]))
            seen.add(value.dtype)
            return {"loss": nn.functional.mse_loss(value, batch[1]), "model_outputs": value, "batch_size": len(value)}

        calculate_eval_batch_loss = calculate_train_batch_loss

        @override
        def predict_batch(self, batch: Any) -> Any:
            return value_of(self.model(batch[0])).dtype

    plain = Model(within)
    model: Any = torch.compile(plain, backend="eager") if compiled else plain
    data = make_regression(8)
    trainer = Step(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(data, 1, data, per_device_batch_size=4)
    assert seen | set(trainer.predict(data, 4)) == {torch.float32}

    with Run(model, SGD(model.parameters(), lr=0.1), data, num_epochs=1, per_device_batch_size=4) as run:
        for inputs, targets in run.batches():
            value = value_of(run.model(inputs))
            assert value.dtype == torch.float32
            run.backward(nn.functional.mse_loss(value, targets))
            run.step()
    assert not plain._forward_hooks  # pyright: ignore[reportPrivateUsage]  # no public way
    assert value_of(model.bfloat16()(torch.ones(1, 4).bfloat16())).dtype == torch.bfloat16
