"""The example whose images grow has one schedule over all of its stages."""

from __future__ import annotations

import re

import pytest

from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import WAYS


@pytest.mark.parametrize("way", WAYS[:2])
def test_the_rate_falls_to_its_end_in_the_last_stage(shared_launch: SharedLaunches, way: str) -> None:
    """Epochs are counted on, the cycle ends with the run, and the full size is recognised better with each stage."""
    launched = shared_launch("progressive_resizing", way)
    assert launched.status == 0
    rows = re.findall(r"^(\d) x \1 +(\d-\d) +([\d.]+) +([\d.]+)%$", launched.output, re.MULTILINE)
    assert [(size, epochs) for size, epochs, _, _ in rows] == [("4", "1-2"), ("6", "3-4"), ("8", "5-6")]
    rates = [float(rate) for _, _, rate, _ in rows]
    assert rates[0] > rates[1] > rates[2] == 0.0
    shares = [float(share) for *_, share in rows]
    assert shares[0] < shares[1] < shares[2]
