"""Checkpoints and exports of sharded models are those of whole ones."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, CheckpointError, OtherProcessError, SaveBestModelCallback, Trainer, TrainerCallback
from pa_core._tensors import whole_tensor
from tests.support.callbacks import CallAt
from tests.support.disks import full_disk
from tests.support.sharded_models import TinyTransformer, sentences, sharded, tiny_transformer, whole_weights

pytestmark = pytest.mark.runs_on("two_ranks")

DATA = TensorDataset(*sentences(23))


def make_trainer(
    *callbacks: TrainerCallback, seed: int = 0, kind: type[AdamW] | type[SGD] = AdamW, shard: bool = True
) -> Trainer[Any]:
    """A trainer of a model that is sharded or not, with an optimizer that has state."""
    model = tiny_transformer(seed)
    if shard:
        sharded(model)
    return Trainer(model, nn.CrossEntropyLoss(), kind(model.parameters(), lr=0.05), callbacks=callbacks)


def train(trainer: Trainer[Any]) -> None:
    """Train for a few updates, with a scheduler."""
    trainer.train(DATA, 1, per_device_batch_size=4, max_num_train_steps=2, create_scheduler_fn=halving)


def halving(optimizer: Optimizer) -> torch.optim.lr_scheduler.StepLR:
    """Halve the rate after each second update."""
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def whole_state(optimizer: Optimizer) -> dict[str, Tensor]:
    """The tensors that an optimizer keeps, put together; every process must call this."""
    by_parameter: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": whole_tensor(value).clone()
        for number, entries in by_parameter.items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }


def everything(trainer: AnyTrainer) -> dict[str, Tensor]:
    """Weights and state of the optimizer, put together."""
    return {**whole_weights(trainer.get_model()), **whole_state(trainer.optimizer)}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Equal to the last bit."""
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def test_a_checkpoint_is_that_of_the_whole_model(shared_tmp_path: Path) -> None:
    """Sharded and whole trainers load each other's files, and what they have then is equal to the last bit."""
    path = shared_tmp_path / "sharded.pt"
    first = make_trainer()
    train(first)
    first.save_checkpoint(path, {"note": "mine"})
    first.wait_for_everyone()
    content = torch.load(path, weights_only=True)
    assert_same(content["model_state_dict"], whole_weights(first.get_model()))

    whole = make_trainer(shard=False, seed=1)
    assert whole.load_checkpoint(path)["note"] == "mine"
    assert_same(everything(whole), everything(first))

    train(whole)
    whole.save_checkpoint(shared_tmp_path / "whole.pt")
    whole.wait_for_everyone()
    again = make_trainer(seed=2)
    again.load_checkpoint(shared_tmp_path / "whole.pt")
    assert_same(everything(again), everything(whole))
    train(again)  # what was loaded is of use to the optimizer


@pytest.mark.parametrize("size", ["5GB", 2000])
def test_an_export_is_that_of_the_whole_model(shared_tmp_path: Path, size: int | str) -> None:
    """The files have the names, the weights, the division and the index that those of a whole model have."""
    trainer = make_trainer()
    trainer.save_model(shared_tmp_path / "sharded", max_shard_size=size)
    make_trainer(shard=False).save_model(shared_tmp_path / "whole", max_shard_size=size)
    trainer.wait_for_everyone()

    files = {path.name for path in (shared_tmp_path / "whole").iterdir()}
    assert {path.name for path in (shared_tmp_path / "sharded").iterdir()} == files
    assert len(files) == 1 if size == "5GB" else len(files) > 2
    for name in files:
        one, other = (shared_tmp_path / folder / name for folder in ("sharded", "whole"))
        if name.endswith(".json"):
            assert json.loads(one.read_text())["weight_map"] == json.loads(other.read_text())["weight_map"]
        else:
            assert_same(load_file(one), load_file(other))


def test_tied_weights_are_stored_once(shared_tmp_path: Path) -> None:
    """An export has one of their names; a checkpoint has both, and one tensor."""
    model = tiny_transformer()
    model.register_parameter("offset", model.head.bias)
    trainer = Trainer(sharded(model), nn.CrossEntropyLoss(), None, callbacks=[])
    trainer.save_model(shared_tmp_path)
    trainer.save_checkpoint(shared_tmp_path / "checkpoint.pt")
    trainer.wait_for_everyone()
    exported = load_file(shared_tmp_path / "model.safetensors")
    saved = torch.load(shared_tmp_path / "checkpoint.pt", weights_only=True)["model_state_dict"]
    assert "offset" in exported
    assert "head.bias" not in exported
    assert saved["offset"].data_ptr() == saved["head.bias"].data_ptr()


