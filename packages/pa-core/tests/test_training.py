"""What a training run does to the weights, the history and the objects it was given."""

from __future__ import annotations

import copy
import gc
import random
import re
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader
from typing_extensions import override

from pa_core import AnyTrainer, InMemoryRunHistory, StepBasedEvaluationCallback, Trainer, TrainerCallback
from pa_core.testing import TinyClassifier, make_classification, make_regression
from tests.small_runs import NoteBatches, make_trainer, samples
from tests.support.callbacks import CallAt
from tests.support.loops import in_double
from tests.support.models import weights_of
from tests.support.pa_core.custom_loops.loops import seed_all


def linear_trainer(
    *callbacks: TrainerCallback, lr: float = 0.1, dtype: torch.dtype = torch.float32
) -> Trainer[nn.Linear]:
    """A trainer of a linear model with fixed starting weights."""
    model = nn.Linear(4, 1).to(dtype)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.1, -0.2, 0.3, -0.4]]))
        model.bias.zero_()
    return Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=lr, momentum=0.9), callbacks=callbacks)


def test_the_seed_of_the_user_decides_everything() -> None:
    """Runs after the same manual_seed are equal, and two runs in a row see different orders."""
    notes = NoteBatches()
    trainer = make_trainer(Trainer, notes)
    for seed in (5, 5, None):
        if seed is not None:
            torch.manual_seed(seed)
        trainer.train(samples(16), num_epochs=2)
    first, again, later = (notes.trained[start : start + 4] for start in (0, 4, 8))
    assert first == again != later
    assert first[:2] != first[2:]
    assert sorted(first[0] + first[1]) == list(range(16))


def test_a_second_run_goes_on_with_the_history_when_asked_to() -> None:
    """Epochs, updates and samples count on with reset_run_history=False, and start anew without it."""
    trainer = linear_trainer()
    trainer.train(make_regression(8), num_epochs=2, per_device_batch_size=4)
    trainer.train(make_regression(16), num_epochs=1, per_device_batch_size=4, reset_run_history=False)
    history = trainer.run_history
    assert isinstance(history, InMemoryRunHistory)
    rows = history.to_dict()
    assert rows["epoch"] == [1, 2, 3]
    assert rows["update"] == [2, 4, 8]
    assert rows["samples"] == [8, 16, 32]
    assert trainer.run_history.current_epoch == 4
    trainer.train(make_regression(8), num_epochs=1)
    assert len(list(trainer.run_history.get_metric_values("train_loss_epoch"))) == 1


def test_evaluating_alone_records_its_loss_and_changes_nothing() -> None:
    """evaluate() needs no optimizer, records evaluation_loss, and leaves weights and modes as they were."""
    model = TinyClassifier(batch_norm=True)
    before = copy.deepcopy(model.state_dict())
    trainer = Trainer(model, nn.CrossEntropyLoss(), None, callbacks=[])
    trainer.evaluate(make_classification(20), per_device_batch_size=8)
    assert list(trainer.run_history.get_metric_names()) == ["evaluation_loss"]
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.runs_on("one_process", "two_ranks")
def test_an_evaluation_returns_its_metrics() -> None:
    """The loss, what steps logged and what callbacks recorded meanwhile; nothing of the training before."""

    class Logging(Trainer[nn.Linear]):
        @override
        def calculate_eval_batch_loss(self, batch: Any) -> Any:
            self.log("half", 0.5)
            return super().calculate_eval_batch_loss(batch)

    def record(trainer: AnyTrainer) -> None:
        trainer.run_history.update_metric("evaluation_name", "not a number")
        trainer.run_history.update_metric("evaluation_steps", len(trainer.eval_dataloader or ()))

    model = nn.Linear(4, 1)
    trainer = Logging(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), [CallAt("on_eval_epoch_end", record)])
    trainer.train(make_regression(8), 1)
    for reset_run_history in (False, True):
        metrics = trainer.evaluate(make_regression(20), per_device_batch_size=2, reset_run_history=reset_run_history)
        steps = 20 / 2 / trainer.num_processes
        loss = trainer.run_history.get_latest_metric("evaluation_loss")
        assert metrics == {"evaluation_half": 0.5, "evaluation_loss": loss, "evaluation_steps": steps}


def test_an_evaluation_has_the_batch_size_of_the_run_before() -> None:
    """What is not said again stays: also one that was passed to the loader; in the first run it is 8."""
    trainer, data = linear_trainer(), make_regression(64)

    def batch_size(**kwargs: Any) -> int:
        trainer.evaluate(data, **kwargs)
        return trainer.run_config.eval_per_device_batch_size

    assert batch_size() == 8
    trainer.train(data, 1, per_device_batch_size=16)
    assert batch_size() == 16
    assert batch_size(per_device_batch_size=8) == 8
    trainer.train(data, 1, data, eval_dataloader_kwargs={"batch_size": 32})
    assert batch_size() == 32
    assert batch_size() == 32


