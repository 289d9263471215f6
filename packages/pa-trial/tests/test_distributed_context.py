"""Which of several processes this one is, and collectives between threads, with and without a process group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch

from pa_distributed import OtherProcessError
from pa_trial import DistributedContext, InternalException

T = TypeVar("T")

ALL_VARIABLES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"]
OTHER_VARIABLES = ["LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "DET_CHIEF_IP", "MASTER_ADDR", "MASTER_PORT"]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of this file bring the variables of a launcher themselves."""
    for name in [*ALL_VARIABLES, *OTHER_VARIABLES]:
        monkeypatch.delenv(name, raising=False)


def numbers_of(context: DistributedContext) -> tuple[int, ...]:
    """The six numbers of a context."""
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    return tuple(getattr(context, name) for name in names)


def context_of(rank: int, size: int, *, machines: int = 1, **options: Any) -> DistributedContext:
    """The context of one of several ranks."""
    per_machine = size // machines
    return DistributedContext(
        rank=rank,
        size=size,
        local_rank=rank % per_machine,
        local_size=per_machine,
        cross_rank=rank // per_machine,
        cross_size=machines,
        **options,
    )


def of_threads(size: int, port: int, use: Callable[[DistributedContext], T], **options: Any) -> list[T]:
    """What a function returns on each of several ranks, which are threads of this process."""

    def run(rank: int) -> T:
        with context_of(rank, size, chief_ip="127.0.0.1", pub_port=port, **options) as context:
            return use(context)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def test_alone() -> None:
    """Without numbers there is one process, for which every collective is trivial, also for what cannot be pickled."""
    unpicklable = threading.Lock()
    context = DistributedContext()
    assert numbers_of(context) == (0, 1, 0, 1, 0, 1)
    assert (context.get_rank(), context.get_local_rank(), context.get_size(), context.get_num_agents()) == (0, 0, 1, 1)
    for gathered in (context.gather, context.allgather, context.gather_local, context.allgather_local):
        assert gathered(unpicklable) == [unpicklable]
    assert context.broadcast(unpicklable) is unpicklable
    assert context.broadcast_local(unpicklable) is unpicklable
    assert context.broadcast_local() is None


@pytest.mark.parametrize(
    "given",
    [
        {"rank": 0},
        {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "cross_rank": 0},
        {"rank": 2, "size": 2, "local_rank": 0, "local_size": 2, "cross_rank": 0, "cross_size": 1},
        {"rank": -1, "size": 2, "local_rank": 0, "local_size": 2, "cross_rank": 0, "cross_size": 1},
    ],
)
def test_numbers_come_together_and_fit(given: dict[str, Any]) -> None:
    """All six numbers or none are passed, each rank below its size; anything else is a ValueError."""
    with pytest.raises(ValueError, match="all six"):
        DistributedContext(**given)


FROM_LAUNCHER: dict[str, tuple[list[str], Callable[..., DistributedContext]]] = {
    "torchrun": (ALL_VARIABLES, DistributedContext.from_torch_distributed),
    "DeepSpeed": (["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"],
                  DistributedContext.from_deepspeed),
}  # fmt: skip


