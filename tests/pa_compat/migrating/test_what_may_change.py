"""What docs/migrating.md says that a script may have to change; each test has the name of a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import TrainerCallback
from tests.pa_compat.migrating.small_runs import make_trainer, samples


def test_private_names() -> None:
    """A helper of a subclass that would replace a part of the loop is refused where it is defined."""
    with pytest.raises(TypeError, match=r"_update.*Rename it"):
        type("WithHelper", (Trainer,), {"_update": make_trainer})


def test_accelerate_state(tmp_path: Path) -> None:
    """The state that accelerate saves by itself has the model, and no optimizer."""

    class Save(TrainerCallback[Trainer]):
        @override
        def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
            accelerator: Any = trainer._accelerator  # pyright: ignore[reportPrivateUsage]  # as users do
            accelerator.save_state(str(tmp_path))

    make_trainer(Trainer, Save).train(samples(4), 1)
    saved = {path.stem for path in tmp_path.iterdir()}
    assert "model" in saved
    assert "optimizer" not in saved
