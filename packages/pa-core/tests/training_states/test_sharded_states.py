"""States of sharded models: what each process writes, and that a run goes on from them to the last bit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_checkpoint import Folder, load
from pa_checkpoint._manifest import read_manifest
from pa_core import AnyTrainer, CheckpointError, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core._tensors import is_sharded, whole_tensor
from pa_core.training_state.saved_runs import find_saved_run
from tests.support.disks import full_disk
from tests.support.pa_core.training_states.small_runs import make_trainer, train
from tests.support.sharded_models import sentences, sharded, tiny_transformer, whole_weights
from tests.support.sharded_states import split_state


class SaveAt(TrainerCallback):
    """Saves a state after the step that follows a number of updates."""

    def __init__(self, path: Path, update: int) -> None:
        self.path, self.update = path, update

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        if trainer.num_updates_completed == self.update:
            trainer.save_training_state(self.path, sequence=self.update)


class SaveAgainAt(SaveAt):
    """The second one of a run."""


@pytest.mark.parametrize("processes", [1, 3])
def test_a_plain_run_goes_on_from_pieces_to_the_last_bit(tmp_path: Path, processes: int) -> None:
    """Weights, buffers and the state of the optimizer that were saved in pieces are whole in a plain run."""
    whole = train(make_trainer(SaveAt(tmp_path / "plain", 10)))
    split_state(tmp_path / "plain", tmp_path / "pieces", processes)
    resumed = make_trainer(SaveAt(tmp_path / "other", 10), seed=5)
    assert train(resumed, resume_from=tmp_path / "pieces") == whole


MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]


def with_momentum(parameters: list[nn.Parameter]) -> Optimizer:
    """Momentum is missing until the first step."""
    return SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: list[nn.Parameter]) -> Optimizer:
    """Two tensors for each parameter, and a count."""
    return AdamW(parameters, lr=0.01)


class Factored(Optimizer):
    """Keeps a mean for each row and one for each column, and a count with a dimension, as Adafactor-like ones do."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @override
    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            squares = parameter.grad.square() + 1e-8
            means = {"rows": squares.mean(-1, keepdim=True), "columns": squares.mean(0, keepdim=True)}
            means = (
                {name: _replicated_sum(mean) for name, mean in means.items()} if squares.dim() > 1 else {"all": squares}
            )
            state = self.state[parameter]
            state.setdefault("step", torch.zeros(1)).add_(1)
            for name, mean in means.items():
                state.setdefault(name, torch.zeros_like(mean)).lerp_(mean, 0.1)
            scale = state["rows"] * state["columns"] if squares.dim() > 1 else state["all"].square()
            parameter.data -= 0.01 * parameter.grad / (scale.sqrt().sqrt() + float(state["step"]))


def _replicated_sum(mean: Tensor) -> Tensor:
    """A mean of which each process has all, where it was made of what each has."""
    if not is_sharded(mean) or not mean.placements[0].is_partial():
        return mean
    from torch.distributed.tensor import Replicate

    return mean.redistribute(placements=[Replicate()])


DATA = TensorDataset(*sentences(54))


def run(model: nn.Module, make_optimizer: MakeOptimizer, path: Path, **options: Any) -> Trainer:
    """Train for five updates of 12 samples, the last of 6, and save a state after the second."""
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), make_optimizer(list(model.parameters())), callbacks=[SaveAt(path, 2)]
    )
    trainer.train(DATA, 1, per_device_batch_size=6, **options)
    assert trainer.num_updates_completed == 5
    return trainer


def whole_state(trainer: Trainer) -> dict[str, Tensor]:
    """The weights and the state of the optimizer, put together."""
    state: dict[str, Tensor] = whole_weights(trainer.model)
    for number, entries in trainer.optimizer.state_dict()["state"].items():
        for name, value in entries.items():
            state[f"{number}.{name}"] = value.full_tensor() if is_sharded(value) else value
    return state


