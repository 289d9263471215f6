"""What the reference documents can be called as it documents it: names, order and defaults of all parameters."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from pytorch_accelerated import TrainerPlaceholderValues, callbacks, tracking
from pytorch_accelerated.utils import ModelEma

LINES = Path(__file__).with_name("documented_signatures.txt").read_text().splitlines()
SIGNATURES = dict(line.removesuffix(")").split("(", 1) for line in LINES)
"""By the documented path: the parameters as the reference gives them."""


def documented(path: str) -> Any:
    """The object at a path, looked for in the longest module that there is."""
    parts = f"pytorch_accelerated.{path}".split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            found = inspect.getattr_static(found, name) if inspect.isclass(found) else getattr(found, name)
        return found.__get__(None, object) if isinstance(found, classmethod) else found
    raise AssertionError(path)


def parameters_of(text: str) -> list[inspect.Parameter]:
    """The parameters that a text writes down."""
    names = {"DEFAULT_CALLBACKS": callbacks.DEFAULT_CALLBACKS, "ModelEma": ModelEma, "Values": TrainerPlaceholderValues}
    return list(inspect.signature(eval(f"lambda {text}: None", names)).parameters.values())


@pytest.mark.parametrize("path", SIGNATURES)
def test_the_documented_parameters_are_accepted(path: str) -> None:
    """The documented parameters come first, in their order and with their defaults; others have defaults too.

    Where any other keywords are accepted, as by events, there are no others.
    """
    ours = list(inspect.signature(documented(path)).parameters.values())
    if ours and ours[0].name == "cls":
        del ours[0]
    expected = parameters_of(SIGNATURES[path])

    by_position = [one for one in expected if one.kind in (one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL)]
    by_name = {one.name: one for one in ours}
    assert [one.name for one in ours[: len(by_position)]] == [one.name for one in by_position]
    for parameter in expected:
        if parameter.default is not parameter.empty:
            assert by_name[parameter.name].default == parameter.default, parameter.name
    further = [one for one in ours[len(by_position) :] if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    assert all(one.default is not one.empty for one in further)
    if any(one.kind is one.VAR_KEYWORD for one in expected):
        assert [*by_name] == [one.name for one in expected]


def test_a_run_history_of_ones_own_implements_the_documented_methods_only() -> None:
    """What is abstract in the base class is what the reference says a history has to implement, and no more."""
    abstract = {
        "get_latest_metric",
        "get_metric_names",
        "get_metric_values",
        "metric_name_prefix",
        "reset",
        "set_metric_name_prefix",
        "update_metric",
    }
    assert tracking.RunHistory.__abstractmethods__ <= abstract | {"current_epoch"}
