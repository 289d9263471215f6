"""What a hand-written loop with accelerate relies on when its data come from a keyed loader."""

from __future__ import annotations

import ast
import re
from itertools import chain
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.launching import Launch

SCRIPT = """
import os, sys
import torch
from accelerate import Accelerator
from torch.utils.data import TensorDataset

from pa_data import KeyedDataLoader

accelerator = Accelerator(cpu=True)
processes = {"rank": accelerator.process_index, "num_processes": accelerator.num_processes}
dataset = TensorDataset(torch.arange(22.0).unsqueeze(1))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = KeyedDataLoader(dataset, 4, shuffle=True, seed=3, num_workers=2, device=accelerator.device, **processes)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
if len(sys.argv) > 2:
    accelerator.load_state(sys.argv[2])
steps = 0
for epoch in range(loader.epoch, 3):
    loader.set_epoch(epoch)
    for (inputs,) in loader:
        accelerator.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        samples = [int(index) for index in inputs.flatten()]
        os.write(1, f"batch ({accelerator.process_index}, {epoch}, {samples})\\n".encode())
        if steps == int(sys.argv[1]):
            accelerator.save_state("middle")
            sys.exit()
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_leaves_the_loader_as_it_is_and_saves_its_position(launch: Launch, ranks: int) -> None:
    """After `prepare` each sample comes once an epoch, and `load_state` continues at the next batch of an epoch."""
    whole = _batches(launch, ranks, "-1")
    for epoch in range(3):
        seen = chain.from_iterable(samples for _, number, samples in whole if number == epoch)
        assert sorted(seen) == list(range(22))

    before = _batches(launch, ranks, "5")
    assert len(before) == 5 * ranks
    assert sorted(before + _batches(launch, ranks, "-1", "middle")) == sorted(whole)


def _batches(launch: Launch, ranks: int, *arguments: str) -> list[tuple[int, int, list[int]]]:
    ended = launch(SCRIPT, *arguments, ranks=ranks)
    assert ended.status == 0
    return [ast.literal_eval(found) for found in re.findall(r"batch (\(.*\))", ended.output)]
