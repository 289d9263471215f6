"""The example with a model of timm trains more of it in each stage, and recognises more of the new digits."""

from __future__ import annotations

import re
from pathlib import Path

from tests.examples.ways import launch_example


def test_each_stage_trains_more_layers(tmp_path: Path) -> None:
    """The first trains the head alone, the last all but the input; with it, more digits are recognised."""
    launched = launch_example("finetune_timm", "--epochs=2", way="python", folder=tmp_path, beside_torchvision=True)

    assert launched.status == 0
    stages = re.findall(r"^Stage \d: ([\d,]+) parameters trained, ([\d.]+)%", launched.output, re.MULTILINE)
    trained = [int(number.replace(",", "")) for number, _ in stages]
    shares = [float(share) for _, share in stages]
    assert trained[0] == 453
    assert trained == sorted(set(trained))
    assert shares[-1] > max(80, shares[0])
