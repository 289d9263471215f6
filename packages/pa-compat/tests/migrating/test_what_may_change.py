"""What docs/migrating.md says that a script may have to change; each test has the name of a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.optim.lr_scheduler import StepLR
from typing_extensions import override

from pa_core import ConfigurationError
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import TrainerCallback
from tests.small_runs import make_trainer, samples


@pytest.mark.parametrize("name", ["num_processes", "process_index", "is_main_process", "mixed_precision"])
def test_new_names(name: str) -> None:
    """What a trainer knows of its process cannot be replaced by an attribute of a subclass."""
    with pytest.raises(AttributeError, match=name):
        setattr(make_trainer(), name, 1)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("_perform_forward_and_backward_passes", "calculate_train_batch_loss.*backward_step"),
        ("_update_loss_tracker", "num_items_in_batch"),
        ("_add_epoch_loss_to_run_history", "run_history.update_metric.*eval_epoch_end"),
    ],
)
def test_never_called(name: str, instead: str) -> None:
    """An override of a method that the loop does not have is refused where its class is defined, in a mixin too."""
    with pytest.raises(TypeError, match=rf"Overrides\.{name} .*{instead}"):
        type("Overrides", (Trainer,), {name: make_trainer})
    mixin = type("Mixin", (), {name: make_trainer})
    with pytest.raises(TypeError, match=rf"Mixin\.{name}"):
        type("Overrides", (mixin, Trainer), {})


def test_batch_size_check() -> None:
    """A check that is not needed is told of, with the line that defines it; the trainer trains as without."""
    with pytest.warns(UserWarning, match="_check_eval_batch_size is never called") as warned:

        class Unchecked(Trainer):
            def _check_eval_batch_size(self) -> None:
                raise AssertionError

    assert warned[0].filename == __file__

    class Derived(Unchecked):
        """Was warned of already, and is not again."""

    make_trainer(Derived).train(samples(4), 1, eval_dataset=samples(4))


def test_fourth_argument(tmp_path: Path) -> None:
    """False in the fourth place is refused with both names; with a name, a fifth argument or True it is clear."""
    trainer = make_trainer()
    trainer.train(samples(4), 1, create_scheduler_fn=lambda optimizer: StepLR(optimizer, 1))
    path = tmp_path / "model.pt"
    with pytest.raises(ConfigurationError, match="as save_per_node or as save_scheduler"):
        trainer.save_checkpoint(path, None, True, False)
    assert not path.exists()
    trainer.save_checkpoint(path, None, True, False, True)
    assert "scheduler_state_dict" not in trainer.load_checkpoint(path)
    trainer.save_checkpoint(path, None, True, save_scheduler=False)
    assert "scheduler_state_dict" not in trainer.load_checkpoint(path)
    trainer.save_checkpoint(path, None, True, True)
    assert "scheduler_state_dict" in trainer.load_checkpoint(path)
    trainer.save_checkpoint(path, None, True, save_per_node=False)
    assert "scheduler_state_dict" in trainer.load_checkpoint(path)


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
