"""Saving at once or in the background, in memory that is used again, and what is left when a process is killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from types import FrameType

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import pa_checkpoint as ckpt
from pa_checkpoint._encoding import Encoded, decode, encode
from pa_checkpoint._writer import BackgroundWriter, HostPool
from tests.launching import Launch
from tests.support.killed_examples import run_undisturbed_and_killed
from tests.support.states import flip, save

README = Path(__file__).parents[1] / "README.md"


def test_a_checkpoint_in_the_background_has_the_values_of_its_moment(tmp_path: Path) -> None:
    """Tensors may change as soon as save returns, and each checkpoint is what was saved."""
    writer, weight = ckpt.Writer(), torch.zeros(1 << 20)
    for step in range(4):
        weight.fill_(step)
        writer.save(tmp_path / f"step_{step}", {"model": {"weight": weight}, "step": step})
    weight.fill_(-1)
    writer.wait()

    for step in range(4):
        saved = ckpt.load(tmp_path / f"step_{step}")
        assert saved["step"] == step
        assert saved["model"]["weight"].eq(step).all()


def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path: Path) -> None:
    """The one before is used, and the warning says which file is damaged."""
    save(tmp_path / "step_1", 1)
    flip(save(tmp_path / "step_2", 2) / "model.safetensors")

    with pytest.warns(UserWarning, match="step_2.*model.safetensors"):
        found = ckpt.Folder(tmp_path).newest()

    assert found is not None
    assert found.path.name == "step_1"


def test_a_failure_in_the_background_is_raised_once_by_the_next_call(tmp_path: Path) -> None:
    """The error names the place; a save that raises it starts nothing; and the writer can be used again."""
    writer = ckpt.Writer()
    (tmp_path / "taken").write_text("something else")
    for raises in (writer.wait, lambda: writer.save(tmp_path / "next", {"step": 2})):
        writer.save(tmp_path / "taken", {"step": 1})
        with pytest.raises(ckpt.CheckpointError, match="taken"):
            raises()
        writer.wait()
    assert not (tmp_path / "next").exists()
    writer.save(tmp_path / "next", {"step": 2})
    writer.wait()
    assert ckpt.load(tmp_path / "next")["step"] == 2


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    """A frozen base under a trained head is one file for all checkpoints, which survives the removal of the first."""
    base, head, writer = torch.randn(1 << 19), torch.zeros(4), ckpt.Writer()
    writer.note({"model": {"base": base, "head": head}})
    for step in range(3):
        head += 1
        writer.save(tmp_path / f"step_{step}", {"model": {"base": base, "head": head}}, blocking=True)
    files = {(tmp_path / f"step_{step}" / "model.constant.safetensors").stat().st_ino for step in range(3)}
    assert len(files) == 1

    ckpt.Folder(tmp_path).keep(newest=1)
    saved = ckpt.load(tmp_path / "step_2")["model"]
    assert saved["base"].equal(base)
    assert saved["head"].eq(3).all()


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.more_cases)])
def test_the_example_of_the_readme_ends_the_same_however_often_it_is_killed(tmp_path: Path, kills: int) -> None:
    """Killed at random moments and started again, it ends with the weights of a run that nobody killed."""
    folders = run_undisturbed_and_killed(README, "step += 1", 0.01, kills=kills, folder=tmp_path)
    calm, killed = (ckpt.Folder(folder / "checkpoints").newest() for folder in folders)
    assert calm is not None
    assert killed is not None
    assert calm["step"] == killed["step"] == 100
    assert all(weight.equal(killed["model"][name]) for name, weight in calm["model"].items())


@pytest.mark.runs_on("two_ranks")
@pytest.mark.usefixtures("processes")
def test_several_processes_save_one_checkpoint(shared_tmp_path: Path) -> None:
    """The first one writes what all have, each its pieces of a sharded tensor, and all return when it is there."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    whole = torch.arange(12.0).reshape(4, 3)
    sharded = distribute_tensor(whole, init_device_mesh("cpu", (2,)), [Shard(0)])
    parts = {"model": {"weight": sharded, "bias": torch.full((3,), float(dist.get_rank()))}}
    for name in ("first", "second"):
        ckpt.save(shared_tmp_path / name, parts)
        saved = ckpt.load(shared_tmp_path / name)
        assert saved["model"]["weight"].equal(whole)
        assert saved["model"]["bias"].eq(0).all()

    lazily = ckpt.load(shared_tmp_path / "second", lazy=True)["model"]["weight"]
    assert isinstance(lazily, ckpt.StoredTensor)
    again = lazily.like(sharded)
    assert isinstance(again, DTensor)
    assert again.to_local().equal(sharded.to_local())


