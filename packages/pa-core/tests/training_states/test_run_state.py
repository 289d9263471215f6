"""What a training state holds of a run with several models; those that accelerate wrote are never unpickled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from pa_checkpoint import load
from pa_core import CheckpointError, Run, SaveTrainingStateCallback, Trainer
from pa_core.testing import make_regression

DATA = TensorDataset(torch.randn(40, 2, generator=torch.Generator().manual_seed(5)))


def two_models(
    seed: int = 0, *, rate: float = 0.1, second: str = "critic", outputs: int = 1, shares: bool = True, **options: Any
) -> Run[Any, Any]:
    """A run of a generator and a critic, whose optimizer also trains the last layer of the generator."""
    torch.manual_seed(seed)
    generator = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 2))
    critic = nn.Linear(2, outputs)
    shared = generator[3].parameters() if shares else ()
    optimizers = {
        "generator": Adam(generator[:2].parameters(), lr=rate),
        second: SGD([*critic.parameters(), *shared], lr=0.1, momentum=0.9),
    }
    schedules = {"generator": partial(StepLR, step_size=2), second: partial(StepLR, step_size=3)}
    options = {"num_epochs": 1, "per_device_batch_size": 4, "create_scheduler_fn": schedules, **options}
    return Run({"generator": generator, second: critic}, optimizers, DATA, **options)


def train(run: Run[Any, Any]) -> Run[Any, Any]:
    """Train both models with draws of their own."""
    generator, critic = run.models.values()
    with run:
        for (inputs,) in run.batches():
            loss = critic(generator(inputs + torch.rand(2) / 10)).square().mean()
            for name in run.models:
                run.backward(loss, model=name, retain_graph=True)
            for name in run.models:
                run.step(name)
    return run


def weights(run: Run[Any, Any]) -> dict[str, Tensor]:
    """Copies of all weights and buffers."""
    return {name: value.clone() for name, value in run.get_model().state_dict().items()}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The state of a run after three updates."""
    train(two_models(max_num_train_steps=3, callbacks=[SaveTrainingStateCallback(tmp_path)]))
    return tmp_path


def test_models_optimizers_and_schedulers_go_on_bit_for_bit(saved: Path) -> None:
    """Also where an optimizer holds parameters of two models, and where models are made with other weights."""
    expected, resumed = train(two_models()), train(two_models(seed=1, resume_from=saved))
    torch.testing.assert_close(weights(resumed), weights(expected), rtol=0, atol=0)
    for name, optimizer in expected.optimizers.items():
        assert str(resumed.optimizers[name].state_dict()) == str(optimizer.state_dict())
        assert resumed.schedulers[name].state_dict() == expected.schedulers[name].state_dict()


