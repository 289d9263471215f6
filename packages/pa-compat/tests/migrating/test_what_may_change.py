"""What docs/migrating.md says that a script may have to change, and of saving and data: a test for each row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from typing_extensions import override

from pa_core import CheckpointError, ConfigurationError
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import TrainerCallback
from pytorch_accelerated.schedulers import CosineLrScheduler
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


def test_foreign_scheduler(tmp_path: Path) -> None:
    """A checkpoint with the state of a scheduler of pytorch-accelerated loads without it, as the error says."""
    trainer = make_trainer()
    factory = CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=0, lr_min=0.0)
    trainer.train(samples(4), 1, create_scheduler_fn=factory)
    states = {"model_state_dict": trainer.model.state_dict(), "optimizer_state_dict": trainer.optimizer.state_dict()}
    attributes = {"param_group_field": "lr", "total_num_epochs": 1, "num_updates": 1}  # and others, in the original
    torch.save({**states, "scheduler_state_dict": attributes}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"of pytorch-accelerated\.(.|\n)*load_scheduler=False"):
        trainer.load_checkpoint(tmp_path / "model.pt")
    assert trainer.load_checkpoint(tmp_path / "model.pt", load_scheduler=False)["scheduler_state_dict"] == attributes


everywhere = pytest.mark.runs_on("one_process", "two_ranks", "bf16")


def test_seed() -> None:
    """Each run draws once from the global generator of torch, and none of the others is touched."""
    torch.default_generator.manual_seed(0)
    trainer = make_trainer()
    torch.default_generator.manual_seed(0)
    trainer.train(samples(4), 1)
    after = torch.rand(3)
    torch.default_generator.manual_seed(0)
    expected_seed = int(torch.randint(2**63 - 1, ()).item())
    assert trainer.run_config.seed == expected_seed
    assert torch.equal(after, torch.rand(3))


@everywhere
def test_gather() -> None:
    """Different numbers of rows are gathered as they are; with a padding value, rows of nothing else are left out."""
    trainer = make_trainer()
    rank = trainer.process_index
    world = trainer.num_processes
    rows = torch.full((1 + rank,), rank)
    expected = [0] if world == 1 else [0, 1, 1]
    assert trainer.gather(rows).tolist() == expected
    assert trainer.gather(rows, padding_value=-1).tolist() == expected
    assert trainer.gather(rows, padding_value=1).tolist() == [0]
    placeholder = torch.tensor([-1, -1]) if rank == 0 else torch.ones(1, 2, dtype=torch.int64)
    assert trainer.gather(placeholder, padding_value=-1).tolist() == ([] if world == 1 else [[1, 1]])
