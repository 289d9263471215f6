"""The errors that users catch and read."""

from __future__ import annotations

import copy
import pickle

import pytest

from pa_core import errors
from pa_core.errors import (
    BatchOutputError,
    CheckpointError,
    ConfigurationError,
    EmptyDatasetError,
    ExplainedError,
    MetricNotFoundError,
    NonFiniteLossError,
    StateNotFoundError,
    StopTrainingError,
    UnsupportedConfigurationError,
)

BUILT_IN_BASES: list[tuple[type[ExplainedError | CheckpointError], type[Exception]]] = [
    (BatchOutputError, TypeError),
    (CheckpointError, RuntimeError),
    (ConfigurationError, ValueError),
    (EmptyDatasetError, ValueError),
    (MetricNotFoundError, KeyError),
    (NonFiniteLossError, ArithmeticError),
    (StateNotFoundError, FileNotFoundError),
    (UnsupportedConfigurationError, RuntimeError),
]


@pytest.mark.parametrize(("error", "built_in"), BUILT_IN_BASES)
def test_errors_are_caught_as_the_built_in_exception(
    error: type[ExplainedError | CheckpointError], built_in: type[Exception]
) -> None:
    """Code that catches Python's own exception for a mistake catches ours."""
    with pytest.raises(built_in):
        raise error("Wrong.", given="a", expected="b", do="Do c.")


@pytest.mark.parametrize("error", [error for error, _ in BUILT_IN_BASES])
def test_the_text_has_every_part_on_a_line_of_its_own(error: type[ExplainedError | CheckpointError]) -> None:
    """The printed error says what is wrong, what was given, what was expected and what to do."""
    text = str(error("It's wrong.", given="a 'quoted' value", expected="b", do="Do c."))

    assert text.splitlines() == ["It's wrong.", "  given:    a 'quoted' value", "  expected: b", "  do:       Do c."]


@pytest.mark.parametrize("error", [error for error, _ in BUILT_IN_BASES])
def test_errors_come_back_whole_from_another_process(error: type[ExplainedError | CheckpointError]) -> None:
    """An error that is pickled or copied keeps its type, its text and its parts."""
    original = error("Wrong.", given="a", expected="b", do="Do c.")

    for returned in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
        assert type(returned) is error
        assert str(returned) == str(original)
        assert (returned.problem, returned.given, returned.expected, returned.do) == ("Wrong.", "a", "b", "Do c.")


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
