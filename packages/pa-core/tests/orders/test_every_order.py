"""Each order gives the same updates, of the same samples and draws, however a run is divided and interrupted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pa_core import files, orders
from pa_core.orders import Order
from tests.launching import Launch
from tests.support.every_order import ORDERS, loaders_of, updates_of
from tests.support.pa_core.orders import train_in_every_order

EPOCH = 1
MOST_FOR_WORKERS = ("Mixture", "ShardOrder", "TokenBudget")
"""Several data sets, files, and batches of different sizes."""
CASES = [
    *((name, 0) for name in ORDERS),
    *(
        pytest.param(name, 2, marks=[] if name in MOST_FOR_WORKERS else [pytest.mark.more_cases], id=f"{name}, workers")
        for name in ORDERS
    ),
]


def test_none_is_left_out() -> None:
    """An order that is added to pa_core has its row here."""
    public = [getattr(module, name) for module in (orders, files) for name in module.__all__]
    kinds = {one for one in public if isinstance(one, type) and issubclass(one, Order) and one is not Order}
    assert {one for one in kinds if not any(isinstance(order, one) for order in ORDERS.values())} == set()


@pytest.mark.parametrize(("name", "workers"), CASES)
def test_updates_are_the_same_on_any_number_of_processes_and_resumed_anywhere(name: str, workers: int) -> None:
    """On 1, 2 and 4 processes, from each update on: samples, draws, and which of them make an update."""
    whole = updates_of(loaders_of(ORDERS[name], 1), EPOCH)
    assert len(whole) > 2
    for num_processes in (1, 2, 4):
        loaders = loaders_of(ORDERS[name], num_processes, num_workers=workers, persistent_workers=workers > 0)
        for update in range(len(whole)) if workers == 0 or num_processes == 2 else (0, 1):
            position = sum(len(samples) for samples in whole[:update])
            assert updates_of(loaders, EPOCH, position) == whole[update:], (num_processes, update)
        for loader in loaders:
            loader.close()


def test_four_processes_train_as_one_loader_says(launch: Launch, tmp_path: Path) -> None:
    """Real processes, `train()` and all orders, one after the other: what they train on is what one process would."""
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert launch(Path(train_in_every_order.__file__), ranks=4, env=path).status == 0
    trained: dict[str, Any] = json.loads((tmp_path / "trained.json").read_text())
    assert list(trained) == list(ORDERS)
    for name, run in trained.items():
        loaders = loaders_of(ORDERS[name], 1, seed=run["seed"])
        expected = [update for epoch in range(train_in_every_order.NUM_EPOCHS) for update in updates_of(loaders, epoch)]
        updates: list[list[list[float]]] = [[] for _ in expected]
        for batches in run["batches_of_ranks"]:
            for number, samples in batches:
                updates[number] += samples
        assert updates == expected, name
