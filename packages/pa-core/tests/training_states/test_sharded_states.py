"""Training states of a model that is sharded: each process writes its pieces, and the state is whole or not there."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, AdamW
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_checkpoint._manifest import read_manifest
from pa_core import AnyTrainer, CheckpointError, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.model_tensors import whole_tensor
from pa_core.storage import StateFolder, read_state
from tests.support.disks import full_disk
from tests.support.sharded_models import sentences, sharded, tiny_transformer, whole_weights

pytestmark = pytest.mark.runs_on("two_ranks")


def make_trainer(*callbacks: TrainerCallback) -> Trainer:
    """A trainer of a small transformer in two pieces."""
    model = sharded(tiny_transformer())
    return Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=0.01), callbacks=callbacks)


def train(trainer: Trainer, num_epochs: int = 1) -> None:
    """Five updates an epoch."""
    data = TensorDataset(*sentences(20))
    trainer.train(data, num_epochs, per_device_batch_size=2, eval_dataset=TensorDataset(*sentences(6)))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_process_writes_its_pieces_and_together_they_are_the_state(
    shared_tmp_path: Path, asynchronous: bool
) -> None:
    """Weights and optimizer state, to the last bit, by the names of the parameters; also after an evaluation."""
    saving = SaveTrainingStateCallback(
        shared_tmp_path, save_every_n_steps=2, max_checkpoints=2, asynchronous=asynchronous
    )
    trainer = make_trainer(saving)
    train(trainer)
    weights = whole_weights(trainer.model)
    states = trainer.optimizer.state_dict()["state"]
    averages = {number: whole_tensor(state["exp_avg_sq"]) for number, state in states.items()}

    assert sorted(entry.name for entry in shared_tmp_path.iterdir()) == ["final", "step_4"]
    files = read_manifest(shared_tmp_path / "final").files
    sizes = {name: entry.bytes for name, entry in files.items()}
    assert 0.8 < sizes["optimizers.0-of-2.safetensors"] / sizes["optimizers.1-of-2.safetensors"] < 1.25
    assert "models.safetensors" not in sizes
    parts = read_state(shared_tmp_path / "final").parts
    saved, optimizer = parts["models"]["model"]["weights"], parts["optimizers"]["optimizer"]
    assert all(torch.equal(saved[name], weight) for name, weight in weights.items())
    assert all(torch.equal(optimizer["state"]["state"][number]["exp_avg_sq"], one) for number, one in averages.items())
    assert optimizer["parameters"] == [list(weights)]


def test_the_page_of_the_format_tells_how_to_put_a_tensor_together(shared_tmp_path: Path) -> None:
    """Its code reads with other tools what the processes wrote."""
    page = Path(__file__).parents[4] / "docs" / "maintainers" / "training-state-format.md"
    code = next(code for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if "def whole" in code)
    names: dict[str, Any] = {}
    exec(code, names)
    trainer = make_trainer(SaveTrainingStateCallback(shared_tmp_path))
    train(trainer)
    weights = whole_weights(trainer.model)
    state = shared_tmp_path / "final"
    documents = json.loads((state / "state.json").read_text())["models"]["model"]["weights"]
    assert all(torch.equal(names["whole"](state, documents[name]), weight) for name, weight in weights.items())


class OptimizerOfItsOwnForm(AdamW):
    """Keeps its state as no other does."""

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"own": super().state_dict()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict["own"])


def test_a_state_of_its_own_form_is_tried_on_sharded_weights(shared_tmp_path: Path) -> None:
    """Before the first state is saved, an optimizer is asked whether it takes its state back."""
    model = sharded(tiny_transformer())
    optimizer = OptimizerOfItsOwnForm(model.parameters(), lr=0.01)
    saving = SaveTrainingStateCallback(shared_tmp_path)
    train(Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[saving]))
    saved = read_state(shared_tmp_path / "final").parts["optimizers"]["optimizer"]["state"]["own"]["state"]
    assert saved[0]["exp_avg"].shape == model.embed.weight.shape


def peak_memory() -> float:
    """The most memory in MiB that this process has used since the peak was forgotten."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_writing_takes_no_memory_beyond_the_pieces(shared_tmp_path: Path) -> None:
    """Nothing is gathered, and nothing copied: the peak on each process is less than a piece of one weight."""
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(4096, 2048)  # 16 MiB for each process
    fully_shard(model)
    optimizer = SGD(model.parameters(), lr=0.01)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[])
    trainer.train(TensorDataset(torch.randn(2, 4096), torch.arange(2)), 1, per_device_batch_size=1)
    trainer.save_training_state(shared_tmp_path / "first")  # what torch allocates once

    Path("/proc/self/clear_refs").write_text("5")
    before = peak_memory()
    trainer.save_training_state(shared_tmp_path / "second")
    assert peak_memory() - before < 8


