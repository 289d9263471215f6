"""What one process does for all, or before the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist

from pa_distributed import (
    OtherProcessError,
    gather_objects,
    in_rank_local_block,
    rank_local,
    rank_zero_first,
    rank_zero_only,
)


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("local", [False, True])
def test_one_process_runs_it_and_the_others_have_waited(shared_tmp_path: Path, local: bool) -> None:
    """What it calls may be decorated too; there, nobody waits again."""
    file = shared_tmp_path / f"written {local}"

    @rank_zero_only(local=local)
    def write() -> str:
        assert in_rank_local_block()
        return rank_zero_only()(lambda: "once")() or ""

    @rank_zero_only(local=local)
    def prepare() -> str:
        file.write_text(write() or "")
        return "prepared"

    returned = prepare()
    assert file.read_text() == "once"
    assert gather_objects(returned) == ["prepared", None][: len(gather_objects(None))]
    assert not in_rank_local_block()


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
        with rank_local(), rank_zero_first():
            assert rank_zero_only()(lambda: "not here")() is None
    assert gather_objects(dist.get_rank()) == [0, 1]


def test_processes_that_are_not_connected_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher has started several, which it says by a variable, and each would act as if it were alone."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"Call torch\.distributed\.init_process_group\(\) before\."):
        gather_objects(1)
