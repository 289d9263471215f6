"""The trial with a generator and a discriminator trains both in every way that a user can launch it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.ways import WAYS, launch_example


@pytest.mark.parametrize("way", WAYS)
def test_a_generator_comes_nearer_to_the_digits(way: str, tmp_path: Path) -> None:
    """The mean of what it makes; one that has learned nothing is 0.55 away."""
    launched = launch_example("trials/trial_gan", "--epochs=10", way=way, folder=tmp_path)

    assert launched.status == 0
    reported = re.findall(r"Epoch (\d+): the mean generated pixel is ([\d.]+) from", launched.output)
    assert [epoch for epoch, _ in reported] == ["5", "10"]
    assert float(reported[-1][1]) < 0.4
