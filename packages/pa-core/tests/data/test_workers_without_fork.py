"""Where processes are not forked: scripts without a main guard train, and those that ask for workers are helped."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
from torch import nn
from torch.optim import SGD

from pa_core import Trainer
from pa_core.data.loaders import default_num_workers
from pa_data import start_method
from tests.launching import Launch
from tests.support.drawing import Drawing

SCRIPT = """
import multiprocessing
import sys

import torch
from torch.utils.data import Dataset

from pa_core import ConfigurationError, Trainer

multiprocessing.set_start_method("spawn", force=True)  # as on macOS and Windows


class Samples(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.ones(1), torch.ones(1)


def train(**kwargs):
    model = torch.nn.Linear(1, 1)
    trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(Samples(), 2, Samples(), **kwargs)
    print("updates:", trainer.num_updates_completed)


if "ask" not in sys.argv:
    train()
    sys.exit()
try:
    train(train_dataloader_kwargs={"num_workers": 1})
except ConfigurationError as error:
    print("refused:", error)
"""


def test_a_script_without_a_main_guard_trains(launch: Launch) -> None:
    """Without workers, unless they are asked for; a line says so, once in a run."""
    launched = launch(SCRIPT)
    assert launched.status == 0
    assert "updates: 2" in launched.output


def test_workers_without_a_main_guard_are_an_error_with_the_remedy(launch: Launch) -> None:
    """The one that the user sees last says what to do."""
    launched = launch(SCRIPT, "ask")
    refusal = launched.output.rpartition("refused:")[2]
    assert "The workers of a loader could not start." in refusal
    assert 'if __name__ == "__main__":' in refusal
    assert "num_workers=0" in refusal
    assert "updates" not in launched.output


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are spawned unless a loader says otherwise, and whoever asks fixes nothing."""

    def method(allow_none: bool = False) -> str:
        assert allow_none
        return "spawn"

    monkeypatch.setattr(multiprocessing, "get_start_method", method)


@pytest.mark.usefixtures("spawned")
def test_there_are_no_workers_by_default() -> None:
    """Who asks for workers gets them."""
    assert start_method() == "spawn"
    assert default_num_workers(Drawing(4), local_processes=1) == 0
    model = nn.Linear(1, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train_dataset = Drawing(4)
    loader: Any = trainer.create_train_dataloader(2, {"num_workers": 1})
    assert loader.num_workers == 1
    loader = trainer.create_train_dataloader(2)
    assert loader.num_workers == 0


def test_asking_how_processes_start_fixes_nothing() -> None:
    """A script can still choose the method after a trainer has asked for it."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    assert start_method() == (chosen or multiprocessing.get_all_start_methods()[0])
    assert multiprocessing.get_start_method(allow_none=True) == chosen
    assert start_method(multiprocessing.get_context("forkserver")) == "forkserver"