def test_the_best_model_is_loaded_at_the_end(shared_tmp_path: Path) -> None:
    """After a rate that ruins the weights, the model and its optimizer are those of the best epoch."""
    best: list[dict[str, Tensor]] = []

    def ruin(trainer: AnyTrainer) -> None:
        best.append(everything(trainer))
        for group in trainer.optimizer.param_groups:
            group["lr"] = 1e3

    save_best = SaveBestModelCallback(shared_tmp_path / "best.pt", watch_metric="train_loss_epoch")
    trainer = make_trainer(save_best, CallAt("on_training_run_epoch_end", ruin))
    trainer.train(DATA, 2, per_device_batch_size=4)
    assert save_best.best.epoch == 1
    assert_same(everything(trainer), best[0])


def test_what_does_not_fit_leaves_everything_as_it_was(shared_tmp_path: Path) -> None:
    """A module that refuses its extra state is loaded last; weights and optimizer are as before then."""

    class Refusing(TinyTransformer):
        @override
        def get_extra_state(self) -> int:
            return 1

        @override
        def set_extra_state(self, state: int) -> None:
            if state != 1:
                raise ValueError("not mine")

    torch.manual_seed(0)
    model = sharded(Refusing().double())
    trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters()), callbacks=[])
    train(trainer)
    trainer.save_checkpoint(shared_tmp_path / "first.pt")
    trainer.wait_for_everyone()
    before = everything(trainer)
    content = torch.load(shared_tmp_path / "first.pt", weights_only=True)
    content["model_state_dict"]["_extra_state"] = 2
    content["model_state_dict"]["head.bias"] += 1
    other = shared_tmp_path / f"other{dist.get_rank()}.pt"
    torch.save(content, other)
    train(trainer)
    changed = everything(trainer)
    with pytest.raises(CheckpointError, match="not mine"):
        trainer.load_checkpoint(other)
    assert_same(everything(trainer), changed)
    trainer.load_checkpoint(shared_tmp_path / "first.pt")
    assert_same(everything(trainer), before)


def test_an_optimizer_with_a_form_of_its_own_is_not_loaded(shared_tmp_path: Path) -> None:
    """Nobody but the optimizer knows what belongs to which process: the error says how to load the rest."""

    class OfItsOwn(SGD):
        @override
        def state_dict(self) -> dict[str, Any]:
            return {"mine": super().state_dict()}

    trainer = make_trainer(kind=OfItsOwn)
    trainer.save_checkpoint(shared_tmp_path / "checkpoint.pt")
    trainer.wait_for_everyone()
    with pytest.raises(CheckpointError, match="load_optimizer=False"):
        trainer.load_checkpoint(shared_tmp_path / "checkpoint.pt")
    trainer.load_checkpoint(shared_tmp_path / "checkpoint.pt", load_optimizer=False)


def test_a_full_disk_of_the_first_process_leaves_no_other_waiting(shared_tmp_path: Path) -> None:
    """It raises on the process that writes, once all have had their part; what was exported before stays."""
    trainer = make_trainer()
    trainer.save_model(shared_tmp_path)
    trainer.wait_for_everyone()
    before = (shared_tmp_path / "model.safetensors").read_bytes()
    writes = dist.get_rank() == 0
    with pytest.raises(OSError, match="File too large") if writes else nullcontext(), full_disk(600):
        make_trainer(seed=1).save_model(shared_tmp_path)
    trainer.wait_for_everyone()
    assert (shared_tmp_path / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("save", ["save_model", "save_checkpoint"])
def test_one_process_cannot_save_alone(shared_tmp_path: Path, save: str) -> None:
    """In a function that the first process runs alone, it is an error, instead of a hang."""
    trainer = make_trainer()

    @trainer.on_main_process
    def save_alone() -> None:
        with pytest.raises(OtherProcessError, match=rf"(?s)wait forever for the others.*{save}\(\) of a sharded model"):
            getattr(trainer, save)(shared_tmp_path / "new")

    save_alone()
