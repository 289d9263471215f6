"""What one process does for the others, and what all have to have in common."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

from pa_distributed import (
    OtherProcessError,
    RanksDifferError,
    apart,
    gather_objects,
    is_apart,
    rank_zero_first,
    rank_zero_only,
    require_same,
)
from pa_distributed._comparison import differences
from tests.launching import Launch


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("local", [False, True])
def test_one_process_runs_it_and_the_others_have_waited(shared_tmp_path: Path, local: bool) -> None:
    """What it calls may be decorated too; there, nobody waits again."""
    file = shared_tmp_path / f"written {local}"

    @rank_zero_only(local=local)
    def write() -> str:
        assert is_apart()
        return rank_zero_only()(lambda: "once")() or ""

    @rank_zero_only(local=local)
    def prepare() -> str:
        file.write_text(write() or "")
        return "prepared"

    returned = prepare()
    assert file.read_text() == "once"
    assert gather_objects(returned) == ["prepared", None][: len(gather_objects(None))]
    assert not is_apart()


@pytest.mark.runs_on("one_process", "two_ranks")
def test_the_first_process_goes_before_the_others(shared_tmp_path: Path) -> None:
    """As a block and as a decorator."""
    file = shared_tmp_path / "cache"
    with rank_zero_first():
        found = file.exists()
        file.touch()
    assert gather_objects(found) == [False, True][: len(gather_objects(None))]

    @rank_zero_first(local=True)
    def load() -> bool:
        found = file.with_name("loaded").exists()
        file.with_name("loaded").touch()
        return found

    assert gather_objects(load()) == [False, True][: len(gather_objects(None))]


@pytest.mark.runs_on("two_ranks")
def test_the_others_learn_of_a_failure_and_not_of_a_request() -> None:
    """Where the first process fails, nobody waits for it."""

    def end(error: BaseException) -> None:
        raise error

    raised = ValueError if dist.get_rank() == 0 else OtherProcessError
    with pytest.raises(raised):
        rank_zero_only()(end)(ValueError())
    if dist.get_rank() == 0:
        with pytest.raises(KeyError):
            rank_zero_only(no_failure=(KeyError,))(end)(KeyError())
    else:
        assert rank_zero_only(no_failure=(KeyError,))(end)(KeyError()) is None


@pytest.mark.runs_on("two_ranks")
def test_a_block_that_only_one_process_runs_waits_for_nobody() -> None:
    """Whatever is decorated in it."""
    if dist.get_rank() == 1:
        with apart(), rank_zero_first():
            assert rank_zero_only()(lambda: "not here")() is None
    assert gather_objects(dist.get_rank()) == [0, 1]


def test_processes_that_are_not_connected_are_told(launch: Launch) -> None:
    """A launcher has started several, and each would act as if it were alone."""
    ended = launch("from pa_distributed import gather_objects; gather_objects(1)", ranks=2)
    assert ended.status != 0
    assert "Call torch.distributed.init_process_group() before." in ended.output


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
