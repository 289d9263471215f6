"""The page about callbacks lists all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pa_callbacks_extra
import pa_core
import pa_schedulers
from pa_core import DEFAULT_CALLBACKS, TrainerCallback

PAGE = Path(__file__).parents[2] / "docs" / "callbacks.md"


def test_the_page_lists_each_callback_and_whether_it_is_a_default() -> None:
    """A callback that can be imported can be found on the page."""
    rows = re.findall(r"^\| `(\w+)` \|(?: (yes|no) \|)?", PAGE.read_text(), re.MULTILINE)
    offered = {
        name: kind in DEFAULT_CALLBACKS
        for package in (pa_core, pa_callbacks_extra, pa_schedulers)
        for name in package.__all__
        if isinstance(kind := getattr(package, name), type) and issubclass(kind, TrainerCallback)
    }
    del offered["TrainerCallback"]
    assert {name: default == "yes" for name, default in rows if name.endswith("Callback")} == offered
