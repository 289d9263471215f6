"""Hyperparameters, experiment configuration and batch sizes, as a trial asks its context for them."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest

import pa_trial
from pa_trial import DistributedContext, InvalidExperimentException
from pa_trial.settings import ExperimentSettings


def of_two() -> DistributedContext:
    """The first of two processes that nothing has connected."""
    return DistributedContext(rank=0, size=2, local_rank=0, local_size=2, cross_rank=0, cross_size=1)


@pytest.mark.parametrize(
    ("question", "arguments"),
    [
        ("get_hparam", ["lr"]),
        *((name, []) for name in ("get_hparams", "get_global_batch_size", "get_per_slot_batch_size")),
        *((name, []) for name in ("get_experiment_config", "get_data_config")),
    ],
)
def test_what_was_not_configured_is_a_value_error(question: str, arguments: list[str]) -> None:
    """Asking for a setting that ``init`` was not given is a ValueError that says how to give it."""
    with pa_trial.init() as context, pytest.raises(ValueError, match=r"init\((hparams|exp_conf)="):
        getattr(context, question)(*arguments)


def test_hyperparameters_come_back_as_they_were_given() -> None:
    """``get_hparam`` and ``get_hparams`` return what was passed; an unknown name is a ValueError."""
    hparams = {"lr": 0.1, "layers": [3, 4]}
    with pa_trial.init(hparams=hparams) as context:
        assert (context.get_hparam("lr"), context.get_hparams()) == (0.1, hparams)
        with pytest.raises(ValueError, match="'lr', 'layers'"):
            context.get_hparam("momentum")


def test_the_global_batch_size_is_told_with_a_hint(caplog: pytest.LogCaptureFixture) -> None:
    """``get_hparam("global_batch_size")`` returns it and logs which of the two batch sizes to ask for."""
    with pa_trial.init(hparams={"global_batch_size": 8, "lr": 1}) as context:
        with caplog.at_level(logging.WARNING, logger="pa_trial"):
            context.get_hparam("lr")
            assert not caplog.records
            assert context.get_hparam("global_batch_size") == 8
        assert "get_per_slot_batch_size" in caplog.text


def test_experiment_and_data_configuration() -> None:
    """The configuration comes back as it was given; its data entry is empty where there is none."""
    with pa_trial.init(exp_conf={"data": {"url": "x"}}) as context:
        assert context.get_experiment_config() == {"data": {"url": "x"}}
        assert context.get_data_config() == {"url": "x"}
    for without in ({}, {"data": None}):
        with pa_trial.init(exp_conf=without) as context:
            assert context.get_data_config() == {}


@pytest.mark.parametrize(
    ("given", "size", "per_slot", "in_all"), [(8, 1, 8, 8), (8, 2, 4, 8), (7, 2, 3, 6), (2, 2, 1, 2), (7, 1, 7, 7)]
)
def test_batch_sizes(given: int, size: int, per_slot: int, in_all: int) -> None:
    """The global batch is split evenly; what does not divide is left out of both sizes, with a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        distributed = of_two() if size == 2 else None
        with pa_trial.init(hparams={"global_batch_size": given}, distributed=distributed) as context:
            assert (context.get_per_slot_batch_size(), context.get_global_batch_size()) == (per_slot, in_all)
    told = [warning for warning in caught if "not a multiple" in str(warning.message)]
    assert len(told) == (given % size != 0)
    assert all(warning.filename == __file__ for warning in told)


@pytest.mark.parametrize("hparams", [{}, {"global_batch_size": None}, {"global_batch_size": 0}])
def test_batch_sizes_that_count_as_not_set(hparams: dict[str, Any]) -> None:
    """A missing, None or zero global batch size is an error only when it is asked for."""
    with pa_trial.init(hparams=hparams) as context, pytest.raises(ValueError, match="batch size is not known"):
        context.get_global_batch_size()


def test_what_is_read_of_an_experiment_configuration() -> None:
    """Periods, the reporting period and the metric of the searcher are read from a trial's own configuration."""
    configured = {"name": "digits", "searcher": {"name": "single", "metric": "accuracy", "smaller_is_better": False}}
    periods = {"min_checkpoint_period": {"batches": 50}, "min_validation_period": {"epochs": 2}}
    settings = ExperimentSettings(None, {**configured, **periods, "scheduling_unit": 20}, 1)
    assert (settings.metric, settings.smaller_is_better, settings.scheduling_unit) == ("accuracy", False, 20)
    checkpoint, validation = settings.min_checkpoint_period, settings.min_validation_period
    assert repr((checkpoint, validation)) == "(Batch(50), Epoch(2))"