def test_a_trainer_and_its_history_say_what_they_are() -> None:
    """Where they are printed, as in a notebook or a debugger."""
    trainer = linear_trainer()
    assert repr(trainer.run_history) == "<InMemoryRunHistory in epoch 1: nothing recorded>"
    trainer.train(make_regression(16), 2)
    assert repr(trainer) == "<Trainer of Linear with SGD: 2 epochs and 4 updates completed>"
    assert re.fullmatch(r"<InMemoryRunHistory in epoch 3: train_loss_epoch=[\d.e-]+>", repr(trainer.run_history))


def test_an_evaluation_in_mid_epoch_leaves_training_as_it_was() -> None:
    """Modes, including those of parts that the user keeps in evaluation mode, losses and random numbers come back."""

    class Sampling(TinyClassifier):
        """Draws in evaluations too, as a variational autoencoder does; drops in training alone."""

        @override
        def forward(self, inputs: Tensor) -> Tensor:
            dropped = nn.functional.dropout(inputs, 0.5, self.training)
            return super().forward(dropped + 0.1 * torch.randn_like(inputs) * random.random() * np.random.rand())

    class FrozenNorm(Trainer[TinyClassifier]):
        @override
        def train_epoch_start(self) -> None:
            super().train_epoch_start()
            self.model.layers[1].eval()

    def evaluate(trainer: AnyTrainer) -> None:
        modes = [module.training for module in trainer.model.modules()]
        trainer.run_evaluation_epoch(is_intermediate=True)
        assert [module.training for module in trainer.model.modules()] == modes
        assert modes.count(False) == 1

    ends: list[Any] = []
    ways: list[list[TrainerCallback]] = [
        [],
        [CallAt("on_optimizer_step_end", evaluate, 2)],
        [StepBasedEvaluationCallback(1)],
    ]
    for callbacks in ways:
        seed_all(1)
        model = Sampling(batch_norm=True)
        trainer = FrozenNorm(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=callbacks)
        trainer.train(make_classification(32), 3, make_classification(20), per_device_batch_size=8)
        losses = list(trainer.run_history.get_metric_values("train_loss_epoch"))
        assert len(losses) == 3
        ends.append((losses, weights_of(model).tolist()))
    assert ends[0] == ends[1] == ends[2]


def test_an_evaluation_between_two_updates_counts_as_one_of_an_epoch_unless_said_otherwise() -> None:
    """Its metric has the name of that of an epoch."""
    trainer = linear_trainer(CallAt("on_optimizer_step_end", lambda one: one.run_evaluation_epoch()))
    trainer.train(make_regression(16), 1, make_regression(8), per_device_batch_size=4)
    assert trainer.num_updates_completed == 4
    assert len(list(trainer.run_history.get_metric_values("eval_loss_epoch"))) == 5


def test_a_plain_loader_with_an_uneven_last_batch_weighs_what_it_holds() -> None:
    """A DataLoader of the user's own tells its sizes by its sampler: accumulated batches of 4 and 2 are one of 6."""
    weights, data = list[Tensor](), in_double(make_regression(6))
    for batch_size, accumulation in ((6, 1), (4, 2)):
        trainer = linear_trainer(dtype=torch.float64)
        trainer.train(DataLoader(data, batch_size), 3, gradient_accumulation_steps=accumulation)
        assert trainer.num_updates_completed == 3
        weights.append(weights_of(trainer.model))
    assert torch.allclose(weights[0], weights[1], rtol=0, atol=1e-14)


@pytest.mark.parametrize("runs", [0, 1, 2])
def test_a_trainer_can_be_copied_before_its_first_run_and_after_any(runs: int) -> None:
    """The copy trains what it has a copy of."""
    trainer = make_trainer()
    if runs > 0:
        trainer.train(samples(8), 1)
    if runs > 1:
        trainer.evaluate(samples(8))
    copied = copy.deepcopy(trainer)
    copied.train(samples(8), 1)
    assert copied.num_updates_completed > 0
    assert copied.model is not trainer.model


def test_nothing_of_the_run_before_stays_in_memory() -> None:
    """Its dataset can be collected as soon as the next run trains."""
    seen: list[bool] = []

    def look(_: object) -> None:
        gc.collect()
        seen.append(before() is not None)

    trainer = make_trainer(Trainer, CallAt("on_train_epoch_start", look))
    data = samples(8)
    before = weakref.ref(data)
    trainer.train(data, 1)
    del data
    trainer.train(samples(8), 1)
    assert seen == [True, False]
