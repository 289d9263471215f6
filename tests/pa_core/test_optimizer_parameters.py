"""The parameters of an optimizer are found wherever they are."""

from __future__ import annotations

import torch
from torch import nn

from pa_core.model_tensors import parameters_of


def test_parameters_come_in_the_order_of_the_groups_also_those_that_were_added_later() -> None:
    """A layer that is unfrozen in mid-run is clipped, normalised and saved as the others are."""
    layers = [nn.Linear(1, 1, bias=False) for _ in range(3)]
    optimizer = torch.optim.SGD(layers[1].parameters(), lr=0.1)
    optimizer.add_param_group({"params": layers[0].parameters()})
    assert [id(one) for one in parameters_of(optimizer)] == [id(layers[1].weight), id(layers[0].weight)]
    optimizer.add_param_group({"params": layers[2].parameters()})
    assert len(list(parameters_of(optimizer))) == 3
