"""A run that is interrupted and resumed in the same process: with the same trainer, or another one of its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, StepLR
from typing_extensions import override

from pa_core import AnyTrainer, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.testing import TinyClassifier, make_classification
from tests.support.callbacks import RatesUsed
from tests.support.pa_core.training_states.small_runs import (
    InterruptAt,
    Interrupted,
    SampleLog,
    fingerprint,
    frozen_trainer,
    make_trainer,
    train,
)


def decay(update: int) -> float:
    """A factor of the learning rate."""
    return 1 / (1 + update)


SCHEDULERS: dict[str, Callable[[Optimizer], Any] | None] = {
    "none": None,
    "OneCycleLR": partial(OneCycleLR, max_lr=0.05, total_steps=40),
    "CosineAnnealingLR": partial(CosineAnnealingLR, T_max=30),
    "LambdaLR": partial(LambdaLR, lr_lambda=decay),
    "StepLR": partial(StepLR, step_size=4, gamma=0.5),
}


def interrupted_at(trainer: Trainer, update: int, **options: Any) -> None:
    """Run until an exception comes out of the middle of an update."""
    interrupt = InterruptAt("on_train_step_end", update)
    trainer.callback_handler.add_callback(interrupt)
    with pytest.raises(Interrupted):
        train(trainer, **options)
    trainer.callback_handler.remove_callback(interrupt)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_same_trainer_resumes_as_a_new_process_does(tmp_path: Path, scheduler: str) -> None:
    """Rates, schedule, optimizer, history and samples to the last bit, after several interruptions in a row."""
    options: dict[str, Any] = {"create_scheduler_fn": SCHEDULERS[scheduler]}
    expected = train(make_trainer(), **options)
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=2))
    options |= {"resume_from": tmp_path, "resume_missing": "start"}
    for update in (5, 6, 11, 19):
        interrupted_at(trainer, update, **options)
    assert train(trainer, **options) == expected


@pytest.mark.parametrize("scheduler", [name for name in SCHEDULERS if name != "OneCycleLR"])
def test_the_same_trainer_extends_a_complete_run_as_a_new_process_does(tmp_path: Path, scheduler: str) -> None:
    """The rates go on where the run ended, and are not taken for what the script asks."""
    options: dict[str, Any] = {"create_scheduler_fn": SCHEDULERS[scheduler], "resume_missing": "start"}
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path / "states"))
    train(trainer, num_epochs=2, resume_from=tmp_path / "states", **options)
    copy = make_trainer(seed=5)
    expected = train(copy, num_epochs=4, resume_from=tmp_path / "states", **options)
    assert train(trainer, num_epochs=4, resume_from=tmp_path / "states", **options) == expected


def test_another_trainer_of_the_same_optimizer_resumes_as_a_new_process_does(tmp_path: Path) -> None:
    """A notebook whose cell that makes the trainer is run again, and that of the optimizer is not."""
    expected = train(make_trainer())
    first = make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=2))
    interrupted_at(first, 5)
    second = Trainer(first.model, first.loss_func, first.optimizer, callbacks=[SampleLog()])
    assert train(second, resume_from=tmp_path) == expected


def rates_of(trainer: Trainer, **options: Any) -> list[float]:
    """The learning rate of each update that is made."""
    used = RatesUsed()
    trainer.callback_handler.add_callback(used)
    train(trainer, **options)
    trainer.callback_handler.remove_callback(used)
    return used.rates


@pytest.mark.parametrize("scheduler", ["none", "CosineAnnealingLR", "StepLR"])
def test_a_rate_that_is_changed_between_the_runs_is_used(
    tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In proportion to what the script asked for at first, as in a new process; then it is what was asked."""
    options: dict[str, Any] = {"create_scheduler_fn": SCHEDULERS[scheduler]}
    whole = rates_of(make_trainer(), **options)
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=2))
    interrupted_at(trainer, 6, **options)
    trainer.optimizer.param_groups[0]["lr"] = 0.002
    assert rates_of(trainer, resume_from=tmp_path, **options) == pytest.approx([rate / 5 for rate in whole[6:]])
    assert ["group", "0:", "lr", "0.01", "0.002", "0.002"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
    again = make_trainer(seed=3)
    again.optimizer.param_groups[0]["lr"] = 0.002
    train(again, resume_from=tmp_path, **options)
    assert "group" not in capsys.readouterr().out


def test_a_second_run_of_a_script_is_resumed_as_it_was_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script with two runs, the second of which goes on with the rate at which the first one ended."""

    def script(*more: TrainerCallback) -> dict[str, Any]:
        trainer = make_trainer(*more)
        for stage, epochs, scheduler in (("first", 2, SCHEDULERS["StepLR"]), ("second", 1, None)):
            states = SaveTrainingStateCallback(tmp_path / stage, save_every_n_steps=2)
            trainer.callback_handler.add_callback(states)
            folder: dict[str, Any] = {"resume_from": tmp_path / stage, "resume_missing": "start"}
            train(trainer, num_epochs=epochs, create_scheduler_fn=scheduler, **folder)
            trainer.callback_handler.remove_callback(states)
        return fingerprint(trainer)

    class InterruptSecond(TrainerCallback):
        runs = 0

        @override
        def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            self.runs += 1

        @override
        def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            if self.runs == 2 and trainer.num_updates_completed == 3:
                raise Interrupted

    with pytest.raises(Interrupted):
        script(InterruptSecond())
    again = script()
    assert "group" not in capsys.readouterr().out
    for folder in ("first", "second"):
        (tmp_path / folder).rename(tmp_path / f"{folder}_kept")
    assert script() == again


def test_loading_weights_before_the_run_is_resumed_asks_for_no_other_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rate in a file is that of its moment, and nothing that a script asks for."""
    expected = train(make_trainer())
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path / "states", save_every_n_steps=2))
    interrupted_at(trainer, 9)
    trainer.save_checkpoint(tmp_path / "checkpoint.pt")
    for loading in (trainer, make_trainer(seed=4)):
        loading.load_checkpoint(tmp_path / "checkpoint.pt", load_scheduler=False)
        loading.load_training_state(tmp_path / "states")
    loading = make_trainer(seed=4)
    loading.load_training_state(tmp_path / "states")
    assert train(loading, resume_from=tmp_path / "states") == expected
    assert train(trainer, resume_from=tmp_path / "states") == expected
    assert "group" not in capsys.readouterr().out


