"""Texts of several processes are compared by a digest, and shown rank by rank where they differ."""

from __future__ import annotations

import enum
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

from pa_distributed import RanksDifferError, require_same
from pa_distributed._comparison import describe_value, differences, digest


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


class Colour(enum.Enum):
    """A setting of few values."""

    RED = "red"


@dataclass
class Settings:
    """What a user may hold settings in."""

    rate: float
    cache: object = field(default=None, compare=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (partial(partial(nn.Linear, 2), bias=False), "partial(Linear, 2, bias=False)"),
        (Colour.RED, "Colour.RED"),
        ([torch.float32, None, "text"], "(torch.float32, None, 'text')"),
        (Settings(0.1, cache="of this process"), "Settings(rate=0.1)"),
        (Settings, "Settings"),
        ({"loss": nn.MSELoss(reduction="sum")}, "loss=MSELoss(reduction='sum')"),
        (nn.LazyLinear(2), "LazyLinear(in_features=0, out_features=2, bias=True)"),
        (object(), "object"),
    ],
)
def test_settings_are_shown_by_what_they_consist_of(value: object, text: str) -> None:
    """What has no parts that can be compared is shown by its class."""
    assert describe_value(value) == text


IN_NEW_PROCESS = "from pa_distributed._comparison import digest; print(digest({'one': 'text', 'other': '\\udcff'}))"


def test_a_digest_is_the_same_in_each_process() -> None:
    """It depends neither on the seed of Python's hashes nor on the order of the texts, and takes any text."""
    new = subprocess.run([sys.executable, "-c", IN_NEW_PROCESS], capture_output=True, text=True, check=True)
    assert new.stdout.strip() == str(digest({"other": "\udcff", "one": "text"}))


def test_a_digest_is_exact_in_single_precision() -> None:
    """It can travel with other numbers, whatever their dtype."""
    for number in range(200):
        numbers = digest({"number": str(number)})
        assert torch.tensor(numbers, dtype=torch.float32).tolist() == numbers


@pytest.mark.runs_on("two_ranks")
def test_a_digest_travels_with_what_is_exchanged_anyway() -> None:
    """The caller exchanges it; texts follow only where it differs."""
    sent: list[torch.Tensor] = []

    def exchange(numbers: list[int]) -> list[list[float]]:
        sent[:] = [torch.zeros(1 + len(numbers)) for _ in range(dist.get_world_size())]
        dist.all_gather(sent, torch.tensor([1.5, *numbers]))
        return [one[1:].tolist() for one in sent]

    require_same({"same": "text"}, exchange)
    assert [one[0].item() for one in sent] == [1.5, 1.5]
    with pytest.raises(RanksDifferError, match=r"rank: 0 on rank 0, 1 on rank 1"):
        require_same({"rank": dist.get_rank()}, exchange)


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
    with pytest.raises(RanksDifferError, match=r"the same: optimizer, lr: 0\.1 on rank 0, 1\.1 on rank 1\. Find"):
        require_same({"module": module, "optimizer": optimizer})
