"""A training script as a user writes one: the same command line starts it, and starts it again after a crash."""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Adam
from torch.utils.data import Dataset
from typing_extensions import override

from pa_callbacks_extra import EarlyStoppingCallback, ModelEmaCallback
from pa_core import (
    AnyTrainer,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    Trainer,
    TrainerCallback,
    TrainerPlaceholderValues,
)
from pa_schedulers import CosineLrScheduler
from tests.crashes.custom_loops import LOOPS
from tests.crashes.keeping import KEEPING
from tests.crashes.leaving import Leaving, leave
from tests.crashes.ordered_data import KINDS, augment, order_of, ordered_data
from tests.crashes.phases import Watch
from tests.crashes.recording import Recorder
from tests.crashes.saved_states import TRIAL, saved_states
from tests.crashes.trial_runs import train_trial
from tests.crashes.watching import WatchCallback
from tests.support.callbacks import CallAt

__all__ = ["Augmented", "Net", "ended_path", "main", "states_path", "watch_path"]

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
Sample: TypeAlias = tuple[Tensor, int, int, Tensor]

NUM_FEATURES, NUM_CLASSES = 6, 3
TRAIN_SAMPLES, EVAL_SAMPLES = 62, 21  # neither fills its last batch


SCHEDULE = partial(
    CosineLrScheduler,
    total_num_epochs=TrainerPlaceholderValues.NUM_EPOCHS,
    num_update_steps_per_epoch=TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
    num_warmup_epochs=1,
)


def states_path(folder: Path) -> Path:
    """The folder of the training states."""
    return folder / "states"


def watch_path(folder: Path, rank: int) -> Path:
    """Where a rank notes down its phase, if the file is there."""
    return folder / f"watch_{rank}"


def ended_path(folder: Path, rank: int) -> Path:
    """Where a rank of a script that keeps state writes the fingerprint with which it has ended."""
    return folder / f"ended_{rank}.txt"


class Augmented(Dataset[Sample]):
    """Noise with a little signal in it, changed by a draw from each of the three random streams."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._targets = [int(target) for target in torch.randint(NUM_CLASSES, (size,), generator=generator)]
        self._inputs = torch.randn(size, NUM_FEATURES, generator=generator)

    def __len__(self) -> int:
        return len(self._targets)

    @override
    def __getitem__(self, index: int) -> Sample:
        if index % 9 == 0:
            time.sleep(0.003)
        return augment(self._inputs[index], self._targets[index], index)

    def plain(self) -> list[dict[str, Any]]:
        """The samples before they are changed."""
        return [
            {"inputs": inputs.tolist(), "target": target, "index": index}
            for index, (inputs, target) in enumerate(zip(self._inputs, self._targets, strict=True))
        ]


class Net(nn.Module):
    """A small network with what makes resuming hard: running statistics and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(NUM_FEATURES, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, NUM_CLASSES)
        )

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layers(inputs)
        return logits


class NoisyTrainer(Trainer[Net, Batch]):
    """Draws from the streams of Python and numpy in its steps too; dropout draws from that of torch."""

    @override
    def calculate_train_batch_loss(self, batch: Batch) -> dict[str, Any]:
        return self._calculate_noisy_loss(batch)

    @override
    def calculate_eval_batch_loss(self, batch: Batch) -> dict[str, Any]:
        return self._calculate_noisy_loss(batch)

    def _calculate_noisy_loss(self, batch: Batch) -> dict[str, Any]:
        inputs, targets, *_ = batch
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        logits = self.model(inputs * (1 + 0.1 * noise))
        return {"loss": self.loss_func(logits, targets), "model_outputs": logits, "batch_size": len(targets)}


