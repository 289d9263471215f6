"""The example that classifies texts leaves one run of Weights & Biases, with the mistakes in a table."""

from __future__ import annotations

import json
import re

from tests.examples.shared_launches import SharedLaunches


def test_the_mistakes_are_a_table_of_the_only_run(shared_launch: SharedLaunches) -> None:
    """On two ranks there is one run, whose table has as many rows as texts were classified wrongly."""
    launched = shared_launch("classify_texts", "torchrun with two ranks")

    assert launched.status == 0
    numbers = re.findall(r"\d+", launched.output.splitlines()[-1])
    (table,) = launched.folder.glob("outputs/classify_texts/wandb/offline-run-*/files/media/table/mistakes_*.json")
    rows = json.loads(table.read_text())["data"]
    assert len(rows) == int(numbers[0]) - int(numbers[1])
    assert all(chapter != predicted for _, chapter, predicted in rows)
