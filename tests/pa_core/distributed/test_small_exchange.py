"""Small numbers of all processes are added up while a step computes."""

from __future__ import annotations

import pytest
import torch

from pa_core.distributed import num_processes, rank
from pa_core.distributed.small_exchange import SmallExchange

pytestmark = pytest.mark.runs_on("one_process", "two_ranks")


def exchange_of_two() -> SmallExchange:
    """An exchange of two numbers."""
    return SmallExchange(num_values=2, device=torch.device("cpu"), dtype=torch.float32)


def test_numbers_of_an_update_are_added_up_over_its_passes() -> None:
    """A further pass adds what has come since the one before; the next update starts over."""
    exchange, loss = exchange_of_two(), torch.ones(())
    for _ in range(2):
        assert exchange.add_to(loss, [rank(), 5]) is loss
        exchange.add_to(loss, [rank(), 8])
        assert exchange.sums().tolist() == [sum(range(num_processes())), 8 * num_processes()]
    exchange.add_to(loss, [0, 1])
    assert exchange.sums().tolist() == [0, num_processes()]


def test_nothing_is_the_sum_of_nothing() -> None:
    """An update that was left before its last batch has sent no numbers."""
    assert exchange_of_two().sums().tolist() == [0, 0]
