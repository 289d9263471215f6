"""Callbacks: which method is called when, and in which order."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from typing_extensions import override

from pa_trial import Batch, DataLoader, Epoch, PyTorchCallback, PyTorchTrialContext
from tests.support.trials import TinyTrial, callback, fit, fit_and_fail, raising, returning, variant

NOTED = {
    "state_dict": "state_dict",
    "load_state_dict": "load_state_dict {}",
    "on_trial_startup": "startup {} {}",
    "on_trial_shutdown": "shutdown",
    "on_training_start": "training start",
    "on_training_epoch_start": "epoch {} starts",
    "on_training_epoch_end": "epoch {} ends",
    "on_training_workload_end": "workload at {0[batches]} ends with {1}",
    "on_validation_start": "validation start",
    "on_validation_epoch_start": "validation epoch start",
    "on_validation_epoch_end": "validation epoch end {}",
    "on_validation_end": "validation end",
    "on_checkpoint_save_start": "save start",
    "on_checkpoint_load_start": "load start {0[added]}",
    "on_checkpoint_write_end": "write end, complete: {}",
    "on_checkpoint_upload_end": "upload end {}",
}


def in_short(value: Any) -> Any:
    """The length of a list, whether a folder is a complete checkpoint; other arguments as they are."""
    if isinstance(value, str) and Path(value).is_dir():
        return (Path(value) / "metadata.json").exists()
    return len(cast("list[object]", value)) if isinstance(value, list) else value


def listener(notes: list[str], name: str = "") -> PyTorchCallback:
    """A callback that notes down each call, with what tells one from another."""

    def noting(method: str) -> Callable[..., Any]:
        def note(*args: Any, **by_name: Any) -> dict[str, str]:
            notes.append(name + NOTED[method].format(*map(in_short, [*args, *by_name.values()])))
            if method == "on_checkpoint_save_start":
                args[0]["added"] = 7
            return {"name": name}  # the state

        return note

    return callback(**{method: noting(method) for method in NOTED})


class Noting(TinyTrial):
    """Notes down what is called of it, and lets a listener note down the rest."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.calls: list[str] = []

    @override
    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        self.calls.append("build_callbacks")
        return {"listener": listener(self.calls)}

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
    *("validation start", "validation epoch start", "evaluate 0", "evaluate 1"),
    *("validation epoch end 2", "validation end"),
]
CHECKPOINT = ["state_dict", "save start", "write end, complete: True"]


def test_the_order_inside_fit(tmp_path: Path) -> None:
    """Of a training that begins, and of one that resumes from its checkpoint in the middle of an epoch."""
    trial = fit(Noting, tmp_path, max_length=Batch(3), step_zero_validation=True, validation_period=Batch(2))
    (uuid,) = (path.name for path in tmp_path.iterdir())
    assert trial.calls == [
        "build_callbacks",
        "startup 0 None",
        "training loader, from batch 0",
        "validation loader",
        "training start",
        *VALIDATION,
        "epoch 0 starts",
        "train 0 0",
        "train 0 1",
        "workload at 2 ends with 2",
        *VALIDATION,
        "train 0 2",
        "workload at 3 ends with 1",
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
        "validation loader",
        "load start 7",
        "load_state_dict {'name': ''}",
        "training start",
        "train 0 3",
        "epoch 0 ends",
        "epoch 1 starts",
        "train 1 4",
        "workload at 5 ends with 2",
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
    """Has three callbacks."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        super().__init__(context)
        self.calls: list[str] = []
        self.callbacks = {name: listener(self.calls, name) for name in "abc"}


def test_callbacks_end_in_reverse_order(tmp_path: Path) -> None:
    """All other methods are called in the order of the dictionary."""
    calls = fit(Several, tmp_path, max_length=Batch(1)).calls
    assert calls[:3] == ["astartup 0 None", "bstartup 0 None", "cstartup 0 None"]
    assert calls[-3:] == ["cshutdown", "bshutdown", "ashutdown"]


@pytest.mark.parametrize(
    ("before_batch", "failing", "ended"),
    [
        (raising(OSError("no data")), {}, ["cshutdown", "bshutdown", "ashutdown"]),
        (returning(None), {"b": callback(on_trial_startup=raising(OSError("no data")))}, ["ashutdown"]),
        (
            raising(OSError("no data")),
            {"c": callback(on_trial_shutdown=raising(ValueError("no end")))},
            ["bshutdown", "ashutdown"],
        ),
    ],
    ids=["in a batch", "in a callback when the trial begins", "in a callback when the trial ends, too"],
)
def test_callbacks_end_after_an_exception_too(
    before_batch: Any, failing: dict[str, PyTorchCallback], ended: list[str], tmp_path: Path
) -> None:
    """Those which were told that the trial begins; nothing is saved, and no error hides another one."""
    trial_class = variant(Several, before_batch=before_batch)
    trial, error = fit_and_fail(trial_class, tmp_path, Exception, callbacks=failing, max_length=Batch(4))
    assert "OSError" in (type(error).__name__, type(error.__context__).__name__)
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
        fit(TinyTrial, tmp_path, callbacks, max_length=Batch(2), checkpoint_period=Batch(1))
    (deprecation,) = [one for one in caught if issubclass(one.category, DeprecationWarning)]
    assert "Deprecated.on_checkpoint_end" in str(deprecation.message)
    assert deprecation.filename.endswith("trials.py")
    assert len(set(callbacks["a"].folders)) == 2
    assert callbacks["a"].folders[::2] == callbacks["a"].folders[1::2] == callbacks["b"].folders[::2]


@pytest.mark.parametrize("returned", [[PyTorchCallback()], {"a": PyTorchCallback}, {1: PyTorchCallback()}, None])
def test_what_is_not_a_dictionary_of_callbacks(returned: Any, tmp_path: Path) -> None:
    """It is refused."""
    wrong = variant(TinyTrial, build_callbacks=returning(returned))
    fit_and_fail(wrong, tmp_path, TypeError, "build_callbacks", max_length=Batch(1))


class Older(PyTorchCallback):
    """Was written when the start of an epoch had no number."""

    def __init__(self) -> None:
        self.starts = 0

    @override
    def on_training_epoch_start(self) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # as then
        self.starts += 1


class OlderWithOptions(Older):
    """Has parameters that are not the number."""

    @override
    def on_training_epoch_start(self, *, quiet: bool = True) -> None:  # type: ignore[override]  # as then
        self.starts += quiet


class OfAnyVersion(Older):
    """Takes what it is given."""

    @override
    def on_training_epoch_start(self, *args: Any, **kwargs: Any) -> None:  # a subclass of an older one
        self.starts += (args or tuple(kwargs.values())) in ((0,), (1,))


@pytest.mark.parametrize("kind", [Older, OlderWithOptions, OfAnyVersion])
def test_a_callback_without_the_number_of_the_epoch_is_called_with_a_warning(tmp_path: Path, kind: type[Older]) -> None:
    """Callbacks for older versions of Determined work, and their authors learn what to add."""
    callback = kind()

    class Trial(TinyTrial):
        @override
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"older": callback}

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fit(Trial, tmp_path, max_length=Epoch(2))
    assert callback.starts == 2
    told = [str(one.message) for one in seen if "on_training_epoch_start" in str(one.message)]
    assert [one.split(" ")[0] for one in told] == [f"{kind.__name__}.on_training_epoch_start"] * (kind != OfAnyVersion)