@pytest.mark.runs_on("two_ranks")
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("in_background", [False, True])
def test_what_one_process_cannot_write_is_an_error_on_all(shared_tmp_path: Path, in_background: bool) -> None:
    """No process waits for ever, and the next checkpoint is saved."""
    writer = ckpt.Writer()
    blocked = shared_tmp_path / "blocked"
    if dist.get_rank() == 0:
        blocked.write_text("something else")
    dist.barrier()
    with pytest.raises(ckpt.CheckpointError, match="blocked"):  # noqa: PT012 - by either of the two
        writer.save(blocked, {"step": 1}, blocking=not in_background)
        writer.wait()
    writer.save(shared_tmp_path / "free", {"step": 2}, blocking=not in_background)
    writer.wait()
    assert ckpt.load(shared_tmp_path / "free")["step"] == 2


@pytest.mark.runs_on("two_ranks")
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("failing", [0, 1])
def test_a_value_that_one_process_cannot_store_is_an_error_on_all(shared_tmp_path: Path, failing: int) -> None:
    """Nothing is left of the checkpoint, and nobody waits."""
    value = os.getpid if dist.get_rank() == failing else 1
    with pytest.raises(ckpt.CheckpointError):
        ckpt.save(shared_tmp_path / "values", {"values": {"one": value}})
    dist.barrier()
    assert list(shared_tmp_path.iterdir()) == []


@pytest.mark.parametrize("blocking", [True, False])
def test_a_script_is_told_once_a_checkpoint_is_there(tmp_path: Path, blocking: bool) -> None:
    """By the thread that writes; an error of the function is an error of the writing."""
    writer, told = ckpt.Writer(), list[int]()
    writer.save(
        tmp_path / "step_1", {"step": 1}, blocking=blocking, on_saved=lambda path: told.append(ckpt.load(path)["step"])
    )
    writer.wait()
    assert told == [1]
    with pytest.raises(KeyError, match="mine"):  # noqa: PT012 - by either of the two
        writer.save(tmp_path / "step_2", {"step": 2}, blocking=blocking, on_saved=lambda _: dict[str, int]()["mine"])
        writer.wait()


def test_nothing_is_written_to_a_folder_that_was_lost(tmp_path: Path) -> None:
    """That it was moved is said before anything is written, and in place of the failure that comes of it."""
    folder, writer = tmp_path / "run", ckpt.Writer()
    folder.mkdir()
    with ckpt.FolderLock(folder) as lock:
        writer.save(folder / "step_1", {"step": 1}, lock=lock, blocking=True)
        with pytest.raises(ckpt.CheckpointError, match="moved, replaced or removed"):
            writer.save(folder / "step_2", {"step": 2}, lock=lock, blocking=True, on_saved=lambda _: lose(folder))
        with pytest.raises(ckpt.CheckpointError, match="moved, replaced or removed"):
            writer.save(folder / "step_3", {"step": 3}, lock=lock, blocking=True)
    assert [path.name for path in tmp_path.iterdir()] == ["lost"]


def lose(folder: Path) -> None:
    """Move a folder away, and fail."""
    folder.rename(folder.with_name("lost"))
    raise OSError("nothing is there")


def _threads() -> int:
    return sum(thread.name.startswith("pa_checkpoint") for thread in threading.enumerate())


def _wait(go: threading.Event) -> None:
    assert go.wait(10)


def test_there_is_a_thread_only_while_a_job_runs() -> None:
    """Who never saves in the background has no thread for it, and nobody has one that waits."""
    writer, go = BackgroundWriter(), threading.Event()
    writer.wait()
    assert _threads() == 0

    writer.submit(partial(_wait, go))
    assert _threads() == 1
    go.set()
    writer.wait()
    assert _threads() == 0


