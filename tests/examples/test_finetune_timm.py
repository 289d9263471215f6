"""The example with a model of timm trains more of it in each stage, and recognises more of the new digits."""

from __future__ import annotations

import re

from tests.examples.shared_launches import SharedLaunches


def test_each_stage_trains_more_layers(shared_launch: SharedLaunches) -> None:
    """The first trains the head alone, the last all but the input; with it, more digits are recognised."""
    launched = shared_launch("finetune_timm", "torchrun with two ranks")

    assert launched.status == 0
    stages = re.findall(r"^Stage \d: ([\d,]+) parameters trained, ([\d.]+)%", launched.output, re.MULTILINE)
    trained = [int(number.replace(",", "")) for number, _ in stages]
    shares = [float(share) for _, share in stages]
    assert trained[0] == 453
    assert trained == sorted(set(trained))
    assert shares[-1] > max(80, shares[0])
