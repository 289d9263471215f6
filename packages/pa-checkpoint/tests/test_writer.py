"""What a hand-written loop relies on when it saves with a writer: alone, in the background, with other processes."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import pa_checkpoint as ckpt
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


def test_the_example_of_the_readme_ends_the_same_however_often_it_is_killed(tmp_path: Path) -> None:
    """Killed at 20 random moments and started again, it ends with the weights of a run that nobody killed."""
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    slow = code.replace("    step += 1\n", "    step += 1\n    __import__('time').sleep(0.01)\n")
    slow = slow.replace("import torch\n", "import torch\n\ntorch.manual_seed(0)\n", 1)
    choice = random.Random(0)
    for folder, kills in (("calm", 0), ("killed", 20)):
        (tmp_path / folder).mkdir()
        for _ in range(kills):
            process = subprocess.Popen([sys.executable, "-c", slow], cwd=tmp_path / folder)
            time.sleep(choice.uniform(1.0, 4.0))
            process.send_signal(signal.SIGKILL)
            process.wait()
        subprocess.run([sys.executable, "-c", slow], cwd=tmp_path / folder, check=True)
    calm, killed = (ckpt.Folder(tmp_path / folder / "checkpoints").newest() for folder in ("calm", "killed"))
    assert calm is not None
    assert killed is not None
    assert calm["step"] == killed["step"] == 100
    assert all(weight.equal(killed["model"][name]) for name, weight in calm["model"].items())


@pytest.fixture
def processes() -> None:
    """The processes have found each other, by the means of torch alone."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")


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
