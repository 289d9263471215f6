"""The example of rare digits shows what it says."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from pa_core.orders import ClassBalanced, Shuffled

EXAMPLE = Path(__file__).parents[2] / "examples" / "imbalanced_digits.py"


def test_class_balance_finds_rare_digits() -> None:
    """With equally many samples of each digit, many more of the rare ones are recognised after equally many updates."""
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    data, tests = example["load_data"]()
    assert (len(data), len(tests["rare"]) + len(tests["common"])) == (867, 597)
    rare: dict[str, float] = {}
    for order in (Shuffled(), ClassBalanced(data.digits, num_samples=len(data))):
        trainer = example["train"](order, data, tests, epochs=4)
        rare[type(order).__name__] = trainer.run_history.get_latest_metric("evaluation_rare_accuracy")
    assert rare["ClassBalanced"] > rare["Shuffled"] + 0.1