def test_an_empty_configuration_asks_for_nothing() -> None:
    """Without entries, or with periods of zero, nothing is configured."""
    for configured in (None, {}, {"min_checkpoint_period": {"batches": 0}, "searcher": None}):
        settings = ExperimentSettings(None, configured, 1)
        assert (settings.metric, settings.smaller_is_better, settings.scheduling_unit) == (None, True, None)
        assert settings.min_checkpoint_period is None
        assert settings.min_validation_period is None


ACCURACY = {"searcher": {"metric": "acc", "smaller_is_better": False}}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, (None, True)),
        ({"metric": "loss"}, ("loss", True)),
        ({"metric": "f1", "smaller_is_better": False}, ("f1", False)),
        ({"exp_conf": {"searcher": {"metric": "loss"}}}, ("loss", True)),
        ({"exp_conf": ACCURACY}, ("acc", False)),
        ({"exp_conf": ACCURACY, "smaller_is_better": True}, ("acc", True)),
        ({"exp_conf": ACCURACY, "metric": "f1"}, ("f1", True)),
        ({"exp_conf": {"searcher": {"metric": "loss"}}, "metric": "f1", "smaller_is_better": False}, ("f1", False)),
    ],
)
def test_a_metric_passed_to_init_comes_before_the_configured_one(
    asked: dict[str, Any], expected: tuple[str | None, bool]
) -> None:
    """``init(metric=)`` wins over ``searcher.metric``, and its direction is not that of the other metric."""
    assert _metric_of(**asked) == expected


UNUSABLE_ENTRIES: list[tuple[dict[str, Any], str]] = [
    ({"searcher": "random"}, "searcher"),
    ({"searcher": {"metric": 3}}, "searcher.metric"),
    ({"searcher": {"smaller_is_better": "yes"}}, "searcher.smaller_is_better"),
    ({"scheduling_unit": "100"}, "scheduling_unit"),
    ({"scheduling_unit": True}, "scheduling_unit"),
    ({"min_validation_period": 3}, "min_validation_period"),
    ({"min_validation_period": {"records": 3}}, "min_validation_period"),
    ({"min_checkpoint_period": {"batches": 1.5}}, "min_checkpoint_period.batches"),
]
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(({"hparams": {"global_batch_size": size}}, InvalidExperimentException, "global_batch_size=")
      for size in (8.0, "8", -1, True)),
    ({"hparams": {"global_batch_size": 1}, "distributed": of_two()}, InvalidExperimentException, "at least 2"),
    ({"hparams": [("lr", 1)]}, TypeError, "hparams"),
    ({"exp_conf": [("lr", 1)]}, TypeError, "exp_conf"),
    *(({"seed": seed}, ValueError, "seed=") for seed in (-1, 2**32, True, "3", 1.0)),
    *(({"aggregation_frequency": number}, InvalidExperimentException, "aggregation_frequency must be")
      for number in (0, -1, 1.0, True)),
    *(({"max_checkpoints": number}, ValueError, "max_checkpoints") for number in (0, True)),
    *(({"max_wait_seconds": seconds}, ValueError, "max_wait_seconds") for seconds in (-1, float("nan"))),
    *(({"exp_conf": configured}, InvalidExperimentException, entry) for configured, entry in UNUSABLE_ENTRIES),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "error", "text"), REFUSED)
def test_what_cannot_work_is_refused_by_init(asked: dict[str, Any], error: type[Exception], text: str) -> None:
    """The error names the argument, or the entry of the configuration."""
    with pytest.raises(error, match=text), pa_trial.init(**asked):
        pass


def _metric_of(**arguments: Any) -> tuple[str | None, bool]:
    with pa_trial.init(**arguments) as context:
        run_settings = context._run_parts().run_settings  # pyright: ignore[reportPrivateUsage]  # what fit works with
        return run_settings.metric, run_settings.smaller_is_better


def test_checkpoints_are_kept_where_determined_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``checkpoint_dir``, names of checkpoints stand for folders in the user's data directory."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pa_trial.init() as context:
        parts = context._run_parts()  # pyright: ignore[reportPrivateUsage]  # what fit works with
        assert parts.run_settings.checkpoint_dir == tmp_path / "determined"
        with pytest.raises(ValueError, match="checkpoint_dir"):
            context.get_latest_checkpoint()
    with pa_trial.init(checkpoint_dir=tmp_path / "mine") as context:
        assert context.get_latest_checkpoint() is None
