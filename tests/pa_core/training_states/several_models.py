"""A run of two models with a hand-written loop, on the modules for training states alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR
from torch.utils.data import TensorDataset

from pa_core import InMemoryRunHistory, RunHistory, TrainerRunConfig
from pa_core.callbacks import CallbackHandler
from pa_core.data import KeyedDataLoader
from pa_core.distributed.rank_sync import RankSync
from pa_core.epoch_lengths import EpochLengths
from pa_core.progress import Phase, Progress
from pa_core.tracking import LossTracker, StepMeans
from pa_core.trained import Accumulation
from pa_core.training_state import Checkpointer, Resumption, RunParts, StateRequest
from pa_core.training_state.initial_hyperparameters import begin_run
from pa_core.types import SizedIterable

_SAMPLES, _BATCH_SIZE = 20, 4
UPDATES_PER_EPOCH = _SAMPLES // _BATCH_SIZE


class TwoModels:
    """A generator and a discriminator; the discriminator's optimizer also trains the last layer of the generator."""

    run_config: TrainerRunConfig

    def __init__(self, seed: int = 0, rate: float = 0.1) -> None:
        torch.manual_seed(seed)
        self.device = torch.device("cpu")
        self.loss_func: object = None
        self.run_history: RunHistory = InMemoryRunHistory()
        self.callback_handler = CallbackHandler[Any]()
        self.loss_tracker, self.step_means = LossTracker(), StepMeans()
        self.preemptible = True
        self.train_dataloader: SizedIterable = []
        self.eval_dataloader: SizedIterable | None = None
        self.eval_dataloaders: dict[str, SizedIterable] = {}
        self.epoch_lengths = EpochLengths(lambda _: UPDATES_PER_EPOCH, are_equal=True)
        self.generator = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 2))
        self.discriminator = nn.Linear(2, 1)
        self.optimizers: dict[str, Optimizer] = {
            "generator": Adam(self.generator[:2].parameters(), lr=rate),
            "discriminator": SGD(
                [*self.discriminator.parameters(), *self.generator[3].parameters()], lr=0.1, momentum=0.9
            ),
        }
        self.asked = {name: begin_run(optimizer) for name, optimizer in self.optimizers.items()}
        self.schedulers: dict[str, LRScheduler] = {
            name: StepLR(optimizer, step_size) for step_size, (name, optimizer) in enumerate(self.optimizers.items(), 2)
        }

    def named_models(self) -> dict[str, nn.Module]:
        """The two models."""
        return {"generator": self.generator, "discriminator": self.discriminator}

    def named_optimizers(self) -> dict[str, Optimizer]:
        """One for each model."""
        return self.optimizers

    def named_schedulers(self) -> dict[str, LRScheduler]:
        """One for each optimizer."""
        return self.schedulers

    def print(self, *args: object, **kwargs: Any) -> None:
        """Say nothing."""

    def step(self, inputs: Tensor) -> float:
        """Step both optimizers and schedulers by one batch, and return the loss."""
        loss = self.discriminator(self.generator(inputs + torch.rand(2) / 10)).square().mean()
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        torch.autograd.backward(loss)
        for name, optimizer in self.optimizers.items():
            optimizer.step()
            self.schedulers[name].step()
        return float(loss.item())

    def train(self, num_updates: int) -> list[float]:
        """Make some updates by samples that are drawn, and return the losses."""
        return [self.step(torch.randn(_BATCH_SIZE, 2)) for _ in range(num_updates)]

    def weights(self) -> list[Tensor]:
        """Copies of all weights and buffers."""
        return [value.clone() for model in self.named_models().values() for value in model.state_dict().values()]


