"""What the pages on differences from the original say of callbacks: a test for each row."""

from __future__ import annotations

import re
from pathlib import Path

from pytorch_accelerated.callbacks import TrainerCallback
from tests.support.pa_compat.documented_events import EVENTS

PAGE = Path(__file__).parents[4] / "docs" / "maintainers" / "differences-from-pytorch-accelerated.md"


def test_new_events() -> None:
    """The events that the page lists are those that are not documented."""
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith("| <!-- new_events -->")]
    documented = {*EVENTS, "new_events"}
    listed = {name for name in re.findall(r"`(\w+)`", row) if name not in documented}
    ours = {name for name in vars(TrainerCallback) if name.startswith("on_")}
    assert listed == ours - documented
