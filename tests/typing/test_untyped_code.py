"""Code without types runs as it always did: nothing of ours needs an annotation of its user's."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = Path(__file__).with_name("untyped_script.py")


def test_a_script_without_types_runs_unchanged(tmp_path: Path) -> None:
    """Callbacks, hooks, events, a history and a scheduler of one's own, under the names that scripts know."""
    trainer, rows = runpy.run_path(str(SCRIPT))["main"](tmp_path)

    assert rows == 5 * 96
    assert trainer.run_history.get_latest_metric("accuracy") > 0.8
    assert {"ema_model_eval_loss_epoch", "train_loss_epoch"} <= trainer.run_history.get_metric_names()
    assert {path.name for path in tmp_path.iterdir()} == {"best.pt", "ema.pt"}
