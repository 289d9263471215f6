"""Texts of several processes are compared by a digest, and shown rank by rank where they differ."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

from pa_distributed import RanksDifferError, require_same
from pa_distributed._comparison import differences


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
        require_same(lambda: {"same": "text", "rank": str(dist.get_rank())})
    require_same({"same": "text"})


@pytest.mark.runs_on("two_ranks")
def test_many_differences_are_counted() -> None:
    """The first ones are shown."""
    with pytest.raises(RanksDifferError, match=r"7: 0 on rank 0, 1 on rank 1, and 92 more"):
        require_same({"same": "", **{str(one): str(dist.get_rank()) for one in range(100)}})


@pytest.mark.runs_on("two_ranks")
def test_modules_and_optimizers_are_compared_by_what_they_consist_of() -> None:
    """Layers and parameters of the former, parameters and settings of the latter; of other objects, the class."""
    rank = dist.get_rank()
    module, wider, same = nn.Linear(2, 1), nn.Linear(2, 1 + rank), {"same": ""}
    optimizer = SGD(module.parameters(), lr=0.1 + rank)
    require_same({"module": module, "kind": object()})
    with pytest.raises(RanksDifferError, match=r"module\.weight: float32 \(1, 2\) on rank 0, .* \(2, 2\) on rank 1"):
        require_same({**same, "module": wider})
    with pytest.raises(RanksDifferError, match=r"given: +optimizer, lr: 0\.1 on rank 0, 1\.1 on rank 1\n"):
        require_same({"module": module, "optimizer": optimizer})
