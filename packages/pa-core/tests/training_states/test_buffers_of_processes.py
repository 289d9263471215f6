"""Buffers that no exchange keeps the same on all processes: each process gets its own back."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from pa_core import SaveTrainingStateCallback, TrainerCallback, gather_objects
from tests.support.pa_core.training_states import script_states as scripts
from tests.support.pa_core.training_states.small_runs import InterruptAt, Interrupted


class CentredLoss(nn.Module):
    """A loss around a running centre, as in DINO; each process has the centre of its own samples."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(1))

    @override
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = (outputs - self.centre - targets).square().mean()
        self.centre.lerp_(outputs.detach().mean(0), 0.1)
        return loss


class WithOwnQueue(scripts.WithTeacher):
    """A queue and a centre of what each process has computed, beside a teacher."""

    def __init__(self, *callbacks: TrainerCallback, size: int = 8) -> None:
        super().__init__(*callbacks)
        self.loss_func: Any = CentredLoss()
        queue = scripts.Queue().eval()
        queue.register_buffer("keys", torch.zeros(size))
        self.add_module("queue", queue)

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        queue: Any = self.modules["queue"]
        queue.keys[int(queue.at)] = output["loss"].detach()
        queue.at.add_(1).remainder_(8)
        output["loss"] = output["loss"] / (1.0 + queue.keys.square().sum())
        return output

    def kept(self) -> list[list[float]]:
        """What decides later steps: on this process, and weights of all."""
        queue: Any = self.modules["queue"]
        return [queue.keys[:8].tolist(), self.loss_func.centre.tolist(), next(self.model.parameters()).tolist()]


def train(folder: Path, *callbacks: TrainerCallback, size: int = 8, **options: Any) -> WithOwnQueue:
    """Train, or go on."""
    saving = SaveTrainingStateCallback(folder, save_every_n_steps=1)
    trainer = WithOwnQueue(*callbacks, saving, size=size)
    trainer.train(scripts.data(), 2, per_device_batch_size=2, resume_from=folder, resume_missing="start", **options)
    return trainer


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("update", [3, 8, 11])
def test_each_process_gets_its_own_buffers_back(update: int, shared_tmp_path: Path) -> None:
    """A queue, and the centre of a loss function, are those of an undisturbed run on each process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*differ between the processes")
        whole = train(shared_tmp_path / "whole").kept()
        with pytest.raises(Interrupted):
            train(shared_tmp_path / "resumed", InterruptAt("on_train_step_end", update))
        assert train(shared_tmp_path / "resumed").kept() == whole
    assert len({str(one[:2]) for one in gather_objects(whole)}) == (2 if dist.is_initialized() else 1)


@pytest.mark.runs_on("two_ranks")
def test_large_buffers_that_differ_are_named(shared_tmp_path: Path) -> None:
    """A state has those of the first process, which the first one says once, at the first save."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(shared_tmp_path, size=2**21)
    said = [str(one.message) for one in caught if "differ between the processes" in str(one.message)]
    assert len(said) == (1 if dist.get_rank() == 0 else 0)
    assert all(one.startswith("queue.keys ") for one in said)


@pytest.mark.runs_on("two_ranks")
def test_a_teacher_is_the_same_on_all_processes_of_a_script_without_a_seed(shared_tmp_path: Path) -> None:
    """Like the model, it begins with the weights of the first process."""

    class Unseeded(scripts.WithTeacher):
        def __init__(self) -> None:
            super().__init__()
            for parameter in self.modules["teacher"].parameters():
                parameter.data.fill_(dist.get_rank())

        @override
        def follow(self, pairs: Any) -> None:
            """Leave it as it is."""

    trainer = Unseeded()
    trainer.train(scripts.data(), 1, per_device_batch_size=2)
    assert all(not one.any() for one in trainer.modules["teacher"].parameters())


def test_the_centre_of_a_loss_is_in_checkpoints(tmp_path: Path) -> None:
    """A buffer that steps have changed comes back with the weights."""
    trained, loaded = CentredLoss(), CentredLoss()
    trainer = scripts.Scripted(loss_func=trained)
    trainer.train(scripts.data(), 1)
    trainer.save_checkpoint(tmp_path / "model.pt")
    scripts.Scripted(loss_func=loaded).load_checkpoint(tmp_path / "model.pt", load_optimizer=False)
    assert trained.centre.any()
    assert torch.equal(loaded.centre, trained.centre)
