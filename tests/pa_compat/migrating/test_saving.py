"""What the pages on differences from the original say of saving: a test for each row."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    CheckpointError,
)
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import (
    SaveBestModelCallback,
    TrainerCallback,
)
from pytorch_accelerated.schedulers import CosineLrScheduler
from tests.small_runs import make_trainer, samples


def test_extra_entries(tmp_path: Path) -> None:
    """A function cannot be loaded safely: nothing is written, and the file from before is still there."""
    trainer = make_trainer()
    path = tmp_path / "model.pt"
    trainer.save_checkpoint(path, checkpoint_kwargs={"note": "first", "seen": torch.ones(2)})
    with pytest.raises(CheckpointError, match="function"):
        trainer.save_checkpoint(path, checkpoint_kwargs={"function": print})
    assert trainer.load_checkpoint(path)["note"] == "first"


def test_unpickling(tmp_path: Path) -> None:
    """A file with plain values loads, whoever wrote it; one with a number of numpy is refused, with what to do."""
    trainer = make_trainer()
    states = {"model_state_dict": trainer.model.state_dict(), "optimizer_state_dict": trainer.optimizer.state_dict()}
    torch.save({**states, "accuracy": 0.5, "seen": torch.ones(3)}, tmp_path / "plain.pt")
    torch.save({**states, "accuracy": np.float64(0.5)}, tmp_path / "numpy.pt")
    assert trainer.load_checkpoint(tmp_path / "plain.pt")["accuracy"] == 0.5
    with pytest.raises(CheckpointError, match="weights_only=False"):
        trainer.load_checkpoint(tmp_path / "numpy.pt")


def test_mismatch(tmp_path: Path) -> None:
    """The weights of another model leave this one as it is, and the error says where they differ."""
    make_trainer(model=nn.Sequential(nn.Linear(2, 1).double())).save_checkpoint(tmp_path / "other.pt")
    trainer = make_trainer()
    before = trainer.model.state_dict()
    with pytest.raises(CheckpointError, match=r"0\.weight"):
        trainer.load_checkpoint(tmp_path / "other.pt")
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


def test_best_entries(tmp_path: Path) -> None:
    """The file of the best model says which metric it is the best of, how good it is, and when that was."""
    save = SaveBestModelCallback(tmp_path / "best.pt")
    trainer = make_trainer(Trainer, save)
    trainer.train(samples(4), 2, eval_dataset=samples(4))
    content = torch.load(tmp_path / "best.pt", weights_only=True)
    best = min(trainer.run_history.get_metric_values("eval_loss_epoch"))
    assert (content["watch_metric"], content["best_value"], content["best_epoch"]) == ("eval_loss_epoch", best, 2)


def test_replaced(tmp_path: Path) -> None:
    """A file that somebody else wrote in the meantime is not taken for the best model of this run."""
    path = tmp_path / "best.pt"

    class Overwrite(TrainerCallback):
        @override
        def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            trainer.save_checkpoint(path)

    trainer = make_trainer(Trainer, SaveBestModelCallback(path), Overwrite)
    with pytest.raises(CheckpointError, match="replaced"):
        trainer.train(samples(4), 1, eval_dataset=samples(4))


def test_foreign_states(tmp_path: Path) -> None:
    """A state that accelerate wrote is refused with the code that loads its weights, and nothing is unpickled."""
    saved = make_trainer()
    accelerator: Any = saved._accelerator  # pyright: ignore[reportPrivateUsage]  # as users do
    accelerator.prepare(saved.model, saved.optimizer)
    accelerator.save_state(str(tmp_path / "epoch_1"))
    torch.default_generator.manual_seed(1)
    trainer = make_trainer(model=nn.Linear(2, 1).double())
    with pytest.raises(CheckpointError, match="accelerate") as refused:
        trainer.train(samples(4), 1, resume_from=tmp_path / "epoch_1")
    exec(refused.value.do.split("train(): ")[1], {"trainer": trainer, "torch": torch})
    assert torch.equal(cast("Any", trainer.model).weight, cast("Any", saved.model).weight)


def test_foreign_scheduler(tmp_path: Path) -> None:
    """A checkpoint with the state of a scheduler of pytorch-accelerated loads without it, as the error says."""
    trainer = make_trainer()
    factory = CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=0, lr_min=0.0)
    trainer.train(samples(4), 1, create_scheduler_fn=factory)
    states = {"model_state_dict": trainer.model.state_dict(), "optimizer_state_dict": trainer.optimizer.state_dict()}
    attributes = {"param_group_field": "lr", "total_num_epochs": 1, "num_updates": 1}  # and others, in the original
    torch.save({**states, "scheduler_state_dict": attributes}, tmp_path / "model.pt")
    with pytest.raises(
        CheckpointError, match=r"of pytorch-accelerated\. Nothing was loaded(.|\n)*load_scheduler=False"
    ):
        trainer.load_checkpoint(tmp_path / "model.pt")
    assert trainer.load_checkpoint(tmp_path / "model.pt", load_scheduler=False)["scheduler_state_dict"] == attributes
