"""Batches are copied to a CUDA device while it computes, in order and without a mix-up."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from pa_data import KeyedDataLoader
from pa_data._fetching import prefetched


class StandIn:
    """A stream that notes what it is asked for, where there is no CUDA device."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.events = name, log, 0

    def wait_stream(self, other: StandIn) -> None:
        """Note it."""
        self.log.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> str:
        """Return the name of the event."""
        self.events += 1
        return f"event {self.events} of {self.name}"

    def wait_event(self, event: str) -> None:
        """Note it."""
        self.log.append(f"{self.name} waits for {event}")


def test_each_batch_is_copied_before_the_one_ahead_of_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy begins when all earlier work on its memory is asked for, and is waited for by the work on it alone."""
    log: list[str] = []
    copying, computing = StandIn("copying", log), StandIn("computing", log)

    @contextmanager
    def within(stream: StandIn) -> Generator[None]:
        log.append(f"on {stream.name}")
        yield

    def new_stream(_device: torch.device) -> StandIn:
        return copying

    def current_stream(_device: torch.device) -> StandIn:
        return computing

    monkeypatch.setattr(torch.cuda, "Stream", new_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.cuda, "stream", within)

    seen: list[int] = []
    for batch in prefetched(iter([torch.tensor(number) for number in range(3)]), torch.device("cpu")):
        seen.append(int(batch))
        log.append(f"step {int(batch)}")
    assert seen == [0, 1, 2]
    copy = ["copying waits for computing", "on copying"]
    assert log == [
        *(*copy, *copy, "computing waits for event 1 of copying", "step 0"),
        *(*copy, "computing waits for event 2 of copying", "step 1"),
        *("computing waits for event 3 of copying", "step 2"),
    ]


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.needs_cuda
def test_short_epochs_are_whole(number: int) -> None:
    """No batch is lost where there are not two to overlap."""
    batches = [torch.tensor(one).pin_memory() for one in range(number)]
    assert [int(batch) for batch in prefetched(batches, torch.device("cuda"))] == list(range(number))


@pytest.mark.needs_cuda
def test_batches_on_cuda_are_those_of_the_cpu() -> None:
    """Work on the device finds each batch complete, while the next one is under way."""
    data = TensorDataset(torch.arange(2**22, dtype=torch.float32).view(64, -1))
    on_cpu = [batch[0].double().sum().item() for batch in KeyedDataLoader(data, 4, shuffle=True)]
    weights = torch.rand(4096, 4096, device="cuda")
    sums: list[Tensor] = []
    for (batch,) in KeyedDataLoader(data, 4, shuffle=True, device="cuda", pin_memory=True):
        for _ in range(5):
            weights @ weights  # pyright: ignore[reportUnusedExpression]  # keeps the device busy
        sums.append(batch.double().sum())
    assert [one.item() for one in sums] == on_cpu