@pytest.mark.parametrize("is_new", [False, True])
def test_groups_that_the_interrupted_run_added_are_added_again_in_their_time(tmp_path: Path, is_new: bool) -> None:
    """With their momentum, in the same trainer or a new one; also where the state is older than the new group."""

    def weights(trainer: Trainer) -> dict[str, Any]:
        return {name: value.tolist() for name, value in trainer.model.state_dict().items()}

    whole = frozen_trainer()
    whole.train(make_classification(40), 3)
    states = SaveTrainingStateCallback(tmp_path, save_every_n_steps=4)
    trainer = frozen_trainer(states)
    for update in (7, 12):
        interrupt = InterruptAt("on_train_step_end", update)
        trainer.callback_handler.add_callback(interrupt)
        with pytest.raises(Interrupted):
            trainer.train(make_classification(40), 3, resume_from=tmp_path, resume_missing="start")
        trainer.callback_handler.remove_callback(interrupt)
        trainer = frozen_trainer(states) if is_new else trainer
    trainer.train(make_classification(40), 3, resume_from=tmp_path)
    assert weights(trainer) == weights(whole)
    assert len(trainer.optimizer.param_groups) == 2


def test_rates_that_are_tensors_stay_the_same_tensors(tmp_path: Path) -> None:
    """A captured optimizer reads its rate where it was when it was captured."""

    def tensor_trainer(*callbacks: TrainerCallback) -> Trainer:
        torch.manual_seed(0)
        model = TinyClassifier()
        optimizer = Adam(model.parameters(), lr=torch.tensor(0.1))
        return Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks)

    def run(trainer: Trainer, **options: Any) -> list[float]:
        trainer.train(make_classification(40), 3, create_scheduler_fn=SCHEDULERS["StepLR"], **options)
        return [float(group["lr"]) for group in trainer.optimizer.param_groups]

    expected = run(tensor_trainer())
    trainer = tensor_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=4))
    interrupt = InterruptAt("on_train_step_end", 9)
    trainer.callback_handler.add_callback(interrupt)
    with pytest.raises(Interrupted):
        run(trainer)
    trainer.callback_handler.remove_callback(interrupt)
    assert run(trainer, resume_from=tmp_path) == expected
    assert isinstance(trainer.optimizer.param_groups[0]["lr"], torch.Tensor)
