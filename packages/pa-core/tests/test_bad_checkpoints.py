"""Files that are no whole checkpoint of this model: the error says what they are, and nothing of them is loaded."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from pa_core import CheckpointError, Trainer
from pa_core.testing import TinyClassifier
from tests.support.explained import assert_explained
from tests.support.pa_core.good_run import assert_still_works, make_trainer, train

Net: TypeAlias = "Trainer[TinyClassifier]"


class Payload:
    """What runs when a file is unpickled that should not be trusted."""

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("was_run",))


def truncated(path: Path, trainer: Net) -> None:
    """A file whose second half is missing."""
    trainer.save_checkpoint(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_another_model(path: Path, trainer: Net) -> None:
    """A file with another layer, and another shape."""
    model = TinyClassifier(hidden=16)
    model.register_parameter("further", nn.Parameter(torch.zeros(1)))
    Trainer(model, None, None, callbacks=()).save_checkpoint(path)


def with_code(path: Path, trainer: Net) -> None:
    """A file that wants to run something."""
    torch.save({"model_state_dict": trainer.model.state_dict(), "payload": Payload()}, path)


def plain_pickle(path: Path, trainer: Net) -> None:
    """A file that was not even made by torch."""
    path.write_bytes(pickle.dumps({"model_state_dict": Payload()}, protocol=2))


CHECKPOINTS: dict[Callable[[Path, Net], Any], tuple[str, ...]] = {
    truncated: ("damaged", "cut short", "bytes"),
    of_another_model: (
        "another model",
        "unexpected: further",
        "missing: layers.1.weight",
        "layers.0.weight: (16, 4) in the file, (8, 4) in the model",
        "and 1 more",
    ),
    with_code: ("more than tensors", "mkdir", "weights_only=False"),
    plain_pickle: ("more than tensors", "mkdir", "weights_only=False"),
    lambda path, trainer: path.write_bytes(b""): ("damaged", "0 bytes"),
    lambda path, trainer: path.write_text("hello"): ("damaged", "5 bytes"),
    lambda path, trainer: torch.save([1, 2], path): ("not a checkpoint", "list"),
    lambda path, trainer: torch.save(trainer.model.state_dict(), path): (
        "not a checkpoint",
        "layers.0.weight",
        "model.load_state_dict",
    ),
}


@pytest.mark.parametrize("make", CHECKPOINTS)
def test_a_checkpoint_that_cannot_be_loaded_changes_nothing(
    make: Callable[[Path, Net], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Truncated, of another model, or in need of code: the error says which, nothing is run and nothing loaded."""
    monkeypatch.chdir(tmp_path)
    trainer = make_trainer()
    train(trainer)
    make(tmp_path / "checkpoint.pt", trainer)
    before: dict[str, Tensor] = {name: value.clone() for name, value in trainer.model.state_dict().items()}

    with pytest.raises(CheckpointError) as caught:
        trainer.load_checkpoint(tmp_path / "checkpoint.pt")

    assert_explained(caught.value, "checkpoint.pt", *CHECKPOINTS[make])
    assert not Path("was_run").exists()
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    assert_still_works(trainer, trainer.model)


def test_a_checkpoint_that_is_not_there_is_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The error is Python's own, and names the path."""
    with pytest.raises(FileNotFoundError, match=r"missing\.pt"):
        make_trainer().load_checkpoint(tmp_path / "missing.pt")
