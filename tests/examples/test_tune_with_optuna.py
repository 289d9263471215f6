"""The example that tunes prunes trials, and tells the truth about the best one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launching import Launch

pytest.importorskip("optuna")

EXAMPLE = Path(__file__).parents[2] / "examples" / "tune_with_optuna.py"


@pytest.mark.parametrize("ranks", [1, 2])
def test_pruned_trials_end_early(launch: Launch, ranks: int) -> None:
    """As many runs are stopped early as trials are pruned, and the lowest of the losses of the others is printed."""
    launched = launch(EXAMPLE, "--trials=6", "--epochs=3", ranks=ranks)
    assert launched.status == 0

    (pruned,) = re.findall(r"^Of 6 trials, (\d) were pruned\.$", launched.output, re.MULTILINE)
    (lowest,) = re.findall(r"^The lowest loss is ([\d.]+): learning_rate=", launched.output, re.MULTILINE)
    runs = launched.output.split("Training starts:")[1:]
    stopped = ["Stopping early: the trial is pruned" in run for run in runs]
    assert len(runs) == 6
    assert 0 < sum(stopped) == int(pruned) < 6
    ended = [re.findall(r"^Training ended: (\d) epochs?", run, re.MULTILINE) for run in runs]
    assert [epochs == ["3"] for epochs in ended] == [not is_stopped for is_stopped in stopped]
    assert 0 < float(lowest) < 2.3