class LargeFrozenLayer(nn.Sequential):
    """A megabyte for each process that is not trained."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 512), nn.Linear(512, 1024), nn.Linear(1024, 3))
        self[1].requires_grad_(False)


def test_each_process_links_what_is_frozen(shared_tmp_path: Path) -> None:
    """The pieces of frozen weights are written once for all states; the state says in which files they are."""
    from torch.distributed.fsdp import fully_shard

    model = LargeFrozenLayer()
    fully_shard(model)
    optimizer = AdamW([one for one in model.parameters() if one.requires_grad], lr=0.01)
    saving = SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=1)
    data = TensorDataset(torch.randn(12, 4), torch.arange(12) % 3)
    Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[saving]).train(data, 1, per_device_batch_size=2)
    weights = whole_weights(model)

    links = [file.stat().st_nlink for file in (shared_tmp_path / "final").glob("models.constant.?-of-2.safetensors")]
    assert links == [4, 4]  # of three steps and the end
    saved = read_state(shared_tmp_path / "final").parts["models"]["model"]["weights"]
    assert all(torch.equal(saved[name], weight) for name, weight in weights.items())


def save_twice(trainer: Trainer, path: Path, *, asynchronous: bool) -> None:
    """What fails in the background is raised with the next state."""
    for sequence in (2, 3):
        trainer.save_training_state(path, asynchronous=asynchronous, sequence=sequence)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_process_cannot_write_is_an_error_on_all(shared_tmp_path: Path, rank: int, asynchronous: bool) -> None:
    """The state before stays, nothing of the new one is left, and the next one is written once there is room again."""
    trainer = make_trainer(SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=4, save_at_end=False))
    train(trainer)
    folder = shared_tmp_path
    of_this_process = full_disk(1000) if dist.get_rank() == rank else nullcontext()
    with of_this_process, pytest.raises(CheckpointError, match="could not be written") as caught:
        save_twice(trainer, folder / "late", asynchronous=asynchronous)
    assert "Free some space" in caught.value.do
    assert caught.value.given.startswith("rank 1: ") == (rank == 1)
    dist.barrier()
    assert [entry.name for entry in folder.iterdir() if not entry.name.startswith(".in_use")] == ["step_4"]
    trainer.save_training_state(folder / "late", sequence=4)
    assert [record.problem for record in StateFolder(folder).records()] == [None, None]


class SavesTwice(TrainerCallback):
    """Asks for two states at once, the first of which cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update == 3:
            (self.folder / "taken").touch()
            trainer.save_training_state(self.folder / "taken")
            trainer.save_training_state(self.folder / "free")


def test_nobody_waits_for_a_state_that_is_not_begun(shared_tmp_path: Path) -> None:
    """What the first process finds out before it makes a folder ends the run on all processes with the same error."""
    with pytest.raises(CheckpointError, match="There is something else where a checkpoint"):
        train(make_trainer(SavesTwice(shared_tmp_path)))
    assert [entry.name for entry in shared_tmp_path.iterdir()] == ["taken"]


def test_a_folder_that_is_not_the_same_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that save to folders of their own, as on machines that share no disk, hear what is wrong."""
    trainer = make_trainer()
    train(trainer)
    monkeypatch.chdir(tmp_path)  # another one on each process
    with pytest.raises(CheckpointError, match="do not see the same folder") as caught:
        trainer.save_training_state("states/final")
    assert "all machines share" in caught.value.do
