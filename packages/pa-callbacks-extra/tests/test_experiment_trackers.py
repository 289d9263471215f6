"""Experiment trackers: values can be read back, runs are resumed, and mistakes are told before a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pa_callbacks_extra.experiment_trackers import (
    flatten_config,
    installed_trackers,
    known_trackers,
    open_trackers,
    require_trackers,
)
from pa_core.distributed import gather_objects
from pa_core.errors import ConfigurationError, ExplainedError, UnsupportedConfigurationError
from tests.event_files import read_configs, read_curves, wait_for_the_next_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOT_INSTALLED = next(name for name in known_trackers() if name not in installed_trackers())


@pytest.mark.runs_on("one_process", "two_ranks")
def test_what_is_logged_can_be_read_back(shared_tmp_path: Path) -> None:
    """Values and settings are in the files of TensorBoard, once, written by the first process alone."""
    trackers = open_trackers("tensorboard", "digits", logging_dir=shared_tmp_path, config={"batch": {"size": 8}})
    trackers.log({"loss": 0.5, "accuracy": 0.25}, step=10)
    trackers.log({"loss": 0.25}, step=20)
    trackers.finish()

    names, run_ids = zip(*gather_objects((trackers.names, trackers.run_ids)), strict=True)
    folder = shared_tmp_path / "digits"
    assert names == (("tensorboard",), ())[: len(names)]
    assert [list(ids) for ids in run_ids] == [["tensorboard"], []][: len(names)]
    assert read_curves(folder) == {"loss": [(10, 0.5), (20, 0.25)], "accuracy": [(10, 0.25)]}
    assert read_configs(folder) == [{"batch.size": 8}]
    assert len(list(folder.glob("events*"))) == 1


def test_a_run_that_goes_on_replaces_what_came_after(tmp_path: Path) -> None:
    """A run opened again after step 2 is one curve: what was written for later steps is not shown any more."""
    first = open_trackers("tensorboard", "digits", logging_dir=tmp_path)
    for step in (1, 2, 3):
        first.log({"loss": 1.0}, step)
    first.finish()
    wait_for_the_next_file()

    again = open_trackers("tensorboard", "digits", logging_dir=tmp_path, run_ids=first.run_ids, last_step=2)
    again.log({"loss": 0.5}, step=3)
    again.finish()

    assert again.run_ids == first.run_ids
    assert read_curves(tmp_path / "digits") == {"loss": [(1, 1.0), (2, 1.0), (3, 0.5)]}


def test_finishing_closes_the_writer_and_can_be_repeated(tmp_path: Path) -> None:
    """After ``finish`` the file is closed; a second call is harmless, as in a handler of errors."""
    trackers = open_trackers("tensorboard", "digits", logging_dir=tmp_path)
    (writer,) = trackers._trackers.values()  # pyright: ignore[reportPrivateUsage]  # is the file really closed?
    trackers.finish()
    trackers.finish()
    assert writer.tracker.all_writers is None


def test_arguments_reach_the_tracker(tmp_path: Path) -> None:
    """``init_kwargs`` are arguments of the tracker's own, here the ending of its file's name."""
    trackers = open_trackers(
        ["tensorboard"], "digits", logging_dir=tmp_path, init_kwargs={"tensorboard": {"filename_suffix": ".mine"}}
    )
    trackers.finish()
    assert len(list(tmp_path.glob("digits/events*.mine"))) == 1


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        ({"names": "tensorbord"}, ConfigurationError, "no tracker 'tensorbord'.*tensorboard"),
        ({"names": []}, ConfigurationError, "without a name"),
        ({"names": ["tensorboard", NOT_INSTALLED]}, UnsupportedConfigurationError, f"pip install {NOT_INSTALLED}"),
        ({"init_kwargs": {"wandb": {}}}, ConfigurationError, "init_kwargs for 'wandb'"),
        ({"init_kwargs": {"tensorboard": {"key": "secret"}}}, ConfigurationError, "key; TypeError: .*'key'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_opened_is_explained(
    tmp_path: Path, arguments: dict[str, Any], kind: type[ExplainedError], told: str
) -> None:
    """A wrong name, a missing package or a wrong argument is told, no secret with it, and nothing is written."""
    arguments = {"names": "tensorboard", "project_name": "digits", **arguments}
    with pytest.raises(kind, match=told) as raised:
        open_trackers(**arguments, logging_dir=tmp_path)
    assert "secret" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_names_are_taken_once() -> None:
    """A name given twice is one tracker."""
    assert require_trackers(["tensorboard", "tensorboard"]) == ("tensorboard",)


class Tracker:
    """A tracker of one's own, as accelerate lets a program register one; it fails where it is told to."""

    requires_logging_directory = True
    tracker = None

    def __init__(self, project: str, folder: str, fails_to: str = "", name: str = "a run") -> None:
        self.called = [f"made for {name} of {project}"]
        self.fails_to = fails_to
        made.append(self)

    def __getattr__(self, method: str) -> Callable[..., None]:
        def note(*_values: Any, **_step: Any) -> None:
            self.called.append(method)
            if method == self.fails_to:
                raise OSError(f"cannot {method}")

        return note


made: list[Tracker] = []


@pytest.fixture
def two_of_our_own(monkeypatch: pytest.MonkeyPatch) -> list[Tracker]:
    """Two registered trackers, ``first`` and ``second``; the list of those that were made."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    for name in ("first", "second"):
        monkeypatch.setitem(cast("dict[str, Any]", LOGGER_TYPE_TO_CLASS), name, Tracker)
    made.clear()
    return made


def test_a_tracker_of_ones_own_is_used_by_its_name(two_of_our_own: list[Tracker], tmp_path: Path) -> None:
    """What a program has registered with accelerate is opened, written to and finished like the others."""
    trackers = open_trackers(
        "first", "digits", logging_dir=tmp_path, config={"epochs": 1}, init_kwargs={"first": {"name": "run 7"}}
    )
    trackers.log({"loss": 0.5}, step=1)
    trackers.finish()
    (tracker,) = two_of_our_own
    assert tracker.called == ["made for run 7 of digits", "start", "store_init_configuration", "log", "finish"]


@pytest.mark.parametrize("failing", ["start", "store_init_configuration", "finish"])
def test_no_tracker_stays_open_when_another_one_fails(
    two_of_our_own: list[Tracker], tmp_path: Path, failing: str
) -> None:
    """Whatever the second tracker cannot do, the first one is finished, and the error is told."""
    with pytest.raises((OSError, ConfigurationError), match=f"cannot {failing}"):
        open_trackers(
            ["first", "second"],
            "digits",
            logging_dir=tmp_path,
            config={"epochs": 1},
            init_kwargs={"second": {"fails_to": failing}},
        ).finish()
    first, second = two_of_our_own
    assert first.called[-1] == "finish"
    assert failing in second.called


SETTINGS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), SETTINGS, max_size=4))
def test_settings_become_plain_and_none_is_lost(config: dict[str, object]) -> None:
    """However nested, each setting has one name of its own and a value that every tracker takes and can give back."""

    def leaves(value: object) -> int:
        return sum(map(leaves, value.values())) if isinstance(value, dict) else 1

    flat = flatten_config(config)
    assert len(flat) == leaves(config)
    for value in flat.values():
        assert isinstance(value, bool | int | float | str)
        assert isinstance(value, str) or (math.isfinite(value) and float(value) == value)


def test_a_seed_keeps_all_of_its_digits() -> None:
    """An integer that a tracker would round is kept as text."""
    assert flatten_config({"seed": 2**63 - 1, "epochs": 3}) == {"seed": "9223372036854775807", "epochs": 3}
