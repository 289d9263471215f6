"""Callbacks: which method is called when, and in which order."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

import pa_trial
from pa_trial import Batch, Epoch, PyTorchCallback, PyTorchTrialContext
from pa_trial.trainer import Trainer
from tests.support.trials import TinyTrial, callback, fit, raising

if TYPE_CHECKING:
    from pa_trial import DataLoader


class Listener(PyTorchCallback):
    """Notes down each call, with what tells one from another."""

    def __init__(self, notes: list[str], name: str = "") -> None:
        self.notes = notes
        self.name = name

    def note(self, what: str) -> None:
        """Note down a call."""
        self.notes.append(f"{self.name}{what}")

    @override
    def state_dict(self) -> dict[str, Any]:
        self.note("state_dict")
        return {"name": self.name}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.note(f"load_state_dict {state_dict}")

    @override
    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        self.note(f"startup {first_batch_idx} {checkpoint_uuid}")

    @override
    def on_trial_shutdown(self) -> None:
        self.note("shutdown")

    @override
    def on_training_start(self) -> None:
        self.note("training start")

    @override
    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self.note(f"epoch {epoch_idx} starts")

    @override
    def on_training_epoch_end(self, epoch_idx: int) -> None:
        self.note(f"epoch {epoch_idx} ends")

    @override
    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]) -> None:
        self.note(f"workload of {len(batch_metrics)} ends at {avg_metrics['batches']}")

    @override
    def on_validation_start(self) -> None:
        self.note("validation start")

    @override
    def on_validation_epoch_start(self) -> None:
        self.note("validation epoch start")

    @override
    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        self.note(f"validation epoch end {len(outputs)}")

    @override
    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.note("validation end")

    @override
    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["added"] = 7
        self.note("save start")

    @override
    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        self.note(f"load start {checkpoint['added']}")

    @override
    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        self.note(f"write end, complete: {(Path(checkpoint_dir) / 'metadata.json').exists()}")

    @override
    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.note(f"upload end {uuid}")


class Noting(TinyTrial):
    """Notes down what is called of it, and lets a listener note down the rest."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.calls: list[str] = []

    @override
    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        self.calls.append("build_callbacks")
        return {"listener": Listener(self.calls)}

    @override
    def build_training_data_loader(self) -> DataLoader:
        self.calls.append(f"training loader, from batch {self.context.get_initial_batch()}")
        return super().build_training_data_loader()

    @override
    def build_validation_data_loader(self) -> DataLoader:
        self.calls.append("validation loader")
        return super().build_validation_data_loader()

    @override
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.calls.append(f"train {epoch_idx} {batch_idx}")
        return super().train_batch(batch, epoch_idx, batch_idx)

    @override
    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.calls.append(f"evaluate {batch_idx}")
        return super().evaluate_batch(batch, batch_idx)


VALIDATION = [
    "validation start",
    "validation epoch start",
    "evaluate 0",
    "evaluate 1",
    "validation epoch end 2",
    "validation end",
]
CHECKPOINT = ["state_dict", "save start", "write end, complete: True"]
LOADERS = ["validation loader"]


def test_the_order_inside_fit(tmp_path: Path) -> None:
    """Of a training that begins, and of one that resumes from its checkpoint in the middle of an epoch."""
    trial = fit(Noting, tmp_path, max_length=Batch(3), step_zero_validation=True, validation_period=Batch(2))
    (uuid,) = (path.name for path in tmp_path.iterdir())
    assert trial.calls == [
        "build_callbacks",
        "startup 0 None",
        "training loader, from batch 0",
        *LOADERS,
        "training start",
        *VALIDATION,
        "epoch 0 starts",
        "train 0 0",
        "train 0 1",
        "workload of 2 ends at 2",
        *VALIDATION,
        "train 0 2",
        "workload of 1 ends at 3",
        *VALIDATION,
        *CHECKPOINT,
        f"upload end {uuid}",
        "shutdown",
    ]
    resumed = fit(Noting, tmp_path, max_length=Batch(5), latest_checkpoint=uuid, step_zero_validation=True)
    assert resumed.calls == [
        "build_callbacks",
        f"startup 3 {uuid}",
        "training loader, from batch 3",
        *LOADERS,
        "load start 7",
        "load_state_dict {'name': ''}",
        "training start",
        "train 0 3",
        "epoch 0 ends",
        "epoch 1 starts",
        "train 1 4",
        "workload of 2 ends at 5",
        *VALIDATION,
        *CHECKPOINT,
        f"upload end {next(path.name for path in tmp_path.iterdir() if path.name != uuid)}",
        "shutdown",
    ]


def test_a_training_that_is_complete_does_nothing(tmp_path: Path) -> None:
    """Neither training nor validation nor checkpoint, whatever periods say; callbacks begin and end."""
    fit(Noting, tmp_path, max_length=Epoch(1))
    (uuid,) = (path.name for path in tmp_path.iterdir())
    trial = fit(Noting, tmp_path, max_length=Batch(3), latest_checkpoint=uuid, step_zero_validation=True)
    assert trial.trained == []
    assert trial.calls[-2:] == ["training start", "shutdown"]
    assert len(list(tmp_path.iterdir())) == 1


