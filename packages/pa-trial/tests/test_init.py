"""The ``with`` block of a training: how it begins, what it seeds and warns of, and how it ends."""

from __future__ import annotations

import os
import random
import socket
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist

import pa_trial
from pa_trial.collectives import num_processes
from tests.launching import Launch, free_port
from tests.support.pa_trial.loaded import seed_all


def draws() -> tuple[float, float, float]:
    """One number of each generator."""
    return random.random(), float(np.random.rand()), torch.rand(()).item()


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_seed_seeds_all_generators() -> None:
    """With a seed, Python, NumPy and torch draw the same numbers again on each process, and the context tells it."""
    with pa_trial.init(seed=7) as context:
        first = draws()
        assert context.get_trial_seed() == 7
        assert context.distributed.allgather(first) == [first] * num_processes()
    with pa_trial.init(seed=7):
        assert draws() == first
    with pa_trial.init(seed=8):
        assert draws() != first


def test_without_a_seed_nothing_is_seeded() -> None:
    """Nor before a block that is not entered; asking for the seed is an InternalException."""
    seed_all(1)
    expected = draws()
    seed_all(1)
    pa_trial.init(seed=3)
    with pa_trial.init() as context:
        assert draws() == expected
        with pytest.raises(pa_trial.InternalException, match=r"init\(seed=0\)"):
            context.get_trial_seed()


def test_invalid_hyperparameters_end_the_program_in_order(caplog: pytest.LogCaptureFixture) -> None:
    """An InvalidHP that leaves the block becomes an exit with status 0; the reason is logged."""
    reason = pa_trial.InvalidHP("9 layers are too many")
    with pytest.raises(SystemExit) as caught, pa_trial.init() as context:
        raise reason
    assert caught.value.code == 0
    assert "9 layers are too many" in caplog.text
    with pytest.raises(pa_trial.InternalException):
        context.set_stop_requested(True)


def test_other_errors_leave_the_block_as_they_are() -> None:
    """Whatever else is raised in the block comes out of it, and the context has ended all the same."""
    error = KeyError("x")
    with pytest.raises(KeyError) as caught, pa_trial.init() as context:
        raise error
    assert caught.value is error
    with pytest.raises(pa_trial.InternalException):
        context.set_stop_requested(True)


LAUNCH_SETTINGS = {
    "ACCELERATE_MIXED_PRECISION": ("bf16", "use_amp"),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ("4", "aggregation_frequency"),
    "ACCELERATE_USE_FSDP": ("true", "FSDP"),
    "ACCELERATE_USE_DEEPSPEED": ("1", "DEEPSPEED"),
    "ACCELERATE_USE_MEGATRON_LM": ("true", "MEGATRON_LM"),
    "ACCELERATE_DYNAMO_BACKEND": ("INDUCTOR", r"torch\.compile"),
}


