"""What scripts do beside the documented, and may go on doing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader
from typing_extensions import override

from pa_core import AnyTrainer
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import CallbackHandler, LogMetricsCallback, TrainerCallback
from tests.small_runs import make_trainer, samples


def test_num_updates() -> None:
    """A trainer that counts its updates under this name, as for a stateless scheduler, trains to the end."""

    class Counts(Trainer):
        @override
        def scheduler_step(self) -> None:
            self.num_updates = getattr(self, "num_updates", 0) + 1

    trainer = make_trainer(Counts)
    trainer.train(samples(8), 1, per_device_batch_size=1)
    assert trainer.run_history.clock.update == 8


def test_no_kwargs() -> None:
    """A callback that names the documented arguments and takes no others is called."""

    class Bare(TrainerCallback):
        @override
        def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # that is the point
            pass

    make_trainer(Trainer, Bare).train(samples(4), 1)


@pytest.mark.runs_on("two_ranks")
def test_accelerate_gather() -> None:
    """The way of accelerate to gather works in an evaluation on two ranks whose last batches differ."""

    class Gather(TrainerCallback):
        rows = 0

        @override
        def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            accelerator: Any = trainer._accelerator  # pyright: ignore[reportPrivateUsage]  # as users do
            self.rows += len(accelerator.gather(batch[0]))

    gather = Gather()
    make_trainer(Trainer, gather).evaluate(samples(7), per_device_batch_size=2)
    assert gather.rows == 7


@pytest.mark.runs_on("two_ranks")
def test_own_epoch() -> None:
    """An epoch of one's own, made of the documented steps, trains on several processes."""

    class OwnEpoch(Trainer):
        @override
        def _run_train_epoch(self, train_dl: Any) -> None:
            self.train_epoch_start()
            for batch in train_dl:
                output = self.calculate_train_batch_loss(batch)
                self.backward_step(output["loss"])
                self.optimizer_step()
                self.optimizer_zero_grad()
            self.train_epoch_end()

    make_trainer(OwnEpoch).train(samples(12), 1, per_device_batch_size=2)


def test_own_preparation() -> None:
    """What the reference says that the preparation does can be written down in its place."""

    class OwnPreparation(Trainer):
        @override
        def _prepare_model_optimizer_and_dataloaders(self) -> None:
            accelerator: Any = self._accelerator
            self.model, self._train_dataloader = accelerator.prepare(self.model, self._train_dataloader)

    make_trainer(OwnPreparation).train(samples(4), 1)


def test_no_training_dataset() -> None:
    """A trainer that makes its own training loader needs no dataset for it."""

    class OwnLoader(Trainer):
        @override
        def create_train_dataloader(self, batch_size: int, train_dl_kwargs: Any = None) -> list[Any]:
            return [next(iter(DataLoader(samples(8), batch_size)))] * 3

    trainer = make_trainer(OwnLoader)
    without: Any = None
    trainer.train(without, 1)
    assert trainer.run_history.clock.update == 3


def test_own_handler() -> None:
    """A trainer that creates its own callback handler, as scripts do, has its callbacks called by that."""
    called: list[str] = []

    class Noting(CallbackHandler[Any]):
        @override
        def listeners(self, event: str) -> list[Callable[..., Any]]:
            called.append(event)
            return super().listeners(event)

    class WithOwnHandler(Trainer):
        @override
        def _create_callback_handler(self, callbacks: Any) -> CallbackHandler[Any]:
            return Noting(callbacks)

    trainer = make_trainer(WithOwnHandler, LogMetricsCallback)
    assert [type(one) for one in trainer.callback_handler.callbacks] == [LogMetricsCallback]
    trainer.train(samples(4), 1)
    assert {"on_init_end", "on_train_step_end", "on_training_run_end"} <= set(called)


class Scaled(Trainer):
    """A trainer whose accelerator scales losses, as accelerate does for fp16."""

    @override
    def _create_accelerator(self) -> Any:
        accelerator: Any = super()._create_accelerator()
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        return accelerator


def test_scaled() -> None:
    """A step of one's own that calls the optimizer makes the update that it makes without scaling."""

    class OwnStep(Scaled):
        @override
        def optimizer_step(self) -> None:
            self.optimizer.step()

    trainer, stepping = make_trainer(), make_trainer(OwnStep)
    trainer.train(samples(8), 1)
    stepping.train(samples(8), 1)
    weights, own_weights = map(parameters_to_vector, (trainer.model.parameters(), stepping.model.parameters()))
    assert torch.allclose(weights, own_weights)
