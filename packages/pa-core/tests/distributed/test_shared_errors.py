"""On several processes an error that all of them raise is shown once, and no other error is hidden."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.launching import Launch

SCRIPT = """
import io, json, sys, time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset
from pa_core import PrintProgressCallback, Trainer
from pa_distributed import _failures as failures


class Failing(Trainer):
    def calculate_train_batch_loss(self, batch):
        raise OSError("cannot read the weights of the classes")


inputs, classes, model = torch.randn(32, 4), torch.arange(32) % 3, nn.Linear(4, 3)


def make(loss_func=None, kind=Trainer, callbacks=()):
    loss_func = nn.CrossEntropyLoss() if loss_func is None else loss_func
    return kind(model, loss_func, torch.optim.SGD(model.parameters(), lr=0.1), callbacks)


def train(targets, epochs=1, kind=Trainer):
    make(kind=kind).train(TensorDataset(inputs, targets), epochs)


def later_on_rank_0():
    if rank == 0:
        time.sleep(1)
    make(nn.CrossEntropyLoss)


def on_rank_1_alone():
    if rank == 1:
        make("l1")


rank = make()._accelerator.process_index
cases = {
    "a loss class": lambda: make(nn.CrossEntropyLoss),
    "the same again, a second later on one": later_on_rank_0,
    "one callback, not in a list": lambda: make(callbacks=PrintProgressCallback()),
    "no epochs": lambda: train(classes, 0),
    "targets as floats": lambda: train(classes.float()),
    "targets as floats again": lambda: train(classes.float()),
    "an error of the user's own": lambda: train(classes, kind=Failing),
    "other errors": lambda: train(classes.float() if rank else torch.full_like(classes, 7)),
    "an error of one alone": on_rank_1_alone,
}
shown = {}
for name, act in cases.items():
    stderr, sys.stderr = sys.stderr, io.StringIO()
    try:
        act()
    except Exception:
        sys.excepthook(*sys.exc_info())  # as Python does at the end of a script
    shown[name], sys.stderr = sys.stderr.getvalue(), stderr

# Rank 0 catches the error, and nobody would see it if rank 1 relied on rank 0.
patience, failures._SECONDS_UNTIL_SHOWN = failures._SECONDS_UNTIL_SHOWN, 0.5
stderr, sys.stderr = sys.stderr, io.StringIO()
try:
    train(classes.double())
except RuntimeError:
    if rank == 1:
        sys.excepthook(*sys.exc_info())
shown["an error that rank 0 catches"], sys.stderr = sys.stderr.getvalue(), stderr
failures._SECONDS_UNTIL_SHOWN = patience
Path(f"shown_{rank}.json").write_text(json.dumps(shown))
train(classes.float())
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each of two ranks has shown in each case, and the output of the script, which ends with an error."""
    folder = tmp_path_factory.mktemp("shown")
    launched = Launch(folder)(SCRIPT, ranks=2)
    assert launched.status == 1
    ranks = [json.loads((folder / f"shown_{rank}.json").read_text()) for rank in range(2)]
    return {"output": launched.output, **{name: [rank[name] for rank in ranks] for name in ranks[0]}}


SHARED = {
    "a loss class": "pa_data.errors.ArgumentTypeError",
    "the same again, a second later on one": "pa_data.errors.ArgumentTypeError",
    "one callback, not in a list": "pa_data.errors.ArgumentTypeError",
    "no epochs": "pa_data.errors.ConfigurationError",
    "targets as floats": "builtins.RuntimeError",
    "targets as floats again": "builtins.RuntimeError",
    "an error of the user's own": "builtins.OSError",
}


@pytest.mark.parametrize("name", SHARED)
def test_the_first_process_shows_an_error_of_all(name: str, shown: dict[str, Any]) -> None:
    """Rank 0 prints the traceback, rank 1 one line that says what was given there."""
    first, second = shown[name]
    assert first.count("Traceback (most recent call last)") >= 1
    (line,) = second.splitlines()
    assert line.startswith(f"[rank1]: {SHARED[name]}: the same error as on rank 0")
    if "builtins" not in SHARED[name]:
        assert "given here: " in line
        assert "got 0" in first or "do:   " in first


def test_a_script_that_ends_with_an_error_shows_it_once(shown: dict[str, Any]) -> None:
    """The whole output has the advice once."""
    assert shown["output"].count("without the second dimension: targets.squeeze(1).long()") == 1
    assert shown["output"].count("[rank1]: builtins.RuntimeError: the same error as on rank 0") == 1


def test_other_errors_are_not_hidden(shown: dict[str, Any]) -> None:
    """Where the ranks raise different errors, each shows its own; so does one that raises alone."""
    first, second = shown["other errors"]
    assert "Target 7 is out of bounds." in first
    assert "targets.squeeze(1).long()" in second
    first, second = shown["an error of one alone"]
    assert first == ""
    assert "The loss function is a string." in second


def test_an_error_that_the_first_process_catches_is_shown_by_the_others(shown: dict[str, Any]) -> None:
    """A process that waits in vain for the first one shows the error itself."""
    first, second = shown["an error that rank 0 catches"]
    assert first == ""
    assert "targets.squeeze(1).long()" in second
