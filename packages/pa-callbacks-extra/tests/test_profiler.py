"""What a profile of a few updates has, and that nothing is left of it in a run that ends in any way."""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

from pa_callbacks_extra import ProfilerCallback
from pa_core import ConfigurationError, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.testing import make_regression
from tests.support.callbacks import CallAt, FailAt


def train(*callbacks: TrainerCallback, updates: int = 6, **options: Any) -> Trainer[nn.Linear]:
    """Train a linear model, one epoch of so many updates."""
    torch.default_generator.manual_seed(0)
    model = nn.Linear(4, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=callbacks)
    world = dist.get_world_size() if dist.is_initialized() else 1
    trainer.train(make_regression(4 * updates * world), 1, per_device_batch_size=4, **options)
    return trainer


def names_in(trace: Path | None) -> Counter[str]:
    """How often the trace has each name."""
    assert trace is not None
    document = json.loads(trace.read_text())
    return Counter(str(event["name"]) for event in document["traceEvents"] if event.get("ph") == "X")


def assert_no_profiler_runs() -> None:
    """Torch refuses to start a second one."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True):
        pass


@pytest.mark.parametrize(("wait", "active"), [(0, 1), (2, 3)])
def test_the_trace_has_the_updates_that_were_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wait: int, active: int
) -> None:
    """As many steps of the optimizer as there are updates to record; the table at the end names operators."""
    profiler = ProfilerCallback(tmp_path / "new" / "folder", wait=wait, warmup=1, active=active)
    train(profiler, updates=8)
    assert profiler.trace == tmp_path / "new" / "folder" / "rank_0.pt.trace.json"
    names = names_in(profiler.trace)
    assert names["Optimizer.step#SGD.step"] == active
    assert len([name for name in names if name.startswith("ProfilerStep#")]) == active
    out = capsys.readouterr().out
    assert f"Profile of {active} updates, until update {wait + 1 + active}: {profiler.trace}" in out
    assert re.search(rf"^  Optimizer.step#SGD.step +{active} +[\d.]+$", out, re.MULTILINE)
    assert max(len(line) for line in out.splitlines()[1:]) <= 80
    assert_no_profiler_runs()


def test_the_weights_are_those_of_a_run_without_it(tmp_path: Path) -> None:
    """Looking changes nothing."""
    profiled, plain = train(ProfilerCallback(tmp_path, wait=1, warmup=1, active=2)), train()
    assert torch.equal(profiled.get_model().weight, plain.get_model().weight)


def test_a_run_that_ends_within_the_window_writes_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a warning says how many updates it would have taken."""
    profiler = ProfilerCallback(tmp_path, wait=2, warmup=1, active=10)
    with pytest.warns(UserWarning, match=r"after 6 updates, so only 3 of 10 updates .* needs 13"):
        train(profiler)
    assert names_in(profiler.trace)["Optimizer.step#SGD.step"] == 3
    assert "Profile of 3 updates, until update 6" in capsys.readouterr().out
    assert_no_profiler_runs()


@pytest.mark.parametrize("wait", [5, 6, 7])
def test_a_run_that_ends_before_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], wait: int) -> None:
    """Whether it had begun to warm up or not; the trace of an earlier run is not taken for one of this run."""
    profiler = ProfilerCallback(tmp_path, wait=wait, warmup=2)
    with pytest.warns(UserWarning, match=rf"0 of 3 updates .*wait={wait}"):
        train(profiler)
    assert profiler.trace is None
    assert "Profile" not in capsys.readouterr().out
    assert_no_profiler_runs()


@pytest.mark.parametrize("error", [RuntimeError("planted"), KeyboardInterrupt()])
@pytest.mark.parametrize(("after", "recorded"), [(1, None), (3, None), (5, 1), (7, 2)])
def test_nothing_runs_on_after_an_exception(
    tmp_path: Path, error: BaseException, after: int, recorded: int | None
) -> None:
    """Wherever it comes; what was recorded is written, and the next run profiles again."""
    profiler = ProfilerCallback(tmp_path, wait=2, warmup=2, active=2)
    with pytest.raises(type(error)):
        train(FailAt("on_optimizer_step_end", error, after), profiler, updates=8)
    if recorded is None:
        assert profiler.trace is None
    else:
        # The step that failed, if it was in the window, has ended for the optimizer, but not for this callback.
        assert names_in(profiler.trace)["Optimizer.step#SGD.step"] == recorded
    assert_no_profiler_runs()
    train(profiler, updates=8)
    assert names_in(profiler.trace)["Optimizer.step#SGD.step"] == 2


def test_a_resumed_run_counts_from_where_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its first updates are slow again; a run that was complete is not warned of."""
    states = SaveTrainingStateCallback(tmp_path / "states", save_every_n_steps=1)
    with pytest.raises(RuntimeError, match="planted"):
        train(states, FailAt("on_optimizer_step_end", RuntimeError("planted"), 4), updates=12)

    def resume() -> ProfilerCallback:
        profiler = ProfilerCallback(tmp_path, wait=2, warmup=1, active=2)
        train(profiler, SaveTrainingStateCallback(tmp_path / "states"), updates=12, resume_from=tmp_path / "states")
        return profiler

    assert resume().trace is not None
    assert re.search(r"Profile of 2 updates, until update [89]:", capsys.readouterr().out)
    assert resume().trace is None


@pytest.mark.parametrize("arguments", [{"wait": -1}, {"warmup": 0}, {"active": 0}, {"active": 1.5}])
def test_numbers_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    """When the callback is made, with its name."""
    with pytest.raises(ConfigurationError, match=next(iter(arguments))):
        ProfilerCallback(**arguments)


def test_a_trace_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """Torch only logs it."""
    folder = tmp_path / "profile"
    with pytest.raises(OSError, match=r"could not be written to .*rank_0"):
        train(
            ProfilerCallback(folder, wait=1, warmup=1, active=1),
            CallAt("on_train_epoch_start", lambda _: folder.rmdir()),
        )
    assert_no_profiler_runs()


@pytest.mark.runs_on("two_ranks")
def test_each_process_writes_its_own_trace(shared_tmp_path: Path) -> None:
    """With what this process has done."""
    profiler = ProfilerCallback(shared_tmp_path, wait=1, warmup=1, active=2)
    train(profiler)
    assert profiler.trace == shared_tmp_path / f"rank_{dist.get_rank()}.pt.trace.json"
    assert names_in(profiler.trace)["Optimizer.step#SGD.step"] == 2


@pytest.mark.needs_cuda
def test_on_cuda_kernels_and_allocations_are_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trace has what the device did, the snapshot has allocations with the lines that made them."""
    profiler = ProfilerCallback(tmp_path, wait=1, warmup=1, active=2)
    train(profiler)
    assert profiler.trace is not None
    kinds = {event.get("cat") for event in json.loads(profiler.trace.read_text())["traceEvents"]}
    assert "kernel" in kinds
    assert "CUDA, ms" in capsys.readouterr().out
    snapshot = pickle.loads((tmp_path / "rank_0.memory.pickle").read_bytes())
    assert any(entry["action"] == "alloc" and entry["frames"] for trace in snapshot["device_traces"] for entry in trace)
    noted = allocations_noted()
    train(updates=2)
    assert allocations_noted() == noted


def allocations_noted() -> int:
    """How many allocations torch remembers."""
    memory: Any = torch.cuda.memory  # documented, and not typed
    return sum(map(len, memory._snapshot()["device_traces"]))