@pytest.mark.parametrize("launcher", FROM_LAUNCHER)
def test_from_the_variables_of_a_launcher(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read; the address of the chief of several machines is passed, or in a variable."""
    names, read = FROM_LAUNCHER[launcher]
    for name, value in zip(names, [5, 8, 1, 4, 1, 2], strict=True):
        monkeypatch.setenv(name, str(value))
    with pytest.raises(AssertionError, match="chief_ip"):
        read()
    assert numbers_of(read(chief_ip="10.0.0.1")) == (5, 8, 1, 4, 1, 2)
    for name in ("MASTER_ADDR", "DET_CHIEF_IP"):
        with monkeypatch.context() as with_address:
            with_address.setenv(name, "10.0.0.1")
            assert numbers_of(read()) == (5, 8, 1, 4, 1, 2)


@pytest.mark.parametrize("given", [{}, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}, {"WORLD_SIZE": "1"}])
def test_missing_variables_mean_one_process(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``accelerate launch`` starts as one plain process is a single process."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert numbers_of(DistributedContext.from_torch_distributed()) == (0, 1, 0, 1, 0, 1)
    assert numbers_of(DistributedContext.from_deepspeed()) == (0, 1, 0, 1, 0, 1)


def test_without_the_variables_of_machines_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK and WORLD_SIZE alone tell of processes of one machine."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert numbers_of(DistributedContext.from_torch_distributed()) == (1, 2, 1, 2, 0, 1)


def test_from_horovod() -> None:
    """Six functions of Horovod are called, and nothing else of it is needed."""
    numbers = {"rank": 5, "size": 8, "local_rank": 1, "local_size": 4, "cross_rank": 1, "cross_size": 2}
    horovod: Any = SimpleNamespace(**{name: lambda value=value: value for name, value in numbers.items()})
    assert numbers_of(DistributedContext.from_horovod(horovod, chief_ip="10.0.0.1")) == (5, 8, 1, 4, 1, 2)


@pytest.mark.parametrize("size", [2, 16])
def test_collectives_between_threads(size: int, free_port: int) -> None:
    """As threads of one process, all ranks exchange values again and again, in the order of the ranks.

    They may come at different times, the chief included.
    """

    def exchange(context: DistributedContext) -> list[Any]:
        rank = context.get_rank()
        time.sleep(0.0 if rank else 0.5)
        results: list[Any] = []
        for turn in range(3):
            tensors = context.allgather(torch.tensor(rank))
            results += [context.gather((turn, rank)), [*map(int, tensors)], context.broadcast(f"{turn} from {rank}")]
        return results

    ranks = list(range(size))
    for rank, results in enumerate(of_threads(size, free_port, exchange)):
        expected: list[Any] = []
        for turn in range(3):
            expected += [[(turn, other) for other in ranks] if rank == 0 else None, ranks, f"{turn} from 0"]
        assert results == expected


def test_collectives_of_each_machine(free_port: int) -> None:
    """The local variants exchange values between the ranks of one machine."""

    def exchange(context: DistributedContext) -> tuple[Any, ...]:
        rank = context.get_rank()
        of_machine = context.allgather_local(rank), context.gather_local(rank), context.broadcast_local(rank)
        return *of_machine, context.allgather(rank)

    assert of_threads(4, free_port, exchange, machines=2) == [
        ([0, 1], [0, 1], 0, [0, 1, 2, 3]),
        ([0, 1], None, 0, [0, 1, 2, 3]),
        ([2, 3], [2, 3], 2, [0, 1, 2, 3]),
        ([2, 3], None, 2, [0, 1, 2, 3]),
    ]


def test_port_offset_keeps_trainings_apart(free_port: int) -> None:
    """Two groups of ranks with the same port and different offsets run side by side."""
    together = threading.Barrier(4)

    def exchange(context: DistributedContext) -> list[str]:
        names = [context.allgather(f"{context.get_rank()}")]
        together.wait(20)
        return [*names[0], *context.allgather("x")]

    with ThreadPoolExecutor(2) as pool:
        groups = [pool.submit(of_threads, 2, free_port, exchange, port_offset=offset) for offset in (0, 7)]
        assert [group.result(60) for group in groups] == [[["0", "1", "x", "x"]] * 2] * 2


def test_a_port_that_is_in_use(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chief of a second training on the same port is told to choose another offset."""
    monkeypatch.setattr("pa_trial.rank_group._SECONDS_UNTIL_FREE", 0.2)

    def exchange(context: DistributedContext) -> None:
        context.allgather(0)
        if context.get_rank() == 0:
            other = context_of(0, 2, pub_port=free_port)
            with pytest.raises(ValueError, match="port_offset"):
                other.allgather(0)

    of_threads(2, free_port, exchange)


def test_a_port_is_free_again(free_port: int) -> None:
    """One group after another can use the same port, whoever of its ranks is closed first."""
    for _ in range(3):
        contexts = [context_of(rank, 3, pub_port=free_port) for rank in range(3)]
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(DistributedContext.broadcast, contexts, range(3))) == [0, 0, 0]
        begin = time.monotonic()
        for context in contexts:
            context.close()
        assert time.monotonic() - begin < 5