class Several(TinyTrial):
    """Has three callbacks, one of which may raise an error when the trial begins."""

    raising: str | None = None

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.calls: list[str] = []
        self.callbacks = {name: Listener(self.calls, name) for name in "abc"}


def test_callbacks_end_in_reverse_order(tmp_path: Path) -> None:
    """All other methods are called in the order of the dictionary."""
    calls = fit(Several, tmp_path, max_length=Batch(1)).calls
    assert calls[:3] == ["astartup 0 None", "bstartup 0 None", "cstartup 0 None"]
    assert calls[-3:] == ["cshutdown", "bshutdown", "ashutdown"]


def fit_and_fail(trial_class: type[TinyTrial], folder: Path, error: type[BaseException]) -> TinyTrial:
    """Train a trial that fails, and return it."""
    with pa_trial.init(checkpoint_dir=folder) as context:
        trial = trial_class(context)
        with pytest.raises(error):
            Trainer(trial, context).fit(max_length=Batch(4), checkpoint_policy="none")
    return trial


class FailsInTraining(Several):
    """Fails in its second batch."""

    @override
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if batch_idx == 1:
            raise OSError("no data")
        return super().train_batch(batch, epoch_idx, batch_idx)


class FailsAtStartup(Several):
    """Its second callback fails when the trial begins."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.callbacks["b"] = callback(on_trial_startup=raising(OSError("no data")))


@pytest.mark.parametrize(
    ("trial_class", "ended"),
    [(FailsInTraining, ["cshutdown", "bshutdown", "ashutdown"]), (FailsAtStartup, ["ashutdown"])],
)
def test_callbacks_end_after_an_exception_too(trial_class: type[Several], ended: list[str], tmp_path: Path) -> None:
    """Those which were told that the trial begins; nothing is saved."""
    trial = fit_and_fail(trial_class, tmp_path, OSError)
    assert isinstance(trial, Several)
    assert [call for call in trial.calls if "shutdown" in call] == ended
    assert list(tmp_path.iterdir()) == []


class Deprecated(PyTorchCallback):
    """Overrides what is deprecated."""

    def __init__(self) -> None:
        self.folders: list[str] = []

    @override
    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        self.folders.append(checkpoint_dir)

    @override
    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        self.folders.append(checkpoint_dir)


def test_the_deprecated_event_of_a_checkpoint(tmp_path: Path) -> None:
    """It is still called, just before the one that takes its place, and warned of once."""
    callbacks = {"a": Deprecated(), "b": Deprecated()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(
            TinyTrial,
            tmp_path,
            callbacks,
            max_length=Batch(2),
            checkpoint_period=Batch(1),
        )
    deprecations = [one for one in caught if issubclass(one.category, DeprecationWarning)]
    assert len(deprecations) == 1
    assert "Deprecated.on_checkpoint_end" in str(deprecations[0].message)
    assert deprecations[0].filename.endswith("trials.py")
    assert len(set(callbacks["a"].folders)) == 2
    assert callbacks["a"].folders[::2] == callbacks["a"].folders[1::2] == callbacks["b"].folders[::2]


@pytest.mark.parametrize("returned", [[PyTorchCallback()], {"a": PyTorchCallback}, {1: PyTorchCallback()}, None])
def test_what_is_not_a_dictionary_of_callbacks(returned: Any, tmp_path: Path) -> None:
    """It is refused."""

    class Wrong(TinyTrial):
        @override
        def build_callbacks(self) -> Any:
            return returned

    with pytest.raises(TypeError, match="build_callbacks"):
        fit(Wrong, tmp_path, max_length=Batch(1))


class FailsTwice(FailsInTraining):
    """Its last callback fails too, when the trial ends."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.callbacks["c"] = callback(on_trial_shutdown=raising(ValueError("no end")))


def test_a_callback_that_fails_at_the_end_does_not_hide_why_it_came(tmp_path: Path) -> None:
    """The other callbacks end too, and the error of the training is the context of the other one."""
    with pa_trial.init(checkpoint_dir=tmp_path) as context:
        trial = FailsTwice(context)
        with pytest.raises(ValueError, match="no end") as raised:
            Trainer(trial, context).fit(max_length=Batch(4), checkpoint_policy="none")
    assert isinstance(raised.value.__context__, OSError)
    assert [call for call in trial.calls if "shutdown" in call] == ["bshutdown", "ashutdown"]


class Older(PyTorchCallback):
    """Was written when the start of an epoch had no number."""

    def __init__(self) -> None:
        self.starts = 0

    @override
    def on_training_epoch_start(self) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # as then
        self.starts += 1


def test_a_callback_without_the_number_of_the_epoch_is_called_with_a_warning(tmp_path: Path) -> None:
    """Callbacks for older versions of Determined work, and their authors learn what to add."""
    older = Older()
    with pytest.warns(DeprecationWarning, match="Older.on_training_epoch_start.*epoch_idx"):
        fit(TinyTrial, tmp_path, {"older": older}, max_length=Epoch(2))
    assert older.starts == 2
