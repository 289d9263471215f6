"""The lines that must fail are many, are about everything, and say what each of them is about."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pa_core.any_trainer import EVENT_NAMES
from tests.repository.api import MODULES

FOLDER = Path(__file__).with_name("must_fail")
MARKED = re.compile(
    r"  # type: ignore\[[\w, -]+\]  # pyright: ignore\[\w+(, \w+)*\]  # (?P<name>[\w.]+)(\[(?P<parameter>\w+)\])?: .+$"
)
LEAST = 60
MOST_OF_ONE_NAME = 3


@dataclass(frozen=True)
class Marked:
    """A line that must fail: the public name that it is about, and perhaps a type parameter of its class."""

    name: str
    parameter: str | None


def marked_lines() -> list[Marked]:
    """All lines that must fail."""
    lines = [line for path in sorted(FOLDER.glob("*.py")) for line in path.read_text().splitlines()]
    found = [match for match in map(MARKED.search, lines) if match is not None]
    assert len(found) == sum("ignore[" in line for line in lines), "an ignore without a name, or for one checker alone"
    return [Marked(match["name"], match["parameter"]) for match in found]


def generic_classes() -> dict[str, set[str]]:
    """The public classes with type parameters, and what these are called."""
    found: dict[str, set[str]] = {}
    objects: set[Any] = set()
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            value = getattr(importlib.import_module(module), name)
            parameters: tuple[Any, ...] = getattr(value, "__parameters__", ())
            if inspect.isclass(value) and parameters and value not in objects:
                objects.add(value)
                found[f"{module}.{name}"] = {parameter.__name__ for parameter in parameters}
    return found


def class_of(name: str, classes: Iterable[str]) -> str | None:
    """The class that a name is the one of, or is a member of."""
    return max((one for one in classes if f"{name}.".startswith(f"{one}.")), key=len, default=None)


def exists(name: str) -> bool:
    """Whether a dotted name leads to something that can be imported, or to an attribute that is annotated."""
    parts = name.split(".")
    split = max(number for number in range(1, len(parts) + 1) if _is_module(".".join(parts[:number])))
    value: Any = importlib.import_module(".".join(parts[:split]))
    for part in parts[split:]:
        annotated = inspect.isclass(value) and any(part in inspect.get_annotations(base) for base in value.__mro__)
        if annotated and not hasattr(value, part):
            return part == parts[-1]
        if not hasattr(value, part):
            return part == parts[-1] and f"self.{part}" in inspect.getsource(value)
        value = getattr(value, part)
    return True


def _is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def test_there_are_enough_lines_that_must_fail() -> None:
    """Each of them is an error to both checkers: its two ignores would be reported as needless if it were not."""
    assert len(marked_lines()) >= LEAST


def test_no_name_takes_up_more_than_its_share() -> None:
    """What is tried is spread over the whole interface."""
    counts = Counter(line.name for line in marked_lines())
    assert {name: count for name, count in counts.items() if count > MOST_OF_ONE_NAME} == {}


@pytest.mark.parametrize("name", sorted({line.name for line in marked_lines()}))
def test_a_marked_line_is_about_something_that_there_is(name: str) -> None:
    """A name that was changed is changed here too."""
    assert exists(name)


def test_every_event_is_overridden_wrongly_once() -> None:
    """A callback that does not take what an event is called with is an error, whichever event it is."""
    events = {
        line.name.rpartition(".")[2] for line in marked_lines() if line.name.startswith("pa_core.TrainerCallback.")
    }
    assert events == EVENT_NAMES


def test_every_type_parameter_is_held_to() -> None:
    """Each parameter of each public generic class has a line that fails because of it."""
    classes = generic_classes()
    tried = {(class_of(line.name, classes), line.parameter) for line in marked_lines() if line.parameter is not None}
    assert tried == {(name, parameter) for name, known in classes.items() for parameter in known}
