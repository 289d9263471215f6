"""The trial with metric reducers counts each validation digit once, however many processes share them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.ways import WAYS, launch_example


@pytest.mark.parametrize("way", WAYS)
def test_each_digit_is_counted_once(way: str, tmp_path: Path) -> None:
    """After each epoch there is one line of metrics over all 297 digits."""
    launched = launch_example("trials/trial_reducers", "--epochs=3", way=way, folder=tmp_path)

    assert launched.status == 0
    reported = re.findall(
        r"Of (\d+) digits, \d is recognised worst: ([\d.]+)%; the median confidence is ([\d.]+)", launched.output
    )
    assert [number for number, _, _ in reported] == ["297"] * 3
    assert float(reported[-1][1]) > 70
    assert 0.8 < float(reported[-1][2]) <= 1