class InterruptAt:
    """Sends what Ctrl-C does, before a line of what starts a job."""

    def __init__(self, line: int) -> None:
        self._lines_left = line

    def __call__(self, frame: FrameType, event: str, _argument: object) -> InterruptAt | None:
        """Count the lines, and go on to trace."""
        if not frame.f_code.co_filename.endswith(("pa_checkpoint/_writer.py", "threading.py")):
            return None
        if event == "line":
            self._lines_left -= 1
            if self._lines_left == 0:
                os.kill(os.getpid(), signal.SIGINT)
        return self


def test_an_interrupt_while_a_job_starts_leaves_nothing_half_done() -> None:
    """Wherever it comes, the job then runs once, or not at all, and the writer goes on to work."""
    outcomes: list[list[str]] = []
    tracing_before = sys.gettrace()
    while not outcomes or "not interrupted" not in outcomes[-1]:
        writer, done = BackgroundWriter(), list[str]()
        sys.settrace(InterruptAt(len(outcomes) + 1))
        try:
            writer.submit(partial(done.append, "first"))
            done.append("not interrupted")
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracing_before)
        writer.wait()
        writer.submit(partial(done.append, "second"))
        writer.wait()
        outcomes.append(done)
    assert len(outcomes) > 20
    assert all(outcome in (["second"], ["first", "second"]) for outcome in outcomes[:-1])


def test_the_end_of_the_program_waits_for_the_write(launch: Launch, tmp_path: Path) -> None:
    """What is being written is completed, a failure that nobody was told of is printed, another one is not."""
    script = """
import sys, time
import torch
from pa_checkpoint._writer import BackgroundWriter
from pa_checkpoint._checkpoint import write_checkpoint

def write():
    time.sleep(0.5)
    summary = {"run": "first", "sequence": 1, "update": 1, "epoch": 1, "complete": False}
    write_checkpoint(sys.argv[1], {"model": torch.ones(1000)}, summary)

def fail(text):
    time.sleep(0.1)
    raise OSError(text)

writer, failing, told = BackgroundWriter(), BackgroundWriter(), BackgroundWriter()
told.submit(lambda: fail("This was told."))
try:
    told.wait()
except OSError:
    pass
writer.submit(write)
failing.submit(lambda: fail("Nobody was told."))
print("the program ends")
"""
    launched = launch(script, str(tmp_path / "state"))

    assert launched.status == 0
    assert (tmp_path / "state" / "manifest.json").exists()
    assert "the program ends" in launched.output
    assert "OSError: Nobody was told." in launched.output
    assert "This was told." not in launched.output


def _encoded(**values: object) -> dict[str, Encoded]:
    return {name: encode(value, name) for name, value in values.items()}


def _addresses(snapshot: dict[str, Encoded]) -> dict[str, int]:
    return {name: tensor.data_ptr() for part in snapshot.values() for name, tensor in part.tensors.items()}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.empty(0, 3),
        torch.tensor([1 + 2j]).conj(),
    ],
)
def test_every_kind_of_tensor_can_be_copied(tensor: Tensor) -> None:
    """The copy has the values, the dtype and, when it is decoded, the strides."""
    snapshot = HostPool().copy(_encoded(x=tensor))
    back = decode(snapshot["x"].document, snapshot["x"].tensors)

    assert (back.dtype, back.stride()) == (tensor.dtype, tensor.stride())
    assert back.equal(tensor)


def test_memory_is_used_again() -> None:
    """The second snapshot needs no new memory, unless a tensor has grown; then only that tensor does."""
    pool = HostPool()
    first = _addresses(pool.copy(_encoded(model={"a": torch.ones(8), "b": torch.ones(4)})))
    second = _addresses(pool.copy(_encoded(model={"a": torch.zeros(2, 4), "b": torch.zeros(2)})))
    assert second == first

    snapshot = pool.copy(_encoded(model={"a": torch.ones(3), "b": torch.full((99,), 3.0)}))
    third = _addresses(snapshot)
    assert third["model/a"] == first["model/a"]
    assert third["model/b"] != first["model/b"]
    assert snapshot["model"].tensors["model/b"].equal(torch.full((99,), 3.0))
    assert snapshot["model"].tensors["model/a"].equal(torch.ones(3))


