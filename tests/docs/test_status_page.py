"""The page of those who decide on *pa* says what an installation contains, and what it does not do."""

from __future__ import annotations

import re
import socket
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from pa_core import Trainer
from pa_core.callbacks import SaveTrainingStateCallback
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "status.md").read_text()
INSTALLED = dict(re.findall(r"^\| `(pa-[a-z]+)` \| (.+) \|$", PAGE, re.MULTILINE))


def project(name: str) -> dict[str, list[str]]:
    """Return the table ``project`` of a distribution."""
    table: dict[str, list[str]] = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())["project"]
    return table


@pytest.mark.parametrize("name", INSTALLED)
def test_the_page_names_what_an_installation_contains(name: str) -> None:
    """Each requirement but torch is in the row of its package, and nothing else."""
    required = {re.split(r"[<>=]", line)[0] for line in project(name)["dependencies"]} - {"torch"}
    assert {shown.strip("`") for shown in INSTALLED[name].split(", ")} == required


def test_the_page_has_each_package_of_the_trainer() -> None:
    """Whoever installs the trainer reads of all packages that come with it."""
    ours = {line.partition(">=")[0] for line in project("pa-core")["dependencies"] if line.startswith("pa-")}
    assert INSTALLED.keys() == {"pa-core", *ours}


@pytest.mark.parametrize("library", ["torch", "accelerate"])
def test_the_page_names_the_oldest_versions(library: str) -> None:
    """The versions of the page are those that pip accepts."""
    (oldest,) = (
        line.partition(">=")[2] for line in project("pa-core")["dependencies"] if line.startswith(f"{library}>")
    )
    assert f"| {library} | {'.'.join(oldest.split('.')[:2])} and newer" in PAGE


def test_a_training_opens_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that trains, evaluates, saves states and resumes works offline, and tells nobody of it."""

    def connect(*_arguments: object) -> None:
        pytest.fail("A training has opened a connection.")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, connect)
    _train(tmp_path, num_epochs=1)
    resumed = _train(tmp_path, num_epochs=2)
    assert len([*resumed.run_history.get_metric_values("train_loss_epoch")]) == 2


def _train(save_dir: Path, num_epochs: int) -> Trainer:
    data = TensorDataset(torch.randn(8, 2), torch.zeros(8, dtype=torch.int64))
    model = nn.Linear(2, 2)
    saving = SaveTrainingStateCallback(save_dir)
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters()), callbacks=[saving])
    trainer.train(
        data, num_epochs, eval_dataset=data, per_device_batch_size=4, resume_from=save_dir, resume_missing="start"
    )
    return trainer
