"""The same run on two processes: the same updates, each sample once, nobody waiting."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, ConfigurationError, StopTrainingError, Trainer, gather_objects
from pa_core.data import KeyedDataLoader
from pa_core.device_reads import LateReader
from pa_core.testing import RecordingCallback, make_regression
from tests.small_runs import make_trainer, samples
from tests.support.callbacks import CallAt
from tests.support.models import weights_of
from tests.support.pa_core.training_states.small_runs import DrawingDataset, SampleLog

pytestmark = pytest.mark.runs_on("two_ranks")


def regression(num_samples: int) -> TensorDataset:
    """A regression dataset in double precision."""
    return TensorDataset(*(tensor.double() for tensor in make_regression(num_samples).tensors))


def stop_on_second_rank(event: str, update: int) -> CallAt:
    """Asks to stop on rank 1 alone, after some updates."""

    def stop(trainer: AnyTrainer) -> None:
        if trainer.process_index == 1:
            raise StopTrainingError

    return CallAt(event, stop, update)


class ReadsLate(Trainer):
    """Reads what the processes agreed on two updates late, as on an accelerator."""

    @override
    def training_run_start(self) -> None:
        self._engine.rank_sync.reader = LateReader(delay=2)


def small_network(seed: int = 0) -> nn.Module:
    """A network with smooth activations in double precision, the same on each rank."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()


def test_two_ranks_run_over_gloo() -> None:
    """What follows is tested with two processes that exchange gradients, not with two that are alone."""
    trainer = make_trainer()
    trainer.train(samples(8), 1)
    assert (dist.get_world_size(), dist.get_backend()) == (2, "gloo")
    assert (trainer.run_config.num_processes, trainer.run_config.is_distributed) == (2, True)
    assert trainer.describe_run().startswith("2 processes (gloo)")


def test_fewer_samples_than_ranks_cannot_be_evaluated() -> None:
    """One sample on two ranks is refused before anything starts."""
    trainer = Trainer(small_network(), nn.MSELoss(), None, callbacks=[])
    with pytest.raises(ConfigurationError):
        trainer.evaluate(regression(1))


def test_augmentation_does_not_depend_on_the_number_of_ranks() -> None:
    """The noise of a sample is the same whichever rank fetches it."""
    log, model = SampleLog(), nn.Linear(6, 3)
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.0), callbacks=[log])
    trainer.train(DrawingDataset(10), 1, per_device_batch_size=3, train_dataloader_kwargs={"num_workers": 0})
    assert trainer.run_config.seed is not None
    alone = KeyedDataLoader(DrawingDataset(10), batch_size=6, shuffle=True, seed=trainer.run_config.seed)
    one_process = [row for inputs, _ in alone for row in inputs[:, :2].tolist()]
    assert sorted(row for step in log.steps for row in step) == sorted(one_process)


def test_ranks_that_read_late_still_stop_at_the_same_update() -> None:
    """Where the answer is read two updates later, as on an accelerator, all ranks stop at the same later update."""
    model, recorder = small_network(), RecordingCallback()
    trainer = make_trainer(ReadsLate, stop_on_second_rank("on_train_step_end", 2), recorder, model=model, lr=0.1)
    trainer.train(regression(24), 1, per_device_batch_size=2)
    assert gather_objects(trainer.num_updates_completed) == [4, 4]
    assert recorder.events[-2:] == ["on_stop_training_error", "on_training_run_end"]
    weights = gather_objects(weights_of(model).tolist())
    assert weights[0] == weights[1]


def test_a_stop_at_the_start_of_an_epoch_is_in_time_on_an_accelerator() -> None:
    """Asked for by one process when an epoch starts, it comes before the first update, which waits for the answer."""
    trainer = make_trainer(ReadsLate, stop_on_second_rank("on_train_epoch_start", 6), model=small_network())
    trainer.train(regression(24), 3, per_device_batch_size=2)
    assert gather_objects(trainer.num_updates_completed) == [6, 6]


def test_a_loader_of_the_users_own_says_that_it_is_padded() -> None:
    """Where accelerate splits a loader and may repeat samples, a warning says so; every process gets its batches."""

    class Plain(Trainer):
        @override
        def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: dict[str, Any] | None = None) -> Any:
            return DataLoader(cast("TensorDataset", self.eval_dataset), batch_size=batch_size)

    trainer = Plain(small_network(), nn.MSELoss(), None, callbacks=[])
    with pytest.warns(UserWarning, match="repeats samples"):
        trainer.evaluate(regression(7), per_device_batch_size=2)


def test_weights_in_half_precision_train_and_stop_on_both_ranks() -> None:
    """Gradients of bfloat16 weights cannot carry counts: the ranks agree in another way, and stop together as well."""
    data = TensorDataset(*(tensor.bfloat16() for tensor in make_regression(24).tensors))
    model = small_network().bfloat16()
    trainer = make_trainer(Trainer, stop_on_second_rank("on_train_step_end", 2), model=model, lr=0.1)
    trainer.train(data, 1, per_device_batch_size=2)
    assert gather_objects(trainer.num_updates_completed) == [2, 2]
    weights = gather_objects(weights_of(model).tolist())
    assert weights[0] == weights[1]


def test_parameters_unfrozen_in_mid_run_train_equally() -> None:
    """A layer that was frozen when the run began gets the gradients of all ranks once it is unfrozen."""
    model = small_network()
    unfreeze = CallAt("on_training_run_epoch_end", lambda _trainer: model.requires_grad_(True))
    for parameter in list(model.parameters())[:2]:
        parameter.requires_grad_(False)
    before = weights_of(model)
    trainer = Trainer(model, nn.MSELoss(), Adam(model.parameters(), lr=0.01), callbacks=[unfreeze])
    trainer.train(regression(12), 3, per_device_batch_size=2)
    weights = gather_objects(weights_of(model).tolist())
    assert weights[0] == weights[1]
    assert not torch.equal(weights_of(model)[:4], before[:4])