def plain(model: nn.Module) -> nn.Module:
    """Leave a model whole on each process."""
    return model


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize(
    ("before", "after", "make_optimizer", "pieces"),
    [
        *((plain, sharded, make, pieces) for make, pieces in ((adamw, 0), (Factored, 3), (with_momentum, 3))),
        *((sharded, sharded, make, 0) for make in (adamw, Factored)),
        (sharded, plain, with_momentum, 0),
        *(
            pytest.param(*row, 0, marks=pytest.mark.more_cases)
            for row in (
                (plain, sharded, Factored),
                (sharded, sharded, with_momentum),
                (sharded, plain, adamw),
            )
        ),
    ],
)
def test_a_run_goes_on_from_a_plain_or_a_sharded_one(
    shared_tmp_path: Path, before: Any, after: Any, make_optimizer: MakeOptimizer, pieces: int
) -> None:
    """It ends as the run does that was not interrupted; split as before, to the last bit."""
    path = shared_tmp_path / "state"
    expected = run(before(tiny_transformer()), make_optimizer, path)
    if pieces:
        path = shared_tmp_path / "pieces"
        if dist.get_rank() == 0:
            split_state(shared_tmp_path / "state", path, pieces)
    resumed = run(after(tiny_transformer(seed=5)), make_optimizer, shared_tmp_path / "other", resume_from=path)
    tolerance = 0.0 if before is after else 1e-12
    torch.testing.assert_close(whole_state(resumed), whole_state(expected), rtol=0, atol=tolerance)


def two_states(folder: Path) -> tuple[Path, Path]:
    """An older and a newer state of a sharded run."""
    older, newer = folder / "older", folder / "newer"
    model = sharded(tiny_transformer())
    callbacks = [SaveAt(older, 1), SaveAgainAt(newer, 2)]
    trainer = Trainer(model, nn.CrossEntropyLoss(), adamw(list(model.parameters())), callbacks=callbacks)
    trainer.train(DATA, 1, per_device_batch_size=6, max_num_train_steps=3)
    return older, newer


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("number", [0, 1])
def test_damage_that_one_process_finds_lets_all_fall_back(shared_tmp_path: Path, number: int) -> None:
    """Each process reads some of the pieces to verify them; whichever finds damage, all resume from the older state."""
    older, newer = two_states(shared_tmp_path)
    damaged = newer / f"models.{number}-of-2.safetensors"
    if dist.get_rank() == 0:
        content = bytearray(damaged.read_bytes())
        content[-1] ^= 1
        damaged.write_bytes(content)
    with pytest.warns(UserWarning, match=f"skipped.*{damaged.name}"):
        saved = find_saved_run(shared_tmp_path)
    assert (saved.path, saved.position.updates) == (older, 2)


