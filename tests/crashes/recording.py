"""What a run leaves behind for the comparison: which samples it trained on with which draws, and how it ended."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from pa_core import AnyTrainer, InMemoryRunHistory, TrainerCallback, gather_objects
from pa_core._tensors import local_piece

__all__ = ["Recorder", "digest", "digests", "outcome_path", "samples_path"]


def samples_path(folder: Path, rank: int) -> Path:
    """Where a rank writes down what it trains on: a line of JSON for each batch, also for those trained on again."""
    return folder / f"samples_{rank}.jsonl"


def outcome_path(folder: Path, rank: int) -> Path:
    """Where a rank writes down how the run ended."""
    return folder / f"outcome_{rank}.json"


class Recorder(TrainerCallback):
    """Writes down the samples and draws of each batch, and what the run consists of at its end.

    The number of batches is part of the training state: with it, a line says to which batch of the run it belongs.

    Args:
        folder: Where to write.
        rank: The rank of this process.
        attempt: The how manieth start of the run this is.
    """

    def __init__(self, folder: Path, rank: int, attempt: int) -> None:
        self._folder = folder
        self._rank = rank
        self._attempt = attempt
        self._lines = os.open(samples_path(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.batches = 0
        self.as_trained: dict[str, str] = {}

    @override
    def on_train_step_end(
        self, trainer: AnyTrainer, batch: Any, batch_output: Any, *, step: int = 0, **kwargs: Any
    ) -> None:
        _, _, indices, draws = cast("tuple[Tensor, Tensor, Tensor, Tensor]", batch)
        self.batches += 1
        line = {
            "attempt": self._attempt,
            "batch": self.batches,
            "epoch": trainer.num_epochs_completed,
            "update": trainer.num_updates_completed + 1,
            "step": step,
            "indices": indices.tolist(),
            "draws": draws.tolist(),
        }
        os.write(self._lines, (json.dumps(line) + "\n").encode())  # in one piece, however the process ends

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Count the last batch of the epoch also where other ranks had its only samples: a state has one number."""
        self.batches = max(gather_objects(self.batches))

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Take note of what was trained, before the best model takes its place."""
        self.as_trained = self.as_trained or digests(trainer)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the number of batches so far, and what was noted at the end of the run."""
        return {"batches": self.batches, "as_trained": self.as_trained}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.batches = state_dict["batches"]
        self.as_trained = state_dict["as_trained"]

    def record_outcome(self, trainer: AnyTrainer) -> None:
        """Write down how the run ended, when it is over."""
        outcome = {
            # A state holds the callbacks of the first rank; the averages of others differ until the end of the run.
            "as_trained": self.as_trained if self._rank == 0 else {},
            "in_the_end": {**digests(trainer), "streams": digest(_streams())},
            "updates": trainer.num_updates_completed,
        }
        outcome_path(self._folder, self._rank).write_text(json.dumps(outcome))


def digests(trainer: AnyTrainer) -> dict[str, str]:
    """Return a digest of each of the things that a run consists of, without anything that a clock has measured."""
    history = cast("InMemoryRunHistory", trainer.run_history)
    records = [(one.metric, one.value, one.epoch, one.update, one.samples) for one in history.records()]
    callbacks = {
        type(one).__qualname__: cast("Any", one).state_dict()
        for one in trainer.callback_handler.callbacks
        if hasattr(one, "state_dict") and not isinstance(one, Recorder)
    }
    scaler = trainer._accelerator.scaler  # pyright: ignore[reportPrivateUsage]  # nothing else tells of fp16's
    return {
        "weights": digest(trainer.get_model().state_dict()),
        "optimizer": digest({name: one.state_dict() for name, one in trainer.named_optimizers().items()}),
        "scheduler": digest({name: one.state_dict() for name, one in trainer.named_schedulers().items()}),
        "history": digest(records),
        "callbacks": digest(callbacks),
        "scaler": digest(scaler.state_dict() if scaler else None),
    }


def digest(value: object) -> str:
    """Return a short digest of every bit of a value made of tensors, arrays, containers and plain values."""
    hasher = hashlib.sha256()
    _add(hasher, value)
    return hasher.hexdigest()[:16]


def _add(hasher: hashlib._Hash, value: Any) -> None:  # pyright: ignore[reportPrivateUsage]  # it has no public name
    if isinstance(value, Tensor):
        value = local_piece(value.detach()).cpu()
        hasher.update(f"{value.dtype} {tuple(value.shape)}".encode())
        hasher.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray):
        _add(hasher, value.tolist())
    elif isinstance(value, Mapping):
        mapping: Mapping[Any, Any] = value
        for key in sorted(mapping, key=str):
            _add(hasher, (key, mapping[key]))
    elif isinstance(value, list | tuple):
        hasher.update(f"{len(cast('list[Any]', value))} items".encode())
        for item in cast("list[Any]", value):
            _add(hasher, item)
    else:
        hasher.update(f"{value!r};".encode())


def _streams() -> dict[str, Any]:
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
