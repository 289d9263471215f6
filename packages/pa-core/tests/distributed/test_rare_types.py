"""Tensors of types that few backends exchange: they reach other processes by value."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import Trainer, gather_objects
from pa_core.distributed import gather, num_processes, rank
from pa_core.distributed.collectives import broadcast_tensors

RARE = (
    torch.int16,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.bool,
)
USUAL = (torch.uint8, torch.int64, torch.bfloat16, torch.float64)


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("dtype", [*RARE, *USUAL])
def test_tensors_of_any_type_are_gathered_by_value(dtype: torch.dtype) -> None:
    """Small integers and 8-bit floats are brought together as other types are, as tensors and within objects."""
    shown = [0.0, 1.0] if dtype == torch.bool else [2.0, 3.0, 4.0]
    rows = torch.tensor(shown)[: len(shown) - rank()].to(dtype)
    of_all = [value for number in range(num_processes()) for value in shown[: len(shown) - number]]
    for tensor in (rows, rows[:, None].expand(-1, 2)):
        gathered = gather(tensor)
        assert gathered.dtype == dtype
        assert gathered.to(torch.complex64).reshape(len(of_all), -1)[:, 0].tolist() == of_all
    assert gather(rows[-1].clone()).shape == (num_processes(),)
    for tensor in gather_objects({"rows": [rows]})[0]["rows"]:
        assert tensor.to(torch.complex64).tolist() == shown
    broadcast = rows[:1].clone() if rank() == 0 else torch.zeros(1).to(dtype)
    broadcast_tensors([broadcast])
    assert broadcast.to(torch.complex64).tolist() == shown[:1]


class WithBuffer(nn.Module):
    """A model with a buffer of a rare type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("codes", torch.ones(3).to(dtype))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return cast("Tensor", self.layer(inputs))


class PredictsCodes(Trainer[WithBuffer]):
    """Predicts the buffer for each sample."""

    @override
    def predict_batch(self, batch: Any) -> Any:
        return cast("Tensor", self.model.codes)[:1].expand(len(batch[0])).clone()


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("dtype", RARE)
def test_a_model_with_a_buffer_of_a_rare_type_trains_and_predicts(dtype: torch.dtype) -> None:
    """Its buffer is given to all processes in each step, and what is predicted may be of its type."""
    data = TensorDataset(torch.ones(6, 1), torch.ones(6, 1))
    model = WithBuffer(dtype)
    trainer = PredictsCodes(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(data, 1, data, per_device_batch_size=1)
    predicted = list(trainer.predict(data, 2))
    assert [one.to(torch.complex64).tolist() for one in predicted] == ([[1, 1]] * 3 if rank() == 0 else [])
