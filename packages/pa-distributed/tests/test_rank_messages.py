"""Messages between processes that no main thread waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from pa_distributed import OtherProcessError, RankMessages, _rank_messages, gather_objects, run_while_others_wait
from pa_distributed._signs import Sign, Signs
from pa_distributed._torch import store_of_processes

pytestmark = pytest.mark.runs_on("two_ranks")


def test_a_message_reaches_the_other_process_while_its_main_thread_is_in_a_collective() -> None:
    """Each thing that processes do together has its own messages, which may have the same names."""
    received: list[str] = []
    boxes = [RankMessages(), RankMessages()]

    def exchange() -> None:
        other = 1 - dist.get_rank()
        for box in reversed(boxes):
            box.post(f"from {box.rank}", f"{boxes.index(box)} of {box.num_processes}")
            received.append(box.wait_for(f"from {other}", other))

    thread = threading.Thread(target=exchange)
    thread.start()
    dist.barrier()
    thread.join()
    assert received == ["1 of 2", "0 of 2"]


@pytest.fixture
def silent_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The second process has given a sign of life, and gives no more."""
    shared = store_of_processes()
    monkeypatch.setattr(_rank_messages, "store_of_processes", lambda: PrefixStore("silent", shared))
    monkeypatch.setattr(_rank_messages, "_SECONDS_UNTIL_GONE", 0.5)
    if dist.get_rank() == 1:
        Signs(PrefixStore("silent/pa_distributed/watch", shared), 1, 2).post(Sign(beat=3, run=1))
    dist.barrier()
    yield
    dist.barrier()


def wait_for_receipt(box: RankMessages) -> str:
    """Wait for a message of the second process."""
    return box.wait_for("receipt", 1)


@pytest.mark.usefixtures("silent_process")
@pytest.mark.parametrize("wait", [wait_for_receipt, RankMessages.wait_for_all])
def test_a_process_that_is_gone_is_not_waited_for(wait: Callable[[RankMessages], object]) -> None:
    """Whoever waits for it gives up, and names it."""
    box = RankMessages()
    if dist.get_rank() == 0:
        with pytest.raises(OtherProcessError, match="rank 1, which has sent no heartbeat"):
            wait(box)


def test_a_process_that_leaves_is_not_waited_for() -> None:
    """The others learn of it; where all come, none of them does, whatever happened before."""
    box = RankMessages()
    if dist.get_rank() == 0:
        with pytest.raises(OtherProcessError, match="rank 1, which has raised an error"):
            box.wait_for_all()
    else:
        box.leave()
    again = RankMessages()
    again.wait_for_all()
    again.leave()


def test_what_takes_long_on_one_process_fails_on_all_if_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait without an exchange, which begins when all is done; what one of them raises, all raise."""
    done, exchanged = list[float](), list[float]()

    def exchange(one: object) -> list[object]:
        exchanged.append(time.monotonic())
        return gather_objects(one)

    monkeypatch.setattr(_rank_messages, "gather_objects", exchange)

    def act() -> None:
        time.sleep(0.3)
        done.append(time.monotonic())

    run_while_others_wait(act if dist.get_rank() == 0 else None)
    assert gather_objects(exchanged)[1][0] >= gather_objects(done)[0][0]

    def fail() -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        run_while_others_wait(fail if dist.get_rank() == 1 else None)


def test_what_fails_at_once_is_not_waited_for() -> None:
    """The process that has failed does not wait for the others, which learn of it when they are done."""
    box = RankMessages()

    def act() -> None:
        if dist.get_rank() == 1:
            raise ConnectionError
        box.wait_for("the error was raised", 1)

    if dist.get_rank() == 0:
        with pytest.raises(OtherProcessError, match="rank 1, which has raised an error"):
            run_while_others_wait(act, fails_at_once=True)
    else:
        with pytest.raises(ConnectionError):
            run_while_others_wait(act, fails_at_once=True)
        box.post("the error was raised", "")
    run_while_others_wait(lambda: None, fails_at_once=True)
