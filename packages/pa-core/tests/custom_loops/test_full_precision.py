"""A mixed precision that a loop of one's own bypasses is warned of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from pa_core import Run

Call = Callable[[Run[nn.Sequential, Any], Tensor], Tensor]


def warnings_of(call: Call, *, precision: Any = "bf16", dtype: torch.dtype = torch.float32) -> list[str]:
    """What is warned of in a run of two updates whose outputs come from a function."""
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)).to(dtype)
    data = TensorDataset(torch.ones(8, 2, dtype=dtype))
    run = Run(
        model, SGD(model.parameters(), lr=0.1), data, num_epochs=1, per_device_batch_size=4, mixed_precision=precision
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with run:
            for (inputs,) in run.batches():
                run.backward(call(run, inputs).square().mean())
                run.step()
    return [str(one.message) for one in caught]


def in_parts(run: Run[nn.Sequential, Any], inputs: Tensor) -> Tensor:
    """The layers one by one, which bypasses the precision of the model."""
    outputs: Tensor = run.model[1](run.model[0](inputs))
    return outputs


def in_autocast(run: Run[nn.Sequential, Any], inputs: Tensor) -> Tensor:
    """The layers one by one, in the precision of the run."""
    with run.autocast():
        return in_parts(run, inputs)


def whole(run: Run[nn.Sequential, Any], inputs: Tensor) -> Tensor:
    """The model itself."""
    outputs: Tensor = run.model(inputs)
    return outputs


def recomputed(run: Run[nn.Sequential, Any], inputs: Tensor) -> Tensor:
    """A graph that is not there before the backward pass."""
    outputs: Tensor = checkpoint(run.model, inputs.requires_grad_(), use_reentrant=True)
    return outputs


def without_products(run: Run[nn.Sequential, Any], inputs: Tensor) -> Tensor:
    """Nothing that autocast would compute in another precision."""
    return sum(parameter.sum() for parameter in run.model.parameters()) * inputs


def test_a_part_that_is_called_computes_in_fp32() -> None:
    """Which is said once, with what to do."""
    (message,) = warnings_of(in_parts)
    assert "in bf16" in message
    assert "with run.autocast()" in message


@pytest.mark.parametrize("call", [whole, in_autocast, recomputed, without_products])
def test_what_computes_as_it_was_asked_to(call: Call) -> None:
    """Or what does not tell, or has nothing that could be computed in another precision."""
    assert warnings_of(call) == []


@pytest.mark.parametrize(("precision", "dtype"), [("no", torch.float32), ("bf16", torch.float64)])
def test_where_no_mixed_precision_would_have_an_effect(precision: str, dtype: torch.dtype) -> None:
    """None was asked for, or the model is in double precision, which autocast leaves alone."""
    assert warnings_of(in_parts, precision=precision, dtype=dtype) == []
