"""The lines that must fail are about all events and type parameters, and say what each of them is about."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pa_core import TrainerCallback
from pa_core.engine.any_trainer import EVENT_NAMES
from tests.repository.api import MODULES

FOLDER = Path(__file__).with_name("must_fail")
MARKED = re.compile(
    r"  # type: ignore\[[\w, -]+\]  # pyright: ignore\[\w+(, \w+)*\]  # (?P<name>[\w.]+)(\[(?P<parameter>\w+)\])?: .+$"
)


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


def test_events_with_arguments_of_their_own_are_overridden_wrongly_once() -> None:
    """A callback that does not take what such an event is called with is an error."""
    names = {line.name.rpartition(".")[2] for line in marked_lines()}
    own = {name for name in EVENT_NAMES if len(inspect.signature(getattr(TrainerCallback, name)).parameters) > 3}
    assert own - names == set()


def test_every_type_parameter_is_held_to() -> None:
    """Each parameter of each public generic class has a line that fails because of it."""
    classes = generic_classes()
    tried = {(class_of(line.name, classes), line.parameter) for line in marked_lines() if line.parameter is not None}
    assert tried == {(name, parameter) for name, known in classes.items() for parameter in known}
