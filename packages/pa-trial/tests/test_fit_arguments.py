"""What fit is asked for: refused where it cannot work, before anything is done."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, cast

import pytest

import pa_trial
from pa_data.errors import ArgumentTypeError, ConfigurationError
from pa_trial import Batch, Epoch, InvalidExperimentException, PyTorchTrialContext
from pa_trial.trainer import Trainer
from pa_trial.units import TrainUnit
from tests.support.trials import TinyTrial, fit, fit_and_fail, raising, variant

REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, ValueError, "max_length=None"),
    ({"max_length": 3}, TypeError, "max_length=3"),
    ({"max_length": Batch([3])}, TypeError, r"max_length=Batch\(\[3\]\)"),
    ({"max_length": Epoch(range(3))}, TypeError, "Epoch"),
    ({"max_length": Batch(cast("int", 2.5))}, TypeError, "2.5"),
    ({"max_length": Batch(True)}, TypeError, "True"),
    ({"max_length": TrainUnit(3)}, TypeError, "TrainUnit"),
    ({"max_length": Batch(-1)}, ValueError, "-1"),
    ({"max_length": Batch(1), "validation_period": 1}, TypeError, "validation_period=1"),
    ({"max_length": Batch(1), "checkpoint_period": "1"}, TypeError, "checkpoint_period='1'"),
    ({"max_length": Batch(1), "checkpoint_period": Batch(cast("int", "12"))}, TypeError, "Batch"),
    ({"max_length": Batch(1), "reporting_period": None}, TypeError, "reporting_period=None"),
    ({"max_length": Batch(1), "checkpoint_policy": "sometimes"}, ValueError, '"best", "all" or "none", got .sometimes'),
    ({"max_length": Batch(1), "checkpoint_policy": None}, ValueError, "None"),
    ({"max_length": Batch(1), "latest_checkpoint": 7}, TypeError, "latest_checkpoint=7"),
    ({"max_length": Batch(1), "test_mode": "yes"}, TypeError, "test_mode must be True or False, got 'yes'"),
]


@pytest.mark.parametrize(("asked", "error", "text"), REFUSED, ids=[str(asked) for asked, _, _ in REFUSED])
def test_what_cannot_work_is_refused_before_anything_is_done(
    asked: dict[str, Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    """The error names what was given; no callback is built."""
    not_to_be_trained = variant(TinyTrial, build_callbacks=raising(AssertionError("the training has begun")))
    _, raised = fit_and_fail(not_to_be_trained, tmp_path, error, text, **asked)
    assert isinstance(raised, ArgumentTypeError | ConfigurationError)


def test_a_policy_without_a_metric_falls_back_with_a_warning(tmp_path: Path) -> None:
    """The default policy "best" then means "all"."""
    told = r"'best'.*falling back to checkpoint_policy='all'.*metric="
    with pytest.warns(UserWarning, match=told) as caught:
        trial = fit(TinyTrial, tmp_path, max_length=Batch(4), validation_period=Batch(2), checkpoint_policy="best")
    assert trial.notes.events == ["W2", "V2", "C2", "W4", "V4", "C4"]
    assert caught[0].filename.endswith("trials.py")


def test_periods_of_the_experiment_configuration(tmp_path: Path) -> None:
    """They count where fit is told none; so does the metric of the searcher."""
    configuration = {
        "scheduling_unit": 2,
        "min_validation_period": {"epochs": 1},
        "min_checkpoint_period": {"batches": 3},
        "searcher": {"metric": "val_loss"},
    }
    with pa_trial.init(checkpoint_dir=tmp_path, exp_conf=configuration, seed=0) as context:
        trial = TinyTrial(context)
        trainer = Trainer(trial, context)
        trainer.fit(max_length=Batch(6))
        assert " ".join(trial.notes.events) == "W2 W3 C3 W4 V4 C4 W6 C6 V6"
        trial.notes.events.clear()
        trainer.fit(
            max_length=Batch(6),
            reporting_period=Batch(5),
            validation_period=Batch(9),
            checkpoint_period=Batch(9),
            checkpoint_policy="none",
        )
        assert " ".join(trial.notes.events) == "W5 W6 V6 C6"


def test_settings_of_the_platforms_profiler_are_warned_of(tmp_path: Path) -> None:
    """They have no effect, and training goes on."""
    with pa_trial.init(checkpoint_dir=tmp_path) as context:
        trainer = Trainer(TinyTrial(context), context)
        with pytest.warns(UserWarning, match="set_profiler") as caught:
            trainer.configure_profiler(sync_timings=True, enabled=True, begin_on_batch=0, end_after_batch=1)
        assert caught[0].filename == __file__
        with pytest.warns(UserWarning, match="profiling_enabled"):
            trainer.fit(max_length=Batch(1), checkpoint_policy="none", profiling_enabled=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainer.configure_profiler(sync_timings=True, enabled=False, begin_on_batch=0, end_after_batch=1)


# The trial


def test_what_is_no_trial_or_no_context(tmp_path: Path) -> None:
    """The class instead of an instance; what init returns instead of what it yields; either after the block."""
    with pa_trial.init(checkpoint_dir=tmp_path) as context:
        with pytest.raises(TypeError, match="not a trial"):
            Trainer(cast("TinyTrial", TinyTrial), context).fit(max_length=Batch(1))
        trial = TinyTrial(context)
        with pytest.raises(TypeError, match="context"):
            Trainer(trial, cast("PyTorchTrialContext", pa_trial.init()))
        trainer = Trainer(trial, context)
    for late in (lambda: trainer.fit(max_length=Batch(1)), lambda: Trainer(trial, context)):
        with pytest.raises(pa_trial.InternalException, match="with block"):
            late()


@pytest.mark.parametrize(("missing", "lists"), [("optimizer", ["optimizers"]), ("model", ["models", "optimizers"])])
def test_at_least_one_model_and_one_optimizer(missing: str, lists: list[str], tmp_path: Path) -> None:
    """A trial that forgot to wrap them would train nothing."""

    def make(context: PyTorchTrialContext) -> TinyTrial:
        trial = TinyTrial(context)
        for name in lists:
            getattr(context, name).clear()
        return trial

    fit_and_fail(make, tmp_path, InvalidExperimentException, f"no wrapped {missing}", max_length=Batch(1))


def test_a_second_fit_begins_anew(tmp_path: Path) -> None:
    """With the weights of the first, and counters and callbacks of its own."""
    with pa_trial.init(checkpoint_dir=tmp_path, seed=0) as context:
        trial = TinyTrial(context)
        trainer = Trainer(trial, context)
        trainer.fit(max_length=Batch(2), checkpoint_policy="none")
        trainer.fit(max_length=Batch(3), checkpoint_policy="none")
    assert trial.trained == [(0, 0), (0, 1), (0, 0), (0, 1), (0, 2)]
    assert trial.notes.events == ["W2", "V2", "C2", "W3", "V3", "C3"]


def test_one_training_after_the_other(tmp_path: Path) -> None:
    """A call within another one is refused."""

    def before_batch(trial: TinyTrial, _batch_idx: int) -> None:
        Trainer(trial, trial.context).fit(max_length=Batch(1))

    fits_within = variant(TinyTrial, before_batch=before_batch)
    fit_and_fail(fits_within, tmp_path, pa_trial.InternalException, "within", max_length=Batch(1))


def test_a_resumed_training_keeps_its_seed(tmp_path: Path) -> None:
    """Another one has no effect, and is warned of."""
    fit(TinyTrial, tmp_path, max_length=Batch(2))
    (checkpoint,) = tmp_path.iterdir()
    with pytest.warns(UserWarning, match="seed=7"):
        fit(TinyTrial, tmp_path, settings={"seed": 7}, max_length=Batch(3), latest_checkpoint=checkpoint.name)