def test_another_learning_rate_changes_that_optimizer_alone(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In proportion, and it is named with its optimizer."""
    same, other = train(two_models(resume_from=saved)), train(two_models(rate=0.2, resume_from=saved))
    assert [line.split()[:4] for line in capsys.readouterr().out.splitlines() if "lr" in line] == [
        ["generator,", "group", "0:", "lr"]
    ]
    for name, factor in (("generator", 2), ("critic", 1)):
        rates = [run.optimizers[name].param_groups[0]["lr"] for run in (same, other)]
        assert rates[1] == pytest.approx(factor * rates[0])


OTHER_NAME: dict[str, Any] = {"second": "judge", "resume_allow": ("optimizer", "scheduler")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"second": "judge"}, r"(?s)optimizer=generator: Adam, judge: SGD.*optimizer=generator: Adam, critic: SGD"),
        (OTHER_NAME, r"(?s)another model.*the models generator, judge.*the models generator, critic"),
        ({"outputs": 3}, r"critic, of type Linear: weight: \(1, 2\) in the state, \(3, 2\) in the model"),
        ({"shares": False}, r'(?s)group 0 with critic.weight, critic.bias\n.*generator.3.*allow=\("optimizer",\)'),
    ],
)
def test_a_run_with_other_objects_is_refused_by_name(saved: Path, change: dict[str, Any], message: str) -> None:
    """And where it is a model, no weight of any model was changed."""
    run = two_models(seed=1, resume_from=saved, **change)
    before = weights(run)
    with pytest.raises(CheckpointError, match=message):
        train(run)
    if "shares" not in change:
        torch.testing.assert_close(weights(run), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    "change", [{**OTHER_NAME, "resume_allow": ("model", "optimizer", "scheduler")}, {"outputs": 3}]
)
def test_what_still_matches_is_taken_over_where_that_is_allowed(saved: Path, change: dict[str, Any]) -> None:
    """The model that is the same gets its weights, and optimizers begin anew."""
    options: dict[str, Any] = {"resume_allow": ("model",), "max_num_train_steps": 3, **change}
    run = two_models(seed=1, resume_from=saved, **options)
    with run:
        assert list(run.updates()) == []
    expected = load(saved / "final").parts["models"]["generator"]["weights"]
    torch.testing.assert_close(dict(run.models["generator"].state_dict()), expected, rtol=0, atol=0)
    assert not any(optimizer.state for optimizer in run.optimizers.values())


def test_a_run_with_one_of_each_is_stored_without_their_names(tmp_path: Path) -> None:
    """So that every version reads its states: parameters have their plain names, settings are in no mapping."""
    model = nn.Linear(4, 1)
    trainer = Trainer(model, nn.MSELoss(), Adam(model.parameters()), callbacks=[])
    trainer.train(make_regression(8), 1)
    trainer.save_training_state(tmp_path / "state")

    parts: Any = load(tmp_path / "state").parts
    assert (list(parts["models"]), list(parts["optimizers"])) == (["model", "loss_func"], ["optimizer"])
    assert parts["optimizers"]["optimizer"]["parameters"] == [["weight", "bias"]]
    assert parts["run"]["hyperparameters"][0]["lr"] == 0.001
    assert parts["run"]["nominal_items"] is None


POINTS = make_regression(8)


def make_trainer(seed: int = 0) -> Trainer[nn.Linear]:
    """A trainer of a linear model."""
    torch.default_generator.manual_seed(seed)
    model = nn.Linear(4, 1)
    return Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1, momentum=0.9), callbacks=[])


def save_with_accelerate(folder: Path, *, safetensors: bool = True, wrapped: bool = False) -> Trainer[nn.Linear]:
    """Train, save the state as accelerate does, with what a script adds, and return the trainer."""
    trainer = make_trainer()
    trainer.train(POINTS, 1)
    # Of a model that was wrapped for several processes, the names begin with "module.".
    model = nn.ModuleDict({"module": trainer.model}) if wrapped else trainer.model
    accelerator: Any = Accelerator()
    accelerator.prepare(model, trainer.optimizer)
    accelerator.save_state(str(folder), safe_serialization=safetensors)
    (folder / "metadata.json").write_text('{"current_epoch": 1}')
    return trainer


WAYS: dict[str, Callable[[Trainer[nn.Linear], Path], object]] = {
    "resume": lambda trainer, path: trainer.train(POINTS, 2, resume_from=path),
    "resume or start": lambda trainer, path: trainer.train(POINTS, 2, resume_from=path, resume_missing="start"),
    "load state": lambda trainer, path: trainer.load_training_state(path),
    "load checkpoint": lambda trainer, path: trainer.load_checkpoint(path),
}


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped"])
@pytest.mark.parametrize("safetensors", [True, False], ids=["safetensors", "pickled"])
def test_the_code_in_the_message_loads_the_weights_and_the_optimizer(
    tmp_path: Path, safetensors: bool, wrapped: bool
) -> None:
    """It is run as it stands, and the trainer goes on with the weights and the momentum that were saved."""
    saved = save_with_accelerate(tmp_path / "state", safetensors=safetensors, wrapped=wrapped)
    trainer = make_trainer(seed=1)
    with pytest.raises(CheckpointError, match="written by accelerate") as refused:
        trainer.load_training_state(tmp_path / "state")
    exec(refused.value.do.split("train(): ")[1], {"trainer": trainer, "torch": torch})
    assert torch.equal(trainer.model.weight, saved.model.weight)
    momenta = [one.optimizer.state[one.model.weight]["momentum_buffer"] for one in (trainer, saved)]
    assert torch.equal(momenta[0], momenta[1])
    trainer.train(POINTS, 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("folder", [False, True], ids=["state", "folder of states"])
def test_such_a_state_is_refused_wherever_it_is_given(way: str, folder: bool, tmp_path: Path) -> None:
    """Also where a run may start without a state, as it would start from nothing; nothing is loaded."""
    save_with_accelerate(tmp_path / "epoch_1")
    trainer = make_trainer(seed=1)
    before = trainer.model.weight.detach().clone()
    with pytest.raises(CheckpointError, match=r"epoch_1 with .*optimizer\.bin.*random_states_0\.pkl"):
        WAYS[way](trainer, tmp_path if folder else tmp_path / "epoch_1")
    assert torch.equal(trainer.model.weight, before)


def test_a_state_of_ones_own_is_no_checkpoint_file(tmp_path: Path) -> None:
    """The message says how to load it, and of another directory that a file is wanted."""
    trainer = make_trainer()
    trainer.train(POINTS, 1)
    trainer.save_training_state(tmp_path / "state")
    with pytest.raises(CheckpointError, match=r"a training state(.|\n)*load_training_state") as refused:
        trainer.load_checkpoint(tmp_path / "state")
    other = make_trainer(seed=1)
    advice = str(refused.value).partition("Load it with ")[2].removesuffix(".")
    exec(f"trainer.{advice}", {"trainer": other})
    assert torch.equal(other.model.weight, trainer.model.weight)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="path of a file"):
        trainer.load_checkpoint(tmp_path / "empty")


def test_an_exported_model_is_no_training_state(tmp_path: Path) -> None:
    """Weights alone are not taken for what accelerate saves of a run."""
    trainer = make_trainer()
    trainer.save_model(tmp_path / "export")
    with pytest.raises(FileNotFoundError, match="resume_from"):
        trainer.train(POINTS, 1, resume_from=tmp_path / "export")
