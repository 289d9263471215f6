"""The recipes of the page on schedulers save what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.optim import SGD

from pa_core import DEFAULT_CALLBACKS, Trainer
from pa_core.testing import make_regression

PAGE = (Path(__file__).parents[3] / "docs" / "schedulers.md").read_text()


def test_the_recipes_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pasted into a script with a model, an optimizer and ten batches, they train, save, and train on."""
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(4, 1)
    optimizer, loss_func = SGD(model.parameters(), lr=0.01), nn.MSELoss()
    names: dict[str, Any] = {
        "DEFAULT_CALLBACKS": DEFAULT_CALLBACKS,
        "Trainer": Trainer,
        "loss_func": loss_func,
        "model": model,
        "optimizer": optimizer,
        "eval_dataset": make_regression(20),
        "train_dataset": make_regression(80),
        "trainer": Trainer(model, loss_func, optimizer),
    }

    for recipe in re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE):
        exec(recipe, names)

    saved = sorted(path.name for path in Path("checkpoints").iterdir())
    assert len(saved) == 6
    assert saved == sorted(set(re.findall(r"`(checkpoint_\d+_\w+(?:\.pt)?)`", PAGE)))
    assert names["trainer"].num_updates_completed == 200
    assert {path.name for path in Path("longer").iterdir()} == {
        "checkpoint_180_wsd_pre_decay",
        "checkpoint_200_wsd_post_decay.pt",
    }
