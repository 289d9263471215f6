"""The schedules in runs of the trainer: which rate each update uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from typing_extensions import override

from pa_core import AnyTrainer, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.distributed import num_processes
from pa_core.testing import make_regression
from pa_schedulers import CosineLrScheduler, WSDLrScheduler
from tests.support.callbacks import CallAt, RatesUsed


def add_bias(trainer: AnyTrainer) -> None:
    """Hand the bias to the optimizer, as gradual unfreezing does."""
    bias = trainer.get_model().get_parameter("bias")
    trainer.optimizer.add_param_group({"params": [bias.requires_grad_()], "lr": 0.8})


def rates_while_unfreezing(*callbacks: TrainerCallback, resume_from: Path | None = None) -> list[list[float]]:
    """Train four epochs of one update, with the bias joining after the first; return the rates of each update."""
    model = nn.Linear(4, 1)
    model.bias.requires_grad_(False)
    optimizer = SGD([model.weight], lr=0.4)
    used: list[list[float]] = []

    def note(stepped: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        used.append([group["lr"] for group in stepped.param_groups])

    optimizer.register_step_pre_hook(note)
    joining = CallAt("on_training_run_epoch_end", add_bias, update=1)
    trainer: Trainer[nn.Linear] = Trainer(model, nn.MSELoss(), optimizer, callbacks=[joining, *callbacks])
    trainer.train(
        make_regression(8),
        num_epochs=4,
        per_device_batch_size=8 // num_processes(),
        create_scheduler_fn=CosineLrScheduler.create_scheduler_fn(lr_min=0.0),
        resume_from=resume_from,
    )
    return used


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_group_that_joins_a_run_follows_the_schedule_from_its_own_rate() -> None:
    """Gradual unfreezing needs nothing else: the new group has its share of the schedule from the next update on."""
    first, second, third, fourth = rates_while_unfreezing()

    assert (first, second) == ([0.4], [0.4, 0.8])
    assert third == pytest.approx([0.4 * (2 + 2**0.5) / 4, 0.8 * (2 + 2**0.5) / 4])
    assert fourth == pytest.approx([0.2, 0.4])


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_run_that_a_group_has_joined_is_resumed(shared_tmp_path: Path) -> None:
    """A training state has more groups than the resumed run is started with, and each goes on with its rates."""
    save = SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=3, save_at_end=False)
    uninterrupted = rates_while_unfreezing(save)

    resumed = rates_while_unfreezing(resume_from=shared_tmp_path)

    assert resumed == uninterrupted[3:]


COSINE = CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1, num_cooldown_epochs=1, lr_min=0.001)
WSD = WSDLrScheduler.create_scheduler_fn(num_warmup_epochs=1, decay_phase_ratio=0.5, lr_min=0.001)


@pytest.mark.parametrize("create_scheduler", [COSINE, WSD], ids=["cosine", "wsd"])
def test_a_run_that_is_resumed_in_the_same_trainer_follows_the_same_rates(
    tmp_path: Path, create_scheduler: Callable[[Optimizer], Any]
) -> None:
    """The rate at which an interruption left the optimizer is not taken for the one that the schedule begins with."""

    class Interrupt(TrainerCallback):
        update = 0

        @override
        def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            if trainer.num_updates_completed == self.update:
                raise OSError(f"at {self.update}")

    def make_trainer(*callbacks: TrainerCallback) -> tuple[Trainer[nn.Linear], RatesUsed]:
        torch.manual_seed(0)
        model, keep = nn.Linear(4, 1), RatesUsed()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        return Trainer(model, nn.MSELoss(), optimizer, callbacks=[keep, *callbacks]), keep

    def train(trainer: Trainer[nn.Linear], **options: Any) -> None:
        trainer.train(make_regression(40), 5, create_scheduler_fn=create_scheduler, **options)

    whole, of_whole = make_trainer()
    train(whole)
    interrupt = Interrupt()
    trainer, keep = make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=2), interrupt)
    for interrupt.update in (9, 15, 22):
        with pytest.raises(OSError, match="at"):
            train(trainer, resume_from=tmp_path, resume_missing="start")
    interrupt.update, keep.rates = -1, []
    train(trainer, resume_from=tmp_path)

    assert keep.rates == of_whole.rates[22:]
    assert torch.equal(trainer.model.weight, whole.model.weight)


def test_a_run_that_is_made_longer_keeps_the_cosine_at_its_end_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table of differences says it, and no later update has another rate."""

    def train(num_epochs: int, **options: Any) -> RatesUsed:
        model, keep = nn.Linear(4, 1), RatesUsed()
        save = SaveTrainingStateCallback(tmp_path)
        trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[keep, save])
        trainer.train(
            make_regression(16), num_epochs, create_scheduler_fn=CosineLrScheduler.create_scheduler_fn(), **options
        )
        return keep

    train(2)
    rates = train(4, resume_from=tmp_path / "final").rates

    assert "4; then what its scheduler does after its end" in capsys.readouterr().out
    assert set(rates[1:]) == {1e-6}
