"""Which events fire for each way in which a run can end, as the table in docs/maintainers/failures.md says."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from pa_core import StopTrainingError, TerminateOnNaNCallback, Trainer
from pa_core.testing import RecordingCallback, make_classification
from tests.launching import Launch
from tests.support.callbacks import CallAt
from tests.support.pa_core.events_of_endings import table
from tests.support.trainers import classifier_trainer

EVENTS_OF_EVALUATE = {"on_training_run_epoch_end": "on_eval_epoch_end", "on_training_run_end": "on_evaluation_run_end"}
LIMIT = "`max_num_train_steps`"
WITHOUT_UPDATES = ("evaluate", LIMIT)
NOT_FINITE = "a loss that is not finite, with `TerminateOnNaNCallback`"
SIGTERM = "`SIGTERM`, if nobody handles it"


def go_on() -> None:
    """End nothing."""


def raise_error(error: Exception) -> None:
    """Raise an error."""
    raise error


IN_THE_SECOND_STEP: dict[str, Callable[[], object]] = {
    "its last epoch": go_on,
    LIMIT: go_on,
    "`StopTrainingError`": lambda: raise_error(StopTrainingError()),
    NOT_FINITE: go_on,
    "any other exception": lambda: raise_error(OSError()),
    "Ctrl-C, or `SIGINT`": lambda: signal.raise_signal(signal.SIGINT),
    "`sys.exit()`": sys.exit,
}


def samples(way: str) -> TensorDataset:
    """Three batches of four; the loss of the last one may be NaN."""
    inputs, targets = make_classification(12).tensors
    last: Tensor = inputs[-1]
    last.fill_(torch.nan if way == NOT_FINITE else 0.0)
    return TensorDataset(inputs, targets)


def run(entry: str, way: str) -> tuple[list[str], str]:
    """The events of a run that ends in some way, and what `train()` or `evaluate()` does, in words of the table."""
    recorder = RecordingCallback()
    step_end = {"train": "on_train_step_end", "evaluate": "on_eval_step_end"}[entry]
    steps = itertools.count(1)
    act = CallAt(step_end, lambda _trainer: IN_THE_SECOND_STEP[way]() if next(steps) == 2 else None)
    trainer = classifier_trainer(Trainer, recorder, act, TerminateOnNaNCallback)
    try:
        if entry == "train":
            limit = 5 if way == LIMIT else None
            trainer.train(samples(way), 2, make_classification(8), 4, max_num_train_steps=limit)
        else:
            trainer.evaluate(samples(way), 4)
    except OSError:
        return recorder.events, "raises it"
    except BaseException as error:
        return recorder.events, f"raises `{type(error).__name__}`"
    return recorder.events, "returns"


def assert_as_in_the_table(entry: str, way: str, events: list[str], outcome: str) -> None:
    """Each cell of the row says what happened."""
    row = table()[way]
    row.pop("started again, it")  # that is tested with training states
    assert outcome == row.pop("train()")
    epoch_starts = {"train": "on_train_epoch_start", "evaluate": "on_eval_epoch_start"}[entry]
    last_epoch = events[-events[::-1].index(epoch_starts) :]
    for column, cell in row.items():
        event = EVENTS_OF_EVALUATE.get(column, column) if entry == "evaluate" else column
        assert ("yes" if event in last_epoch else "no") == cell, event


def test_the_table_is_complete() -> None:
    """Each way of ending a run that is tested is in the table, and no other."""
    assert table().keys() == {*IN_THE_SECOND_STEP, SIGTERM}


@pytest.mark.parametrize(
    ("entry", "way"),
    [(entry, way) for entry in ("train", "evaluate") for way in IN_THE_SECOND_STEP if (entry, way) != WITHOUT_UPDATES],
)
def test_a_run_ends_through_the_events_of_the_table(entry: str, way: str) -> None:
    """Each cell is what happens, for `train()` and for `evaluate()`."""
    assert_as_in_the_table(entry, way, *run(entry, way))


KILLED = """
import os, signal, sys
from functools import partial
import torch
from pa_core import Trainer, TrainerCallback
from pa_core.any_trainer import EVENT_NAMES
from pa_core.testing import TinyClassifier, make_classification

class Say(TrainerCallback):
    def __init__(self):
        for event in EVENT_NAMES:
            setattr(self, event, partial(self.say, event))

    def say(self, event, trainer, **kwargs):
        print(event, flush=True)
        if event.endswith("_step_end") and kwargs.get("step") == 2:
            signal.raise_signal(signal.SIGTERM)

for entry in ("train", "evaluate"):
    print(entry, flush=True)
    child = os.fork()
    if child == 0:
        model = TinyClassifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(model, torch.nn.CrossEntropyLoss(), optimizer, callbacks=[Say])
        if entry == "train":
            trainer.train(make_classification(12), 2, make_classification(8), 4)
        else:
            trainer.evaluate(make_classification(12), 4)
        sys.exit()
    print("ended by", os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
"""


def test_sigterm_ends_the_process(launch: Launch) -> None:
    """Without a handler of somebody's, no event tells of the signal."""
    launched = launch(KILLED)
    assert launched.status == 0
    in_training, in_evaluation = launched.output.split("evaluate\n")
    for entry, output in [("train", in_training), ("evaluate", in_evaluation)]:
        *events, last = output.split("\n")[:-1]
        assert last == f"ended by {signal.SIGTERM.value}"
        assert events[-1].endswith("_step_end")
        assert_as_in_the_table(entry, SIGTERM, events, "ends with the process")
