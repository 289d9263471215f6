"""The page about callbacks: it lists all of them, and what it shows runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pa_callbacks_extra
import pa_core
import pa_schedulers
from pa_core import DEFAULT_CALLBACKS, TrainerCallback

PAGE = Path(__file__).parents[2] / "docs" / "callbacks.md"


def test_the_page_lists_each_callback_and_whether_it_is_a_default() -> None:
    """A callback that can be imported can be found on the page."""
    rows = re.findall(r"^\| \{py:class\}`~(\w+)\.(\w+)` \|(?: (yes|no) \|)?", PAGE.read_text(), re.MULTILINE)
    offered = {
        (package.__name__, name): kind in DEFAULT_CALLBACKS
        for package in (pa_core, pa_callbacks_extra, pa_schedulers)
        for name in package.__all__
        if isinstance(kind := getattr(package, name), type) and issubclass(kind, TrainerCallback)
    }
    del offered["pa_core", "TrainerCallback"]
    assert {(package, name): default == "yes" for package, name, default in rows} == offered


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be copied, and what it asserts holds."""
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(block, "callbacks.md", "exec"), {"__name__": "page"})  # it is our own page
