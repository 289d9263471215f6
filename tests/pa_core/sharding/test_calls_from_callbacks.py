"""Callbacks call a sharded model on all processes, or are told that they must."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, RanksDifferError, Run, Trainer, TrainerCallback, gather_objects
from tests.support.sharded_models import sentences, sharded, tiny_transformer

pytestmark = pytest.mark.runs_on("two_ranks")


class Looks(TrainerCallback):
    """Calls the model with the same words in two events, on some of the processes."""

    def __init__(self, *ranks: int) -> None:
        self.ranks = ranks
        self.seen: list[float] = []

    def look(self, trainer: AnyTrainer) -> None:
        """Call the model, if this process does."""
        if dist.get_rank() in self.ranks:
            with torch.no_grad():
                self.seen.append(trainer.get_model()(sentences(2)[0]).sum().item())

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.look(trainer)

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.look(trainer)


class LooksToo(Looks):
    """Another callback that does."""


def train(*callbacks: TrainerCallback) -> None:
    """Some updates of a sharded model, the last one with a sample on one process only."""
    model, data = sharded(tiny_transformer()), TensorDataset(*sentences(9))
    optimizer = SGD(model.parameters(), lr=0.1)
    Trainer(model, nn.CrossEntropyLoss(), optimizer, list(callbacks)).train(data, 1, per_device_batch_size=2)


def run(*callbacks: TrainerCallback) -> None:
    """The same in a loop of one's own."""
    model, data = sharded(tiny_transformer()), TensorDataset(*sentences(9))
    optimizer = SGD(model.parameters(), lr=0.1)
    with Run(model, optimizer, data, num_epochs=1, per_device_batch_size=2, callbacks=list(callbacks)) as a_run:
        for words, classes in a_run.batches():
            a_run.backward(nn.functional.cross_entropy(model(words), classes))
            a_run.step()


@pytest.mark.parametrize("loop", [train, run])
def test_calls_on_all_processes_are_answered(loop: Any) -> None:
    """In mid-step, in the last step, in which one process has no sample and no event, and at the end of the epoch."""
    looks = Looks(0, 1)
    loop(looks)
    assert len(looks.seen) == (4 if dist.get_rank() == 0 else 3)
    assert len(set(gather_objects(looks.seen[-1]))) == 1


@pytest.mark.parametrize("loop", [train, run])
def test_calls_of_different_callbacks_are_refused(loop: Any) -> None:
    """Before anything is exchanged, with the names of the callbacks, of their event, and what to do."""
    with pytest.raises(RanksDifferError) as caught:
        loop(Looks(0), LooksToo(1))
    own, other = ("Looks", "LooksToo") if dist.get_rank() == 0 else ("LooksToo", "Looks")
    assert f"calls the model in on_train_step_end of {own};" in caught.value.given
    assert caught.value.given.endswith(f"calls the model in on_train_step_end of {other}")
    assert f"In {own}.on_train_step_end, use the model on all processes" in caught.value.do


class SavesAlone(TrainerCallback):
    """Exports the model on the first process, which the others do not know of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if trainer.is_main_process:
            trainer.save_model(self.folder / "exported")
        else:
            Looks(1).look(trainer)


def test_a_model_that_is_saved_on_one_process_is_refused(shared_tmp_path: Path) -> None:
    """Before anything is exchanged, with the name of the callback."""
    with pytest.raises(RanksDifferError) as caught:
        train(SavesAlone(shared_tmp_path))
    saves = "rank 0 brings the weights together in on_train_epoch_end of SavesAlone"
    assert saves in caught.value.given
    assert not (shared_tmp_path / "exported").exists()
