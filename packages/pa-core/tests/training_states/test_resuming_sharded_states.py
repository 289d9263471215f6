"""States that were saved in pieces are resumed from in plain and in sharded runs, on any number of processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, CheckpointError, Trainer, TrainerCallback
from pa_core.model_tensors import is_sharded
from pa_core.training_state.saved_runs import find_saved_run
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


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize(
    ("make_optimizer", "processes"), [(adamw, None), (Factored, None), (Factored, 3), (with_momentum, 3)]
)
def test_a_sharded_run_goes_on_from_a_plain_state_and_from_other_pieces(
    shared_tmp_path: Path, make_optimizer: MakeOptimizer, processes: int | None
) -> None:
    """It ends as the run does that was not interrupted, whether that was sharded or not."""
    path = shared_tmp_path / "plain"
    expected = run(tiny_transformer(), make_optimizer, path)
    if processes is not None:
        path = shared_tmp_path / "pieces"
        if dist.get_rank() == 0:
            split_state(shared_tmp_path / "plain", path, processes)
    resumed = run(sharded(tiny_transformer(seed=5)), make_optimizer, shared_tmp_path / "other", resume_from=path)
    torch.testing.assert_close(whole_state(resumed), whole_state(expected), rtol=0, atol=1e-12)


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("make_optimizer", [adamw, with_momentum, Factored])
def test_a_sharded_run_goes_on_to_the_last_bit(shared_tmp_path: Path, make_optimizer: MakeOptimizer) -> None:
    """On as many processes as before, the weights and the state of the optimizer are those of a run without a break."""
    expected = run(sharded(tiny_transformer()), make_optimizer, shared_tmp_path / "state")
    path = shared_tmp_path / "state"
    resumed = run(sharded(tiny_transformer(seed=5)), make_optimizer, shared_tmp_path / "other", resume_from=path)
    torch.testing.assert_close(whole_state(resumed), whole_state(expected), rtol=0, atol=0)


@pytest.mark.runs_on("two_ranks")
@pytest.mark.parametrize("make_optimizer", [adamw, with_momentum])
def test_a_plain_run_goes_on_from_a_sharded_one(shared_tmp_path: Path, make_optimizer: MakeOptimizer) -> None:
    """Replicated on the same processes, it ends as the sharded run does that was not interrupted."""
    expected = run(sharded(tiny_transformer()), make_optimizer, shared_tmp_path / "state")
    path = shared_tmp_path / "state"
    resumed = run(tiny_transformer(seed=5), make_optimizer, shared_tmp_path / "other", resume_from=path)
    torch.testing.assert_close(whole_state(resumed), whole_state(expected), rtol=0, atol=1e-12)


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
