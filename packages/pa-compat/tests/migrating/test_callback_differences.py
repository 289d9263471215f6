"""What the pages on differences from the original say of callbacks: a test for each row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from pa_core import AnyTrainer
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import TrainerCallback
from tests.small_runs import make_trainer, samples
from tests.support.pa_compat.documented_events import EVENTS

PAGE = Path(__file__).parents[4] / "docs" / "maintainers" / "differences-from-pytorch-accelerated.md"


def test_new_events() -> None:
    """The events that the page lists are those that are not documented, and a method of this name is called."""
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith("| <!-- new_events -->")]
    documented = {*EVENTS, "new_events"}
    listed = {name for name in re.findall(r"`(\w+)`", row) if name not in documented}
    ours = {name for name in vars(TrainerCallback) if name.startswith("on_")}
    assert listed == ours - documented
    called: list[str] = []

    class Fails(TrainerCallback):
        @override
        def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            called.append("on_prepare_start")

        @override
        def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
            called.append("on_optimizer_step_end")

        @override
        def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            raise KeyError

        @override
        def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
            called.append("on_exception")

    with pytest.raises(KeyError):
        make_trainer(Trainer, Fails).train(samples(4), 1)
    assert called == ["on_prepare_start", "on_optimizer_step_end", "on_exception"]
