"""What docs/migrating.md says that a script may have to change, and of loop, callbacks and data: a test for each."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, BatchMismatchError, CheckpointError, ConfigurationError
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


PACKAGES = Path(__file__).parents[4] / "packages"


@pytest.mark.runs_on("one_process", "two_ranks")
def test_own_optimizer() -> None:
    """While a run goes on, the optimizer is the one that was given."""
    seen: list[torch.optim.Optimizer] = []

    class NoteOptimizer(TrainerCallback):
        @override
        def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            seen.append(trainer.optimizer)

    trainer = make_trainer(Trainer, NoteOptimizer)
    optimizer = trainer.optimizer
    trainer.train(samples(4), 1)
    assert seen == [optimizer]


def mean_square(outputs: Tensor, wanted: Tensor) -> Tensor:
    """A loss that has its targets without the dimension of the outputs."""
    return (outputs - wanted[:, None]).square().mean()


def test_broadcast() -> None:
    """Outputs are not compared with the targets of other samples; a loss function of one's own decides for itself."""
    inputs, targets = samples(4).tensors
    flat = TensorDataset(inputs, targets[:, 0])
    with pytest.raises(BatchMismatchError, match=r"shape \(4, 1\), targets of shape \(4,\)"):
        make_trainer().train(flat, 1)
    trainer = make_trainer()
    trainer.loss_func = mean_square
    trainer.train(flat, 1)
    assert trainer.num_updates_completed == 1


def test_versions() -> None:
    """The floors on the page are those that are declared."""
    declared = (PACKAGES / "pa-core" / "pyproject.toml").read_text()
    floors = ['requires-python = ">=3.11"', '"torch>=2.11"', '"accelerate>=1.13.0"']
    assert [floor for floor in floors if floor not in declared] == []
    assert sys.version_info >= (3, 11)


PAGE = Path(__file__).parents[4] / "docs" / "maintainers" / "differences-from-pytorch-accelerated.md"


def test_new_events() -> None:
    """The events that the page lists are those that are not documented."""
    signatures = (Path(__file__).parents[1] / "documented_signatures.txt").read_text()
    documented = set(re.findall(r"^callbacks\.TrainerCallback\.(on_\w+)", signatures, re.MULTILINE))
    (row,) = [line for line in PAGE.read_text().splitlines() if "::test_new_events -->" in line]
    ours = {name for name in vars(TrainerCallback) if name.startswith("on_")}
    assert set(re.findall(r"`(\w+)`", row)) - documented == ours - documented