class OverflowingTrainer(NoisyTrainer):
    """Begins with a scale at which gradients of fp16 overflow, so that updates are skipped, and raises it often."""

    @override
    def create_accelerator(self) -> Any:
        from accelerate import Accelerator
        from accelerate.utils import GradScalerKwargs

        return Accelerator(kwargs_handlers=[GradScalerKwargs(init_scale=2.0**21, growth_interval=7)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, or go on training."""
    options = _parse(arguments)
    folder: Path = options.folder
    if torch.cuda.is_available():
        torch.use_deterministic_algorithms(True, warn_only=True)
        if "WORLD_SIZE" in os.environ:
            dist.init_process_group("gloo")  # which lets processes share a device
    if options.leaving is not None:
        leave(folder, Leaving.from_json(options.leaving), int(os.environ["ATTEMPT"]), options.resume_from)
        return
    rank = int(os.environ.get("RANK", "0"))
    _seed(1 if not saved_states(states_path(folder), options.loop) else time.time_ns() % 2**32)
    torch.set_num_threads(1)
    if options.loop == TRIAL:
        datasets = Augmented(TRAIN_SAMPLES, seed=2), Augmented(EVAL_SAMPLES, seed=3)
        train_trial(options, states_path(folder), datasets, next(iter(_watching(folder, rank)), None))
        return
    if options.keeping is not None:
        ended = KEEPING[options.keeping](states_path(folder), _watching(folder, rank))
        ended_path(folder, rank).write_text(ended)
        return
    model = Net()
    recorder = Recorder(folder, rank, int(os.environ.get("ATTEMPT", "1")))
    watching = _watching(folder, rank)
    if options.loop is not None:
        recorder.record_outcome(_train_by_own_loop(options, model, [*watching, recorder]))
        return
    kill = CallAt("on_optimizer_step_end", lambda _: os.kill(os.getpid(), signal.SIGKILL), options.kill_after)
    trainer = (OverflowingTrainer if options.scale_that_overflows else NoisyTrainer)(
        cast("Net", torch.compile(model)) if options.compiled else model,
        nn.CrossEntropyLoss(),
        Adam(model.parameters(), lr=0.01),
        callbacks=[*watching, recorder, kill, *_callbacks(options, folder, watching)],
    )
    trainer.train(
        _train_data(options),
        options.epochs,
        Augmented(EVAL_SAMPLES, seed=3),
        per_device_batch_size=options.batch_size,
        max_num_train_steps=options.max_updates,
        gradient_accumulation_steps=options.accumulation,
        create_scheduler_fn=SCHEDULE,
        train_dataloader_kwargs={"num_workers": options.workers},
        eval_dataloader_kwargs={"num_workers": options.workers},
        order=order_of(options.data, TRAIN_SAMPLES),
        resume_from=states_path(folder),
        resume_missing="start",
    )
    recorder.record_outcome(trainer)


def _train_data(options: argparse.Namespace) -> Dataset[Sample]:
    data = Augmented(TRAIN_SAMPLES, seed=2)
    return ordered_data(options.data, data, data.plain(), options.folder)


def _train_by_own_loop(options: argparse.Namespace, model: Net, callbacks: list[TrainerCallback]) -> AnyTrainer:
    """Train in a loop of the script's own, with the callbacks that have a place in one."""
    folder: Path = options.folder
    best = SaveBestModelCallback(folder / "best.pt", load_saved_checkpoint=not options.keep_last)
    order = order_of(options.data, TRAIN_SAMPLES)
    sizes = {} if order is not None and order.makes_batches else {"per_device_batch_size": options.batch_size}
    return LOOPS[options.loop](
        model,
        _train_data(options),
        Augmented(EVAL_SAMPLES, seed=3),
        num_epochs=options.epochs,
        max_num_train_steps=options.max_updates,
        **sizes,
        gradient_accumulation_steps=options.accumulation,
        create_scheduler_fn=SCHEDULE,
        train_dataloader_kwargs={"num_workers": options.workers},
        eval_kwargs={"num_workers": options.workers},
        is_forgetful=options.is_forgetful,
        order=order,
        callbacks=[*callbacks, best, *_states(options), EarlyStoppingCallback(options.patience)],
        resume_from=states_path(folder),
        resume_missing="start",
    )


def _seed(seed: int) -> None:
    """Decide what a new run draws; one that goes on has to be the same whatever was drawn before."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _watching(folder: Path, rank: int) -> list[WatchCallback]:
    path = watch_path(folder, rank)
    return [WatchCallback(Watch(path), states_path(folder))] if path.exists() else []


def _callbacks(options: argparse.Namespace, folder: Path, watching: Sequence[TrainerCallback]) -> list[TrainerCallback]:
    return [
        SaveBestModelCallback(folder / "best.pt", load_saved_checkpoint=not options.keep_last),
        ModelEmaCallback(0.9, save_path=folder / "average.pt", callbacks=list(watching)),
        StepBasedEvaluationCallback(options.evaluate_every_n_steps),
        *_states(options),
        EarlyStoppingCallback(options.patience, early_stopping_threshold=0.02),
    ]


def _states(options: argparse.Namespace) -> list[TrainerCallback]:
    save_states = SaveTrainingStateCallback(
        states_path(options.folder),
        save_every_n_epochs=options.states_every_n_epochs,
        save_every_n_steps=options.states_every_n_steps,
        save_every_n_seconds=options.states_every_n_seconds,
        max_checkpoints=options.max_states,
        asynchronous=options.asynchronous,
        stop_on_signals=("SIGTERM",),
    )
    return [] if options.without_states else [save_states]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where everything goes that the run writes")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--max-updates", type=int, help="end in the middle of an epoch")
    parser.add_argument("--loop", choices=[*sorted(LOOPS), TRIAL], help="a loop that is not that of the trainer")
    parser.add_argument("--keeping", choices=KEEPING, help="a script that keeps state beside its run")
    parser.add_argument("--leaving", help="a small run that is told to leave")
    parser.add_argument("--resume-from", help="where the small run continues")
    parser.add_argument("--data", choices=KINDS, help="samples that do not just come shuffled")
    parser.add_argument("--is-forgetful", action="store_true", help="leave what is the loop's own out of the states")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--patience", type=int, default=2)
    parser.add_argument("--evaluate-every-n-steps", type=int, default=5)
    parser.add_argument("--states-every-n-epochs", type=int)
    parser.add_argument("--states-every-n-steps", type=int)
    parser.add_argument("--states-every-n-seconds", type=float)
    parser.add_argument("--max-states", type=int)
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--kill-after", type=int, default=0, help="an update, that of the trainer's loop")
    parser.add_argument("--compiled", action="store_true", help="compile the model")
    parser.add_argument("--scale-that-overflows", action="store_true", help="in fp16, some updates are skipped")
    parser.add_argument("--without-states", action="store_true")
    parser.add_argument("--keep-last", action="store_true", help="end with the last weights, not with the best ones")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
