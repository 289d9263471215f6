"""The errors and warnings that users catch and read."""

from __future__ import annotations

import copy
import importlib
import pickle
import warnings
from types import ModuleType

import pytest

import pa_core
from pa_core import errors
from pa_core.errors import (
    BatchOutputError,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    ExplainedError,
    MetricNotFoundError,
    NonFiniteLossError,
    StopTrainingError,
    UnsupportedConfigurationError,
)
from pa_core.user_warnings import warn_user

BUILT_IN_BASES: list[tuple[type[ExplainedError], type[Exception]]] = [
    (BatchOutputError, TypeError),
    (CheckpointError, RuntimeError),
    (ConfigurationError, ValueError),
    (MetricNotFoundError, KeyError),
    (NonFiniteLossError, ArithmeticError),
    (CheckpointNotFoundError, FileNotFoundError),
    (UnsupportedConfigurationError, RuntimeError),
]


@pytest.mark.parametrize(("error", "built_in"), BUILT_IN_BASES)
def test_an_error_is_a_built_in_one_with_a_text_and_parts_that_it_keeps(
    error: type[ExplainedError], built_in: type[Exception]
) -> None:
    """It says on lines of its own what was given, expected and is to be done, also when it was pickled or copied."""
    original = error("It's wrong.", given="a 'quoted' value", expected="b", do="Do c.")
    assert isinstance(original, built_in)
    for one in (original, pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
        assert type(one) is error
        assert str(one) == "It's wrong.\n  given:    a 'quoted' value\n  expected: b\n  do:       Do c."
        assert (one.problem, one.given, one.expected, one.do) == ("It's wrong.", "a 'quoted' value", "b", "Do c.")


def test_a_stop_takes_any_message() -> None:
    """Callbacks stop a run with a plain sentence, which is not one of the failures."""
    stop = StopTrainingError("enough")

    assert str(stop) == "enough"
    assert not isinstance(stop, ExplainedError)


def test_public_names_are_complete_and_sorted() -> None:
    """Every error of the module is exported by name."""
    defined = {
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, BaseException)
    }

    assert errors.__all__ == sorted(defined)


def a_package_that_warns() -> ModuleType:
    """Another distribution, in which a function calls one that warns."""
    module = ModuleType("another_distribution.room")
    vars(module)["warn_user"] = warn_user
    exec("def inner():\n    warn_user('no effect')\n\ndef outer():\n    inner()\n", vars(module))
    return module


def test_a_warning_of_another_distribution_points_at_the_line_of_its_user() -> None:
    """Whoever reads the warning finds the file that caused it, not one of the library."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        a_package_that_warns().outer()
    assert [(str(one.message), one.filename) for one in caught] == [("no effect", __file__)]


def test_a_name_that_moved_is_found_with_a_warning() -> None:
    """Scripts keep working, and learn what to write."""
    with pytest.warns(DeprecationWarning, match=r"Import LossTracker from pa_core\.tracking\."):
        tracker = vars(pa_core)["__getattr__"]("LossTracker")
    assert tracker is importlib.import_module("pa_core.tracking").LossTracker
    with pytest.warns(DeprecationWarning, match=r"Import KeyedDataLoader from pa_core\.data\."):
        exec("from pa_core import KeyedDataLoader", {})
    with pytest.raises(AttributeError, match="has no attribute 'Traner'"):
        vars(pa_core)["__getattr__"]("Traner")