def test_shared_tensors_are_copied_once() -> None:
    """What shares its memory in two parts shares it in the snapshot, and only as long as it does."""
    pool, weight = HostPool(), torch.ones(4)

    shared = _addresses(pool.copy(_encoded(model={"w": weight}, optimizer={"master": weight})))
    assert shared["model/w"] == shared["optimizer/master"]

    apart = pool.copy(_encoded(model={"w": weight}, optimizer={"master": torch.zeros(4)}))
    assert apart["model"].tensors["model/w"].equal(torch.ones(4))
    assert apart["optimizer"].tensors["optimizer/master"].equal(torch.zeros(4))


@pytest.mark.parametrize("is_in_inference_mode", [False, True])
def test_large_tensors_are_copied_by_threads(*, is_in_inference_mode: bool) -> None:
    """The copy is complete when the call returns, whatever the strides are, and again when it is made a second time."""
    pool = HostPool()
    with torch.inference_mode(is_in_inference_mode):
        values = {str(number): torch.randn(1024, 300 + number).T for number in range(6)} | {"small": torch.ones(2)}
        for _ in range(2):
            snapshot = pool.copy(_encoded(model=values))["model"]
            assert all(torch.equal(snapshot.tensors[f"model/{name}"], value) for name, value in values.items())
            for value in values.values():
                value.mul_(2)
    pool.copy(_encoded(model={"0": torch.ones(1024, 300)}))


@pytest.mark.needs_cuda
def test_what_comes_from_cuda_is_pinned_and_complete() -> None:
    """Copies run beside each other, and are complete when the snapshot is handed out."""
    pool, weight = HostPool(), torch.full((1 << 24,), 1.0, device="cuda")
    for value in (2.0, 3.0):
        weight.fill_(value)
        copied = pool.copy(_encoded(x=weight))["x"].tensors["x"]
        weight.zero_()
        assert copied.is_pinned()
        assert copied.eq(value).all()


_SCRIPT = Path(__file__).with_name("kills_during_saving.py")


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_killed_process_costs_no_completed_save(launch: Launch) -> None:
    """After each of 32 kills, the last completed save or a later one is found whole, and nothing broken is seen.

    `nox -s store_kills` kills 500.
    """
    launched = launch(_SCRIPT, "32", "7")

    assert launched.status == 0
    assert "32 kills" in launched.output


@pytest.mark.parametrize("newest", [1, 3])
def test_as_many_checkpoints_stay_as_are_to_be_kept(tmp_path: Path, newest: int) -> None:
    """Also if the last ones are still being written when the others are removed."""
    folder, writer = ckpt.Folder(tmp_path), ckpt.Writer()
    weight = torch.randn(1 << 20)
    for step in range(1, 9):
        weight += 1
        writer.save(folder.path / f"step_{step}", {"weight": weight, "step": step})
        folder.keep(newest=newest)
    writer.wait()
    assert [info.path.name for info in folder.records()] == [f"step_{step}" for step in range(9 - newest, 9)]


def test_nothing_is_removed_for_a_checkpoint_that_is_not_there_in_the_end(tmp_path: Path) -> None:
    """The writing fails, and those that were to be kept beside it stay."""
    folder, writer = ckpt.Folder(tmp_path), ckpt.Writer()
    for step in (1, 2):
        writer.save(folder.path / f"step_{step}", {"step": step}, blocking=True)
    (tmp_path / "step_3").write_text("in the way")
    writer.save(folder.path / "step_3", {"weight": torch.ones(1 << 20)})
    folder.keep(newest=2)
    with pytest.raises(ckpt.CheckpointError, match="something else"):
        writer.wait()
    (tmp_path / "step_3").unlink()
    writer.save(folder.path / "step_3", {"step": 3})
    writer.wait()
    assert [info.path.name for info in folder.records()] == ["step_1", "step_2", "step_3"]
