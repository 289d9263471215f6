"""A check saves a training state and loads it, so that no run finds out later that it cannot."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typing_extensions import override

from pa_core import DEFAULT_CALLBACKS, Run, SaveBestModelCallback, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.testing import make_classification
from pa_preflight import Finding, check
from tests.support.pa_preflight.configurations import changed, state_of
from tests.support.pa_preflight.planned_runs import planned_run


class _Counts(TrainerCallback):
    """A callback whose state is what it is told."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    @override
    def state_dict(self) -> dict[str, Any]:
        return self.state

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict


class _Forgets(_Counts):
    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = {"seen": 0}


class _Refuses(_Counts):
    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise ValueError("an older version")


class _Fails(_Counts):
    @override
    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("nothing was seen yet")


class _ForgetsItsScale(nn.Module):
    """A layer whose state leaves out what training changes in it, and what it is given back."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.0

    @override
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.scale += self.training
        return inputs

    @override
    def get_extra_state(self) -> dict[str, float]:
        return {"scale": self.scale}

    @override
    def set_extra_state(self, state: dict[str, float]) -> None:
        pass


def _found(save: SaveTrainingStateCallback, *callbacks: Any, layer: nn.Module | None = None) -> list[Finding]:
    """What a check says of the training states of a run."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), layer or nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[*DEFAULT_CALLBACKS, *callbacks, save])
    report = check(trainer, make_classification(96), num_epochs=4, eval_dataset=make_classification(32))
    return [one for one in report.findings if one.name.startswith(("state-", "disk-"))]


def test_a_state_that_can_be_saved_leaves_nothing(tmp_path: Path) -> None:
    """Neither a finding nor a file; the best model and plain states are saved and loaded."""
    folder = tmp_path / "runs" / "states"
    counts, best = _Counts({"seen": (1, 2), "mean": torch.ones(2)}), SaveBestModelCallback()
    assert _found(SaveTrainingStateCallback(folder), counts, best) == []
    assert list(tmp_path.iterdir()) == []
    assert counts.state["seen"] == (1, 2)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.filterwarnings("ignore")
def test_a_check_of_states_changes_nothing(seed: int, tmp_path: Path) -> None:
    """Whatever the optimizer, the scheduler and the data, a state is loaded as it was saved."""
    script, _ = planned_run(seed, tmp_path / "states")
    before = state_of(script)
    report = check(script.trainer, **script.arguments)
    assert [one for one in report.findings if one.name.startswith("state-")] == []
    assert changed(before, state_of(script)) in ([], ["callbacks"])  # one of which counts what the optimizer does
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "callback", "saw"),
    [
        ("state-not-saved", _Counts({"file": Path("log")}), "log"),
        ("state-not-saved", _Fails({}), "nothing was seen yet"),
        ("state-not-loaded", _Forgets({"seen": 3}), "does not restore _Forgets.seen"),
        ("state-not-loaded", _Refuses({"seen": 3}), "ValueError: an older version"),
    ],
)
def test_a_state_of_a_callback_that_is_lost_is_found(
    name: str, callback: TrainerCallback, saw: str, tmp_path: Path
) -> None:
    """What cannot be written, what fails, and what does not come back."""
    (finding,) = _found(SaveTrainingStateCallback(tmp_path), callback)
    assert finding.name == name
    assert finding.level == "mistake"
    assert saw in finding.saw
    assert list(tmp_path.iterdir()) == []


def test_a_layer_that_is_not_restored_is_found(tmp_path: Path) -> None:
    """The state that is loaded is compared with the one that was saved."""
    (finding,) = _found(SaveTrainingStateCallback(tmp_path), layer=_ForgetsItsScale())
    assert finding.name == "state-not-loaded"
    assert "does not restore models.model.1._extra_state.scale" in finding.saw


def test_a_folder_that_cannot_be_written_to_is_found(tmp_path: Path) -> None:
    """Here a file is in its place."""
    (tmp_path / "states").touch()
    (finding,) = _found(SaveTrainingStateCallback(tmp_path / "states"))
    assert finding.name == "state-not-saved"
    assert "states: NotADirectoryError" in finding.saw


@pytest.fixture(name="small_disk")
def small_disk_(tmp_path: Path) -> Generator[Path]:
    """A file system of 128 KiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a file system")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_disk_that_does_not_hold_the_states_is_found(small_disk: Path) -> None:
    """Four states and the last one do not fit; those that are there when older ones are removed do."""
    save = SaveTrainingStateCallback(small_disk / "states", save_every_n_epochs=1, max_checkpoints=1)
    assert _found(save) == []
    assert list(small_disk.iterdir()) == []
    (finding,) = _found(SaveTrainingStateCallback(small_disk / "states", save_every_n_epochs=1))
    assert finding.name == "disk-too-small"
    assert finding.saw.startswith(
        "The training states do not fit on the disk: up to 5 of 36 KiB exist at the same time, 180 KiB in all"
    )
    assert "has 128 KiB of free space" in finding.saw


def test_states_of_a_run_that_resumes_need_no_room_again(small_disk: Path) -> None:
    """They are there already, and the run keeps as many."""

    def make() -> Trainer:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
        save = SaveTrainingStateCallback(small_disk / "states", save_every_n_epochs=1, max_checkpoints=2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[save])

    data = make_classification(96)
    keeps: dict[str, Any] = {"resume_from": small_disk / "states", "resume_missing": "start"}
    make().train(data, 3, **keeps)
    assert check(make(), data, 4, **keeps).findings == []
    (finding,) = check(make(), data, 4).findings
    assert finding.name == "disk-too-small"


def test_a_state_of_a_run_with_its_own_loop_is_checked(tmp_path: Path) -> None:
    """Before its loop, what is there already is looked at."""
    model = nn.Linear(4, 3)
    callbacks = [SaveTrainingStateCallback(tmp_path), _Counts({"file": Path("log")})]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = check(Run(model, optimizer, make_classification(96), num_epochs=2, callbacks=callbacks))
    (finding,) = report.findings
    assert finding.name == "state-not-saved"
    assert any("whether a training state can be saved and loaded" in reason for reason in report.left_out)
