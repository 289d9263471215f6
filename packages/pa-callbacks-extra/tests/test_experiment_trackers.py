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
from pa_core.errors import ConfigurationError, ExplainedError, UnsupportedConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOT_INSTALLED = next(name for name in known_trackers() if name not in installed_trackers())


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
