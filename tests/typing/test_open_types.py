"""Wherever a public signature is open, somebody has written down why."""

from __future__ import annotations

import re
from pathlib import Path

from tests.repository.api import MODULES
from tests.typing.checkers import PACKAGES, ROOT, TypedEnvironment
from tests.typing.open_types import find_open_types, line_for, read_reasons


def folders(environment: TypedEnvironment) -> list[Path]:
    """The installed packages."""
    return [environment.site_packages / package for package in PACKAGES.values()]


def test_what_is_open_has_a_reason(environment: TypedEnvironment) -> None:
    """Each `Any`, `object` or function of whatever arguments in a public signature is in `open_types.txt`."""
    reasons = read_reasons()
    assert [place for place in find_open_types(folders(environment)) if line_for(place, reasons) is None] == []


def test_each_reason_is_for_something(environment: TypedEnvironment) -> None:
    """What is not open any more leaves the list."""
    reasons = read_reasons()
    used = {line_for(place, reasons) for place in find_open_types(folders(environment))}
    assert sorted(reasons.keys() - used) == []


def test_the_documented_interface_has_a_line_for_each_place() -> None:
    """Whole modules have one reason only where the reference of the documentation does not show them."""
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    documented = {*re.findall(r"automodule:: ([\w.]+)", pages), *MODULES}
    modules = {line.removesuffix(".*") for line in read_reasons() if line.endswith(".*")}
    assert modules & documented == set()


def test_a_new_any_is_noticed(tmp_path: Path) -> None:
    """A parameter, a result, an attribute, an alias, a type in quotes: all are found, private ones are not."""
    package = tmp_path / "pa_new"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from pa_new._hall import ring\nfrom pa_new.room import Lamp\n__all__ = ['Lamp', 'ring']\n"
    )
    (package / "_hall.py").write_text(
        "from typing import Any\n"
        "__all__ = ['knock', 'ring']\n"
        "def ring(bell: Any) -> None: ...\n"
        "def knock(door: Any) -> None: ...\n"
    )
    (package / "room.py").write_text(
        "from typing import Any, Callable, TypeAlias, overload\n"
        "__all__ = ['Lamp', 'Switch', 'find']\n"
        "Switch: TypeAlias = 'list[Any]'\n"
        "class Lamp:\n"
        "    light: object\n"
        "    def __init__(self, bulb: int) -> None:\n"
        "        self.shade: dict[str, Any] = {}\n"
        "        self._cable: Any = None\n"
        "    def turn(self, *how: Any) -> Callable[..., int]: ...\n"
        "    def _repair(self, part: Any) -> None: ...\n"
        "class Candle(Lamp):\n"
        "    def turn(self, *how: Any, wick: Any) -> int: ...\n"
        "@overload\n"
        "def find(name: str) -> Lamp: ...\n"
        "def hidden(value: Any) -> Any: ...\n"
    )
    assert find_open_types([package]) == [
        "pa_new.Lamp.light",
        "pa_new.Lamp.shade",
        "pa_new.Lamp.turn.how",
        "pa_new.Lamp.turn.return",
        "pa_new.ring.bell",
        "pa_new.room.Switch",
    ]
