"""The trial that recognises digits reaches its accuracy in every way that a user can launch it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.ways import WAYS, launch_example


@pytest.mark.parametrize("way", WAYS)
def test_the_digits_are_recognised(way: str, tmp_path: Path) -> None:
    """Each validation is reported once, and the best checkpoint is kept beside the last one."""
    launched = launch_example("trials/trial_digits", "--epochs=3", way=way, folder=tmp_path)

    assert launched.status == 0
    reported = re.findall(r"Epoch (\d): recognised ([\d.]+)% of the validation digits", launched.output)
    assert [epoch for epoch, _ in reported] == ["1", "2", "3"]
    assert float(reported[-1][1]) >= 93
    assert list((tmp_path / "outputs" / "trial_digits").rglob("state_dict.pth"))