@pytest.mark.parametrize("name", LAUNCH_SETTINGS)
def test_settings_of_accelerate_without_effect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``accelerate launch`` was asked for and a trial does not do is warned of, at the line of ``init``."""
    value, text = LAUNCH_SETTINGS[name]
    monkeypatch.setenv(name, value)
    with pytest.warns(UserWarning, match=text) as caught:
        pa_trial.init().__enter__()
    assert [warning.filename for warning in caught] == [__file__]


def test_defaults_of_accelerate_are_not_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain ``accelerate launch`` sets some of its variables too."""
    plain = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO", "ACCELERATE_USE_FSDP": "false"}
    plain["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = "1"
    for name, value in plain.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pa_trial.init().__enter__()


def test_blocks_follow_and_enclose_each_other() -> None:
    """Each has a context of its own."""
    with pa_trial.init(hparams={"lr": 1}) as outer:
        for lr in (2, 3):
            with pa_trial.init(hparams={"lr": lr}) as inner:
                assert (outer.get_hparam("lr"), inner.get_hparam("lr")) == (1, lr)
        assert outer.distributed.allgather(outer.get_hparam("lr")) == [1]


def test_processes_that_nothing_connects_cannot_train() -> None:
    """A context of two processes can be made for one of them alone, and training says what is missing."""
    distributed = pa_trial.DistributedContext(rank=0, size=2, local_rank=0, local_size=2, cross_rank=0, cross_size=1)
    with pa_trial.init(distributed=distributed) as context:
        assert context.distributed is distributed
        with pytest.raises(RuntimeError, match="torchrun"):
            context._run_parts()  # pyright: ignore[reportPrivateUsage]  # what fit calls first


def test_a_rank_is_needed_beside_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was told of others, but not which of them it is, does not train alone."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="WORLD_SIZE=2 without RANK"):
        pa_trial.init().__enter__()


SCRIPT = """
import os
import torch.distributed as dist
import pa_trial

at_first = pa_trial.DistributedContext.from_torch_distributed()
rank = at_first.get_rank()
assert at_first.allgather(rank) == [0, 1]
assert not dist.is_initialized()
with pa_trial.init(hparams={"global_batch_size": 8}, seed=3) as context:
    assert (dist.get_world_size(), dist.get_rank(), dist.get_backend()) == (2, rank, "gloo")
    distributed = context.distributed
    assert (distributed.get_rank(), distributed.get_local_rank()) == (rank, int(os.environ["LOCAL_RANK"]))
    assert distributed.allgather_local(rank) == [0, 1]
    assert at_first.gather(rank) == ([0, 1] if rank == 0 else None)
    assert context.get_per_slot_batch_size() == 4
at_first.close()
with pa_trial.init(distributed=pa_trial.DistributedContext.from_torch_distributed()) as context:
    assert context.distributed.broadcast(rank) == 0
try:
    pa_trial.init(distributed=pa_trial.DistributedContext()).__enter__()
except ValueError as error:
    assert "size=2" in str(error), error
print(f"rank {rank} is done\\n", end="")
"""


def test_processes_of_torchrun_are_found(launch: Launch) -> None:
    """``init`` connects what torchrun has started; a DistributedContext works before that, and needs no port."""
    launched = launch(SCRIPT, ranks=2)
    assert launched.status == 0
    assert {"rank 0 is done", "rank 1 is done"} <= set(launched.output.splitlines())


def test_processes_of_mpi_are_connected(launch: Launch) -> None:
    """They are told which of several they are by variables of other names."""
    script = "import pa_trial\nwith pa_trial.init() as context:\n    print(context.distributed.allgather('here'))"
    mpi = {"OMPI_COMM_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def start(rank: int) -> str:
        return launch(script, env={**mpi, "OMPI_COMM_WORLD_RANK": str(rank), "ACCELERATE_USE_CPU": "true"}).output

    with ThreadPoolExecutor() as pool:
        assert [*pool.map(start, range(2))] == ["['here', 'here']\n"] * 2


@pytest.mark.runs_on("two_ranks")
def test_machines_are_told_apart_without_the_variables_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes that something else than torchrun has started, their hosts tell which ones share a machine."""
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    rank, group = dist.get_rank(), dist.group.WORLD
    with pa_trial.init() as context:
        assert (context.distributed.get_local_rank(), context.distributed.get_num_agents()) == (rank, 1)
        assert (context.distributed.get_rank(), context.distributed.get_size()) == (rank, 2)
        assert dist.group.WORLD is group  # that which the script has made
    monkeypatch.setattr(socket, "gethostname", lambda: f"host{rank}")
    monkeypatch.setenv("MASTER_ADDR", os.environ.get("MASTER_ADDR", "127.0.0.1"))
    with pa_trial.init() as context:
        assert (context.distributed.get_local_rank(), context.distributed.get_num_agents()) == (0, 2)
        assert context.distributed.allgather_local(rank) == [rank]
