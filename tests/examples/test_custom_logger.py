"""The logger of the example writes each metric once, also in a run that was killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import WAYS
from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_logger.py"
KILLED_AFTER = Path(__file__).parent / "killed_after.py"


def read_lines(path: Path) -> list[dict[str, float]]:
    """The objects of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_has_each_line_once(launch: Launch, shared_launch: SharedLaunches, ranks: int) -> None:
    """Killed in an epoch and started again, the file is that of a run that was not interrupted."""
    updates = -(-1200 // (32 * ranks))
    whole = shared_launch("custom_logger", WAYS[ranks - 1])
    killed = launch(KILLED_AFTER, str(2 * updates + 5), str(EXAMPLE), "--epochs=3", "--output=killed", ranks=ranks)
    assert killed.status != 0
    assert len(read_lines(launch.folder / "killed" / "metrics.jsonl")) == 4

    assert launch(EXAMPLE, "--epochs=3", "--output=killed", ranks=ranks).status == 0

    lines = read_lines(launch.folder / "killed" / "metrics.jsonl")
    assert lines == read_lines(whole.folder / "outputs" / "custom_logger" / "metrics.jsonl")
    expected = [
        (epoch, epoch * updates, name) for epoch in (1, 2, 3) for name in ("train_loss_epoch", "eval_loss_epoch")
    ]
    assert [(line["epoch"], line["update"], [*line][2]) for line in lines] == expected
