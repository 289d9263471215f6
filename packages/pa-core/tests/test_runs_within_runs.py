"""`train()` and `evaluate()` within a run of the same trainer: refused by name, wherever they are called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from pa_core import ConfigurationError, Trainer, TrainerCallback
from pa_core.testing import TinyClassifier, make_classification
from tests.support.callbacks import CallAt

DATA, EVAL_DATA = make_classification(12), make_classification(8, seed=1)


def evaluate_other(trainer: Trainer[Any], *_: object) -> None:
    """Evaluate another dataset than that of the run."""
    trainer.evaluate(make_classification(4, seed=2))


def train_more(trainer: Trainer[Any]) -> None:
    """Train on something else."""
    trainer.train(DATA, 1)


def make_trainer(*callbacks: TrainerCallback[Any]) -> Trainer[Any]:
    """A trainer of a small model."""
    torch.manual_seed(0)
    model = TinyClassifier()
    return Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=callbacks)


EVENTS = [
    "on_prepare_start",
    "on_training_run_start",
    "on_train_step_end",
    "on_optimizer_step_end",
    "on_train_epoch_end",
    "on_eval_step_end",
    "on_eval_epoch_end",
    "on_training_run_epoch_end",
    "on_training_run_end",
]


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(("call", "name"), [(evaluate_other, "evaluate"), (train_more, "train")])
def test_a_run_in_a_callback_is_refused_by_name(event: str, call: Callable[..., Any], name: str) -> None:
    """The error leaves train(), and says what to do instead; the trainer is as usable as before."""
    callback = CallAt(event, call)
    trainer = make_trainer(callback)
    with pytest.raises(ConfigurationError, match=rf"{name}\(\) within train\(\)") as refused:
        trainer.train(DATA, 2, EVAL_DATA, 4)
    assert ("run_evaluation_epoch(is_intermediate=True)" in refused.value.do) == (name == "evaluate")
    assert (trainer.train_dataset, trainer.eval_dataset) == (DATA, EVAL_DATA)

    trainer.callback_handler.remove_callback(callback)
    trainer.train(DATA, 2, EVAL_DATA, 4)
    assert trainer.num_epochs_completed == 2


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("call", [evaluate_other, train_more])
def test_a_run_in_an_evaluation_is_refused_by_name(call: Callable[..., Any]) -> None:
    """As within training."""
    trainer = make_trainer(CallAt("on_evaluation_run_end", call))
    with pytest.raises(ConfigurationError, match=r"\(\) within evaluate\(\)"):
        trainer.evaluate(EVAL_DATA)


def test_a_run_in_a_step_or_a_hook_is_refused_by_name() -> None:
    """Methods of the trainer are parts of the run too."""
    for method in ("calculate_train_batch_loss", "training_run_end"):
        trainer = make_trainer()
        vars(trainer)[method] = partial(evaluate_other, trainer)
        with pytest.raises(ConfigurationError, match=r"evaluate\(\) within train\(\)"):
            trainer.train(DATA, 1)


def test_the_method_that_is_named_evaluates_between_two_updates() -> None:
    """What the error advises."""
    trainer = make_trainer(CallAt("on_optimizer_step_end", lambda trainer: trainer.run_evaluation_epoch()))
    trainer.train(DATA, 1, EVAL_DATA, 4)
    assert len(list(trainer.run_history.get_metric_values("eval_loss_epoch"))) == 4
