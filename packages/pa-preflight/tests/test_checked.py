"""A script that checks before it trains, in one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pa_core import ArgumentTypeError, ConfigurationError, Trainer
from pa_core.distributed import num_processes
from pa_core.testing import make_classification
from pa_preflight import checked


def _trainer(*last: nn.Module) -> Trainer[nn.Sequential]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), *last)
    return Trainer(model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=0.01), callbacks=[])


def test_a_run_with_mistakes_does_not_begin() -> None:
    """Its error has the report."""
    trainer = _trainer(nn.Softmax(1))
    with pytest.raises(ConfigurationError, match="softmax-before-cross-entropy"):
        checked(trainer).train(make_classification(96), num_epochs=1)
    assert trainer.num_updates_completed == 0


def test_a_run_without_mistakes_is_the_run_without_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    """The report is printed, and the results are the same bits."""
    trainer, unchecked = _trainer(), None
    checked(trainer).train(make_classification(96), num_epochs=1)
    assert capsys.readouterr().out.startswith("Nothing found in ")
    unchecked = _trainer()
    unchecked.train(make_classification(96), num_epochs=1)
    assert trainer.fingerprint() == unchecked.fingerprint()


def test_it_takes_the_arguments_of_train() -> None:
    """Others are a mistake for type checkers, and an error."""
    wrong: dict[str, Any] = {"epochs": 1}
    with pytest.raises(ArgumentTypeError, match="takes the arguments of train"):
        checked(_trainer()).train(make_classification(8), **wrong)


def test_a_run_that_finds_its_batch_size_is_checked() -> None:
    """With small batches; it finds it itself afterwards."""
    trainer = _trainer()
    checked(trainer).train(make_classification(96), 1, per_device_batch_size="fit", samples_per_update=32)
    assert trainer.num_updates_completed == 3


@pytest.mark.runs_on("two_ranks")
def test_several_processes_train_without_a_check() -> None:
    """A warning says that it is left out."""
    assert num_processes() == 2
    trainer = _trainer()
    with pytest.warns(UserWarning, match="The run is not checked: check works on a single process"):
        checked(trainer).train(make_classification(96), num_epochs=1)
    assert trainer.num_updates_completed == 6
