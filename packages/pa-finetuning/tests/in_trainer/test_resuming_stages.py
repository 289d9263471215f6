"""A run with gradual unfreezing that was interrupted ends as if nothing had happened, to the last bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam
from torch.optim.lr_scheduler import CosineAnnealingLR
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_core.distributed import num_processes
from pa_finetuning import ModelFreezer
from tests.support.pa_finetuning.conv_net import modes, trainable
from tests.support.pa_finetuning.in_trainer.fine_tuning import Unfreezing, make_frozen, make_images

RATES = [0.001, 0.004, 0.01]
EPOCHS = 5
UPDATES = 4
"""In an epoch."""


class Interrupted(Exception):
    """What stands for the end of a process."""


class InterruptAfter(TrainerCallback):
    """Saves a training state after an update, and after the epoch if it ends there; then lets the process end."""

    def __init__(self, update: int, folder: Path) -> None:
        self.update = update
        self.folder = folder

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update == self.update:
            trainer.save_training_state(self.folder)
        elif update == self.update + 1:
            raise Interrupted

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if trainer.num_updates_completed == self.update:
            trainer.save_training_state(self.folder)


class UnfreezeByHand(TrainerCallback):
    """One more layer group after each second epoch, given to the optimizer when it is unfrozen."""

    def __init__(self, freezer: ModelFreezer) -> None:
        self.freezer = freezer

    def unfreeze_for(self, trainer: AnyTrainer, epoch: int) -> None:
        """Unfreeze what an epoch trains."""
        unfrozen = self.freezer.unfreeze(-1, max(0, 2 - (epoch - 1) // 2))
        for index, group in unfrozen.items():
            trainer.optimizer.add_param_group({**group, "lr": RATES[index]})

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.unfreeze_for(trainer, trainer.run_history.current_epoch)

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.unfreeze_for(trainer, trainer.run_history.current_epoch + 1)


Fingerprint = dict[str, Any]


def fingerprint(trainer: AnyTrainer) -> Fingerprint:
    """All that a run leaves behind, with tensors as digests of their bytes."""

    def digest(value: object) -> object:
        if isinstance(value, Tensor):
            return hashlib.sha256(value.detach().contiguous().numpy().tobytes()).hexdigest()
        if isinstance(value, dict):
            return {key: digest(item) for key, item in value.items()}
        return [digest(item) for item in value] if isinstance(value, list) else value

    model, history = trainer.get_model(), trainer.run_history
    return {
        "model": digest(dict(model.state_dict())),
        "optimizer": digest(trainer.optimizer.state_dict()),
        "scheduler": None if trainer.scheduler is None else digest(trainer.scheduler.state_dict()),
        "history": {name: list(map(float, history.get_metric_values(name))) for name in history.get_metric_names()},
        "trainable": trainable(model),
        "modes": modes(model.train()),
    }


def run(
    make_unfreezing: Callable[[ModelFreezer], TrainerCallback],
    *callbacks: TrainerCallback,
    include_frozen: bool = False,
    scheduled: bool = True,
    **options: Any,
) -> Fingerprint:
    """Train as a script does that is started anew each time, and return what the run leaves behind."""
    model, freezer = make_frozen()
    optimizer = Adam(freezer.get_parameter_groups(RATES, include_frozen=include_frozen))
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[make_unfreezing(freezer), *callbacks])
    trainer.train(
        make_images(16),
        num_epochs=EPOCHS,
        eval_dataset=make_images(8),
        per_device_batch_size=4 // num_processes(),
        create_scheduler_fn=partial(CosineAnnealingLR, T_max=EPOCHS * UPDATES) if scheduled else None,
        **options,
    )
    return fingerprint(trainer)


def by_callback(freezer: ModelFreezer, *, adds_groups: bool) -> TrainerCallback:
    """Gradual unfreezing with the ready-made callback."""
    return Unfreezing(freezer, RATES if adds_groups else None, epochs_per_stage=2)


WAYS: dict[str, tuple[Callable[[ModelFreezer], TrainerCallback], dict[str, bool]]] = {
    "all in the optimizer": (partial(by_callback, adds_groups=False), {"include_frozen": True}),
    "added to the optimizer": (partial(by_callback, adds_groups=True), {}),
    "by hand": (UnfreezeByHand, {"scheduled": False}),
}


@pytest.mark.parametrize(("make_unfreezing", "options"), WAYS.values(), ids=WAYS)
@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
def test_a_resumed_run_ends_as_the_uninterrupted_one(
    shared_tmp_path: Path, make_unfreezing: Callable[[ModelFreezer], TrainerCallback], options: dict[str, bool]
) -> None:
    """Weights, statistics, momentum, rates, flags and modes are equal, wherever in the stages it was interrupted."""
    torch.manual_seed(5)
    expected = run(make_unfreezing, **options)
    assert len(expected["optimizer"]["param_groups"]) == 3
    # In an epoch of the first stage; between the first stage and the second; in an epoch of the last stage.
    for update in (2 * UPDATES - 2, 2 * UPDATES, 4 * UPDATES + 2):
        state = shared_tmp_path / str(update)
        torch.manual_seed(5)
        with pytest.raises(Interrupted):
            run(make_unfreezing, InterruptAfter(update, state), **options)
        torch.manual_seed(99)
        assert run(make_unfreezing, resume_from=state, **options) == expected, update