class RunByHand(TwoModels):
    """The same in a loop with epochs, which saves and resumes states.

    Attributes:
        events: The names of the events at safe points, in order.
        losses: The loss of each update of this process.
        at_update: Called after each update, before its safe point.
        at_end: Called after the last epoch, as the last events of a run are.
    """

    def __init__(self, folder: Path, *, num_epochs: int = 3, seed: int = 0) -> None:
        super().__init__(seed)
        self._folder = folder
        self.events: list[str] = []
        self.losses: list[float] = []
        self.at_update: Callable[[RunByHand], None] = lambda _: None
        self.at_end: Callable[[], object] = lambda: None
        self.run_config = TrainerRunConfig(
            num_epochs=num_epochs,
            train_per_device_batch_size=_BATCH_SIZE,
            train_dl_kwargs={},
            eval_per_device_batch_size=_BATCH_SIZE,
            eval_dl_kwargs={},
            gradient_accumulation_steps=1,
            gradient_clip_value=None,
            train_total_batch_size=_BATCH_SIZE,
            eval_total_batch_size=_BATCH_SIZE,
            num_update_steps_per_epoch=UPDATES_PER_EPOCH,
            max_num_train_steps=num_epochs * UPDATES_PER_EPOCH,
            is_local_process_zero=True,
            is_world_process_zero=True,
            is_distributed=False,
            mixed_precision="no",
            num_processes=1,
        )
        self.progress = Progress()
        self.rank_sync = RankSync(self.device, num_processes=1)
        self.resumption = Resumption(self.progress, self.device)
        accumulations = {name: Accumulation(1) for name in self.optimizers}
        self.checkpointer = Checkpointer(RunParts(self.progress, self.resumption, accumulations, self.rank_sync))

    def request(self, name: str) -> Path:
        """Have a state saved at the next safe point, and return where."""
        request = StateRequest(self._folder / name, {}, sequence=self.progress.updates)
        self.checkpointer.request(request)
        return request.directory

    def save(self, name: str) -> Path:
        """Save a state now, and return where."""
        request = StateRequest(self._folder / name, {})
        self.checkpointer.save(request, self, self.call)
        return request.directory

    def call(self, event: str, **_: object) -> None:
        """Note an event."""
        self.events.append(event)

    def reach(self, phase: Phase) -> None:
        """Reach a safe point."""
        self.checkpointer.reach(phase, self, self.call)

    def prepare(self, resume_from: Path | None = None) -> None:
        """Do all that comes before the first epoch."""
        self.resumption.seed = 7
        self.resumption.find(self, resume_from, "error")
        torch.manual_seed(self.resumption.seed)
        data = TensorDataset(torch.randn(_SAMPLES, 2, generator=torch.Generator().manual_seed(3)))
        self.train_dataloader = KeyedDataLoader(data, _BATCH_SIZE, shuffle=True, seed=self.resumption.seed)
        self.resumption.note_hyperparameters(self)
        self.resumption.note_settings(self, "after each update", lambda updates, _: updates)
        self.resumption.restore(self, scaler=None, objects=(), allowed=())

    def run(self, resume_from: Path | None = None) -> None:
        """Run all epochs that are left."""
        self.prepare(resume_from)
        for epoch in self.resumption.remaining_epochs(self):
            self._run_epoch(epoch)
        self.at_end()
        self.resumption.finish(self)
        self.reach(Phase.COMPLETE)

    def _run_epoch(self, epoch: int) -> None:
        progress, clock = self.progress, self.run_history.clock
        self.checkpointer.leave()
        progress.epoch_under_way = epoch
        progress.start_epoch()
        self.resumption.resume_steps(self, self.train_dataloader, report=lambda _: None)
        for step, (inputs,) in enumerate(self.train_dataloader, start=progress.steps_in_epoch + 1):
            self.checkpointer.leave()
            self.losses.append(self.step(inputs))
            progress.samples_in_group += len(inputs)
            progress.steps_in_epoch = step
            progress.finish_group(clock, makes_update=True)
            self.checkpointer.is_between_steps = True
            self.at_update(self)
            self.checkpointer.is_between_steps = False
            self.reach(Phase.STEP)
        self.checkpointer.leave()
        progress.epochs += 1
        progress.epoch_under_way = None
        self.reach(Phase.EPOCH)
