"""The map of `pa_core` on the page about its architecture is complete, and tests can be found by name."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "maintainers" / "architecture.md"
ROOMS = ROOT / "packages" / "pa-core" / "src" / "pa_core"
TESTS = ROOT / "tests" / "pa_core"


def rows() -> list[tuple[str, str, list[str]]]:
    """The rows of the map: a room, its purpose, and its test files."""
    found: list[tuple[str, str, str]] = re.findall(
        r"^\| `([\w/]+)` \| ([^|]+) \| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE
    )
    return [(room, purpose, re.findall(r"`([\w/.]+\.py)`", tests)) for room, purpose, tests in found]


def test_each_room_has_one_row_with_a_purpose_and_tests() -> None:
    """Whoever changes a room finds out on the page what it is for, and which tests to run."""
    modules = {path.relative_to(ROOMS).with_suffix("").as_posix() for path in ROOMS.rglob("*.py")}
    rooms = {module for module in modules if not module.endswith("__init__")}
    mapped = Counter(room for room, _, _ in rows())
    assert mapped == Counter(rooms)
    assert [room for room, _, tests in rows() if not tests] == []


def test_each_test_file_is_on_the_page_and_each_that_is_there_exists() -> None:
    """A test file cannot be forgotten on the page, nor be named there once it is gone."""
    named = set(re.findall(r"`((?:\w+/)*test_\w+\.py)`", PAGE.read_text()))
    assert named == {path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}


def test_each_room_that_the_text_of_the_page_names_exists() -> None:
    """The walks of a batch and of a save lead through rooms that are there."""
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+)`", PAGE.read_text()))
    assert [room for room in sorted(named) if not (ROOMS / f"{room}.py").exists() and not (ROOT / room).exists()] == []


def test_no_two_test_files_have_the_same_name() -> None:
    """The name of a test file is enough to find it, and to say which one failed."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, number in names.items() if number > 1] == []
