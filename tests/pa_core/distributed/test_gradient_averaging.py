"""Gradients that are averaged without a wrapper: each process ends up with the same ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pa_core import UnsupportedConfigurationError, gather_objects
from pa_core.distributed import broadcast_weights, num_processes, rank
from pa_core.distributed.gradient_averaging import average_gradients, is_same_on_all_processes

everywhere = pytest.mark.runs_on("one_process", "two_ranks")
on_two_ranks = pytest.mark.runs_on("two_ranks")


def parameters_with(*gradients: Tensor | None) -> dict[str, Tensor]:
    """Parameters of the shapes and kinds of gradients, or of one element where there is none."""
    parameters: dict[str, Tensor] = {}
    for number, gradient in enumerate(gradients):
        parameter = nn.Parameter(torch.zeros(1) if gradient is None else torch.zeros_like(gradient))
        parameter.grad = gradient
        parameters[f"p{number}"] = parameter
    return parameters


@everywhere
def test_the_mean_over_the_processes() -> None:
    """Of several shapes, layouts and precisions at once."""
    factor = rank() + 1.0
    parameters = parameters_with(
        torch.arange(6.0).view(2, 3) * factor,
        torch.full((), factor),
        torch.full((2,), factor, dtype=torch.float64),
        (torch.arange(16.0).view(1, 4, 2, 2) * factor).to(memory_format=torch.channels_last),
    )
    average_gradients(parameters)
    mean = sum(range(1, num_processes() + 1)) / num_processes()
    expected = [
        torch.arange(6.0).view(2, 3) * mean,
        torch.tensor(mean),
        torch.tensor([mean, mean], dtype=torch.float64),
        torch.arange(16.0).view(1, 4, 2, 2) * mean,
    ]
    for parameter, one in zip(parameters.values(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, one, rtol=0, atol=0)


@everywhere
def test_gradients_that_some_or_all_processes_lack() -> None:
    """Missing on one of them is zero there; missing on all of them is missing."""
    parameters = parameters_with(torch.ones(1) if rank() == 0 else None, None)
    average_gradients(parameters)
    first, second = (parameter.grad for parameter in parameters.values())
    torch.testing.assert_close(first, torch.ones(1) / num_processes(), rtol=0, atol=0)
    assert second is None


@on_two_ranks
def test_sparse_gradients() -> None:
    """Are refused by name."""
    layer = nn.Embedding(3, 2, sparse=True)
    layer(torch.tensor([1])).sum().backward()
    with pytest.raises(UnsupportedConfigurationError, match=r"Sparse gradients, as of weight.*sparse=False"):
        average_gradients(dict(layer.named_parameters()))


@everywhere
def test_weights_of_rank_zero() -> None:
    """Modules that were made differently are equal afterwards, and stay trainable."""
    torch.manual_seed(rank())
    layers: list[nn.Module] = [nn.Linear(2, 2), nn.Linear(2, 1).double()]
    layers[0].register_parameter("scale", nn.Parameter(torch.rand(())))
    assert is_same_on_all_processes(layers[0]) == (num_processes() == 1)
    for layer in layers:
        broadcast_weights(layer)
    assert all(map(is_same_on_all_processes, [*layers, nn.Tanh()]))
    weights = [parameter.tolist() for layer in layers for parameter in layer.parameters()]
    assert gather_objects(weights) == [weights] * num_processes()
    assert all(parameter.requires_grad for layer in layers for parameter in layer.parameters())
