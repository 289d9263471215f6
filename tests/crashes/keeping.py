"""Scripts that keep state beside the parts of their run: what a user's script has, not what a run is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from pa_core import SaveBestModelCallback, SaveTrainingStateCallback, TrainerCallback
from tests.support.pa_core.training_states import script_states as scripts

__all__ = ["KEEPING", "UPDATES"]

UPDATES = scripts.NUM_UPDATES

KeepingScript = Callable[[Path, Sequence[TrainerCallback]], str]


def _train_task_weights(states: Path, callbacks: Sequence[TrainerCallback]) -> str:
    """Train with learned weights of two tasks, end with the best model, and make the last epoch a worse one."""
    saving = SaveTrainingStateCallback(states, save_every_n_steps=1)
    best = SaveBestModelCallback(states.parent / "best.pt")
    trainer = scripts.Scripted(*callbacks, best, saving, loss_func=scripts.TaskWeights())
    _train(trainer, scripts.data(), states, scripts.data(), create_scheduler_fn=_rises_in_the_second_epoch)
    return trainer.fingerprint()


def _rises_in_the_second_epoch(optimizer: Any) -> LambdaLR:
    return LambdaLR(optimizer, lambda update: 1.0 if update < UPDATES // 2 else 10.0)


def _train_on_own_noise(states: Path, callbacks: Sequence[TrainerCallback]) -> str:
    """Train on samples with noise of a generator that the dataset owns."""
    trainer = scripts.Scripted(*callbacks, SaveTrainingStateCallback(states, save_every_n_steps=1))
    _train(trainer, scripts.OwnNoise(), states)
    return trainer.fingerprint()


def _train(trainer: scripts.Scripted, data: Any, states: Path, eval_data: Any = None, **options: Any) -> None:
    size = 4 // trainer.num_processes
    trainer.train(data, 2, eval_data, size, resume_from=states, resume_missing="start", **options)


KEEPING: dict[str, KeepingScript] = {
    "teacher": lambda states, callbacks: scripts.train("teacher", states, *callbacks),
    "annealing": lambda states, callbacks: scripts.train("annealing", states, *callbacks),
    "task weights": _train_task_weights,
    "counting discriminator": lambda states, callbacks: scripts.train_gan(states, *callbacks),
    "own generator": _train_on_own_noise,
}
"""Each trains in a folder of states, or continues there, and returns the fingerprint of its run."""
