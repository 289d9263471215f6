"""A check fits where the run fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import TensorDataset

from pa_core import Trainer
from pa_preflight import check
from tests.support.pa_preflight.scripts import layer

MOST = 1.8
"""Times the memory of the run; a copy of weights and another step without a graph."""


def _large_activations() -> tuple[nn.Module, TensorDataset]:
    layers = [one for _ in range(5) for one in (nn.Linear(128, 128), nn.GELU())]
    inputs = torch.randn(4096, 128)  # next to which the tables of some samples, a few megabytes, are small
    return nn.Sequential(*layers, nn.Linear(128, 4)), TensorDataset(inputs, inputs[:, :4].argmax(1))


def _large_weights() -> tuple[nn.Module, TensorDataset]:
    model = nn.Sequential(nn.Linear(32, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 4))
    return model, TensorDataset(torch.randn(64, 32), torch.randint(0, 4, (64,)))


def _large_outputs() -> tuple[nn.Module, TensorDataset]:
    words = torch.randint(0, 2000, (64, 17))
    layers = [nn.Embedding(2000, 16), nn.Linear(16, 2000), layer(lambda logits: logits.transpose(1, 2))]
    return nn.Sequential(*layers), TensorDataset(words[:, :-1].clone(), words[:, 1:].clone())


def _most_memory(model: nn.Module, use: Callable[[], object]) -> int:
    """Return the bytes of weights, and of what is taken in addition at the peak."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        use()
    of_kineto = cast("Any", measured).profiler.kineto_results
    events = [event for event in of_kineto.events() if event.name() == "[memory]"]
    held = most = sum(one.nbytes for one in model.parameters())
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize("make", [_large_activations, _large_weights, _large_outputs])
def test_a_check_takes_hardly_more_memory_than_the_run(make: Callable[[], tuple[nn.Module, TensorDataset]]) -> None:
    """With large activations, large weights without a state of the optimizer, and large outputs."""
    model, data = make()
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=1e-3), callbacks=[])
    arguments: dict[str, Any] = {"train_dataset": data, "num_epochs": 1, "per_device_batch_size": len(data) // 2}
    of_check = _most_memory(model, lambda: check(trainer, **arguments))
    of_run = _most_memory(model, lambda: trainer.train(**arguments))
    assert of_check <= MOST * of_run
