"""The orders that visit each sample once, given to a loader by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from pa_data import KeyedDataLoader
from pa_data.orders import Order, Sequential, Shuffled


def ids(order: Order | None, *, shuffle: bool = False) -> list[int]:
    """What a loader of ten samples yields in its epoch 2."""
    data = TensorDataset(torch.arange(10))
    loader: KeyedDataLoader[tuple[Tensor, ...]] = KeyedDataLoader(data, 4, shuffle, order=order, seed=5)
    loader.start_epoch(2)
    return [int(index) for (batch,) in loader for index in batch]


@pytest.mark.parametrize(("order", "shuffle"), [(Shuffled(), True), (Sequential(), False)])
def test_they_are_what_a_loader_does_by_default(order: Order, shuffle: bool) -> None:
    """An order that is given by name is the one that ``shuffle`` asks for."""
    assert ids(order) == ids(None, shuffle=shuffle)
    assert sorted(ids(order)) == list(range(10))


def test_an_order_is_known_by_its_name_and_its_parameters() -> None:
    """Two orders have the same identity if they give the same epochs."""
    assert Shuffled().fingerprint == Shuffled().fingerprint != Sequential().fingerprint
    assert Shuffled("feistel-v1").fingerprint != Shuffled().fingerprint
