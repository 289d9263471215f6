"""The example with a generator and a discriminator trains both on two ranks."""

from __future__ import annotations

import re

from tests.examples.shared_launches import SharedLaunches


def test_a_generator_comes_nearer_to_the_digits(shared_launch: SharedLaunches) -> None:
    """The mean of what it makes; one that has learned nothing is twice as far away."""
    launched = shared_launch("gan", "torchrun with two ranks")

    assert launched.status == 0
    assert launched.output.count("Epoch 30:") == 1
    distance = float(re.findall(r"is ([\d.]+) from", launched.output)[0])
    assert distance < 0.35
