"""Texts of several processes are compared by a digest, and shown rank by rank where they differ."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from pa_core import RanksDifferError
from pa_core.distributed.comparison import agree_on_integer, differences, digest, require_same

CPU = torch.device("cpu")
IN_NEW_PROCESS = "from pa_core.distributed.comparison import digest; print(digest({'one': 'text', 'other': '\\udcff'}))"


def test_a_digest_is_the_same_in_each_process() -> None:
    """It depends neither on the seed of Python's hashes nor on the order of the texts, and takes any text."""
    new = subprocess.run([sys.executable, "-c", IN_NEW_PROCESS], capture_output=True, text=True, check=True)
    assert new.stdout.strip() == str(digest({"other": "\udcff", "one": "text"}))


def test_a_digest_is_exact_in_single_precision() -> None:
    """It can travel with other numbers, whatever their dtype."""
    for number in range(200):
        numbers = digest({"number": str(number)})
        assert torch.tensor(numbers, dtype=torch.float32).tolist() == numbers


def test_many_ranks_are_shown_as_ranges() -> None:
    """Each text is shown once, with all ranks that have it."""
    of_each = [{"lr": "0.1"}] * 3 + [{"lr": "0.2"}] + [{"lr": "0.1"}] * 4
    assert differences(of_each) == ["lr: 0.1 on ranks 0-2, 4-7, 0.2 on rank 3"]
    assert differences([{"a": "1"}, {}, {"a": "1"}]) == ["a: 1 on ranks 0, 2, nothing on rank 1"]


def test_of_long_texts_the_part_that_differs_is_shown() -> None:
    """What comes before it is left out, and what comes long after it too."""
    (line,) = differences([{"layers": f"{'x' * 500}{one}{'y' * 500}"} for one in "ab"])
    after = "y" * 116
    assert line == f"layers: ...a{after}... on rank 0, ...b{after}... on rank 1"


def test_if_the_first_text_differs_it_is_shown_alone() -> None:
    """A call of another method has other arguments, which need not be compared."""
    assert differences([{"call": "train", "epochs": "1"}, {"call": "evaluate"}]) == [
        "call: train on rank 0, evaluate on rank 1"
    ]


@pytest.mark.runs_on("two_ranks")
def test_all_ranks_raise_and_can_go_on() -> None:
    """After the error the processes still exchange in order."""
    with pytest.raises(RanksDifferError, match=r"rank: 0 on rank 0, 1 on rank 1"):
        require_same(lambda: {"same": "text", "rank": str(dist.get_rank())}, CPU)
    assert agree_on_integer(7 + dist.get_rank(), lambda: {"same": "text"}, CPU) == 7


@pytest.mark.runs_on("two_ranks")
def test_many_differences_are_counted() -> None:
    """The first ones are shown."""
    with pytest.raises(RanksDifferError, match=r"7: 0 on rank 0, 1 on rank 1, and 92 more"):
        require_same(lambda: {"same": "", **{str(one): str(dist.get_rank()) for one in range(100)}}, CPU)