def test_a_chief_that_nobody_closes(free_port: int) -> None:
    """Ranks get what the chief has sent also where the chief has gone on without closing its context."""

    def exchange(rank: int) -> list[int]:
        time.sleep(0.3 * rank)
        context = context_of(rank, 3, pub_port=free_port)
        return [context.broadcast(rank), context.broadcast(rank + 1)]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(exchange, range(3))) == [[0, 1]] * 3


def test_a_rank_does_not_join_the_group_before(free_port: int) -> None:
    """A rank that comes to the port while an earlier group still uses it waits for the chief of its own."""
    before, after = ([context_of(rank, 2, pub_port=free_port) for rank in range(2)] for _ in range(2))
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(DistributedContext.allgather, before, "ab")) == [["a", "b"]] * 2
        before[1].close()
        early = pool.submit(after[1].allgather, "d")
        time.sleep(0.3)
        before[0].close()
        assert after[0].allgather("c") == ["c", "d"]
        assert early.result(20) == ["c", "d"]
    for context in after:
        context.close()


def test_after_close() -> None:
    """A closed context can be closed again, and tells its numbers; its collectives raise an error that says so."""
    context = DistributedContext()
    context.close()
    context.close()
    assert context.get_size() == 1
    for collective in (context.gather, context.allgather, context.broadcast, context.broadcast_local):
        with pytest.raises(InternalException, match="closed"):
            collective(1)


def test_a_rank_that_has_left_is_not_waited_for(free_port: int) -> None:
    """Where one rank has closed its context, the others learn of it instead of waiting for ever."""

    def exchange(context: DistributedContext) -> None:
        context.allgather(0)
        if context.get_rank() == 0:
            with pytest.raises(OtherProcessError, match="has left"):
                context.allgather(0)

    of_threads(2, free_port, exchange)


def test_a_rank_that_never_comes_is_named(free_port: int) -> None:
    """Nobody waits for it longer than ``max_wait_seconds``."""
    context = context_of(0, 2, pub_port=free_port, max_wait_seconds=0.2)
    with pytest.raises(OtherProcessError, match=r"rank 1 has not arrived within 0\.2 seconds"):
        context.allgather(0)


def test_a_value_that_cannot_be_sent_fails_on_all_ranks(free_port: int) -> None:
    """A rank whose value cannot be pickled raises that error; the others raise one that names the rank."""

    def exchange(context: DistributedContext) -> str:
        try:
            context.allgather(threading.Lock() if context.get_rank() == 1 else 0)
        except OtherProcessError as error:
            return str(error)
        except TypeError:
            return "its own"
        return ""

    chief, second, third = of_threads(3, free_port, exchange)
    assert second == "its own"
    assert "on rank 1" in chief
    assert "on rank 1" in third


@pytest.mark.runs_on("two_ranks")
def test_collectives_over_the_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that torch has connected need no port, for one context after another and for several at a time."""
    rank = torch.distributed.get_rank()
    monkeypatch.setattr("pa_trial.rank_group._store_of_chief", None)
    first, second = context_of(rank, 2), context_of(rank, 2)
    assert first.allgather(rank) == [0, 1]
    assert second.broadcast(f"from {rank}") == "from 0"
    assert first.gather(bytes(20_000_000)) == ([bytes(20_000_000)] * 2 if rank == 0 else None)
    first.close()
    assert second.allgather_local(bytes(rank)) == [b"", b"\0"]
    second.close()
    with context_of(rank, 2) as third:
        time.sleep(0.6 * rank)
        assert third.allgather(rank) == [0, 1]