@pytest.mark.runs_on("two_ranks")
def test_a_state_that_is_only_on_the_first_machine_is_an_error_on_all(
    shared_tmp_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that one machine has is not given up because another one does not see it."""
    two_states(shared_tmp_path)
    monkeypatch.chdir(shared_tmp_path if dist.get_rank() == 0 else tmp_path)
    with pytest.raises(CheckpointError, match=r"newer.*\(rank 1\)"):
        find_saved_run("newer")


def sharded_trainer(*callbacks: TrainerCallback) -> Trainer:
    """A trainer of a small transformer in two pieces."""
    model = sharded(tiny_transformer())
    return Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=0.01), callbacks=callbacks)


def train_sharded(trainer: Trainer, num_epochs: int = 1) -> None:
    """Five updates an epoch."""
    data = TensorDataset(*sentences(20))
    trainer.train(data, num_epochs, per_device_batch_size=2, eval_dataset=TensorDataset(*sentences(6)))


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_process_writes_its_pieces_and_together_they_are_the_state(
    shared_tmp_path: Path, asynchronous: bool
) -> None:
    """Weights and optimizer state, to the last bit, by the names of the parameters; also after an evaluation."""
    saving = SaveTrainingStateCallback(
        shared_tmp_path, save_every_n_steps=2, max_checkpoints=2, asynchronous=asynchronous
    )
    trainer = sharded_trainer(saving)
    train_sharded(trainer)
    weights = whole_weights(trainer.model)
    states = trainer.optimizer.state_dict()["state"]
    averages = {number: whole_tensor(state["exp_avg_sq"]) for number, state in states.items()}

    assert sorted(entry.name for entry in shared_tmp_path.iterdir()) == ["final", "step_4"]
    files = read_manifest(shared_tmp_path / "final").files
    sizes = {name: entry.bytes for name, entry in files.items()}
    assert 0.8 < sizes["optimizers.0-of-2.safetensors"] / sizes["optimizers.1-of-2.safetensors"] < 1.25
    assert "models.safetensors" not in sizes
    parts = load(shared_tmp_path / "final").parts
    saved, optimizer = parts["models"]["model"]["weights"], parts["optimizers"]["optimizer"]
    assert all(torch.equal(saved[name], weight) for name, weight in weights.items())
    assert all(torch.equal(optimizer["state"]["state"][number]["exp_avg_sq"], one) for number, one in averages.items())
    assert optimizer["parameters"] == [list(weights)]


@pytest.mark.runs_on("two_ranks")
def test_the_page_of_the_format_tells_how_to_put_a_tensor_together(shared_tmp_path: Path) -> None:
    """Its code reads with other tools what the processes wrote."""
    page = Path(__file__).parents[4] / "docs" / "maintainers" / "training-state-format.md"
    code = next(code for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if "def whole" in code)
    names: dict[str, Any] = {}
    exec(code, names)
    trainer = sharded_trainer(SaveTrainingStateCallback(shared_tmp_path))
    train_sharded(trainer)
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


@pytest.mark.runs_on("two_ranks")
def test_a_state_of_its_own_form_is_tried_on_sharded_weights(shared_tmp_path: Path) -> None:
    """Before the first state is saved, an optimizer is asked whether it takes its state back."""
    model = sharded(tiny_transformer())
    optimizer = OptimizerOfItsOwnForm(model.parameters(), lr=0.01)
    saving = SaveTrainingStateCallback(shared_tmp_path)
    train_sharded(Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[saving]))
    saved = load(shared_tmp_path / "final").parts["optimizers"]["optimizer"]["state"]["own"]["state"]
    assert saved[0]["exp_avg"].shape == model.embed.weight.shape


def peak_memory() -> float:
    """The most memory in MiB that this process has used since the peak was forgotten."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


@pytest.mark.runs_on("two_ranks")
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


@pytest.mark.runs_on("two_ranks")
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
    saved = load(shared_tmp_path / "final").parts["models"]["model"]["weights"]
    assert all(torch.equal(saved[name], weight) for name, weight in weights.items())


def save_twice(trainer: Trainer, path: Path, *, asynchronous: bool) -> None:
    """What fails in the background is raised with the next state."""
    for sequence in (2, 3):
        trainer.save_training_state(path, asynchronous=asynchronous, sequence=sequence)


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_process_cannot_write_is_an_error_on_all(shared_tmp_path: Path, rank: int, asynchronous: bool) -> None:
    """The state before stays, nothing of the new one is left, and the next one is written once there is room again."""
    trainer = sharded_trainer(SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=4, save_at_end=False))
    train_sharded(trainer)
    folder = shared_tmp_path
    of_this_process = full_disk(1000) if dist.get_rank() == rank else nullcontext()
    with of_this_process, pytest.raises(CheckpointError, match="could not be written") as caught:
        save_twice(trainer, folder / "late", asynchronous=asynchronous)
    assert "Free some space" in caught.value.do
    assert caught.value.given.startswith("rank 1: ") == (rank == 1)
    dist.barrier()
    assert [entry.name for entry in folder.iterdir() if not entry.name.startswith(".in_use")] == ["step_4"]
    trainer.save_training_state(folder / "late", sequence=4)
    assert [record.problem for record in Folder(folder).records()] == [None, None]


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


@pytest.mark.runs_on("two_ranks")
def test_nobody_waits_for_a_state_that_is_not_begun(shared_tmp_path: Path) -> None:
    """What the first process finds out before it makes a folder ends the run on all processes with the same error."""
    with pytest.raises(CheckpointError, match="There is something else at the path of the new checkpoint"):
        train_sharded(sharded_trainer(SavesTwice(shared_tmp_path)))
    assert [entry.name for entry in shared_tmp_path.iterdir()] == ["taken"]


@pytest.mark.runs_on("two_ranks")
def test_a_folder_that_is_not_the_same_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that save to folders of their own, as on machines that share no disk, hear what is wrong."""
    trainer = sharded_trainer()
    train_sharded(trainer)
    monkeypatch.chdir(tmp_path)  # another one on each process
    with pytest.raises(CheckpointError, match="do not see the same folder") as caught:
        trainer.save_training_state("states/final")
    assert "all machines share" in caught.value.do
