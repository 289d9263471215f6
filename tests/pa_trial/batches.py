"""Training on batches as the loop of a trial does it, with nothing between them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from pa_core.distributed import num_processes
from pa_trial.progress import TrialProgress
from pa_trial.trained_parts import TrainedParts


@dataclass
class Batches:
    """Wrapped parts, and the loop that calls them.

    Attributes:
        aggregation_frequency: As for ``pa_trial.init``.
        epoch_length: How many batches an epoch has.
        parts: What is trained.
    """

    aggregation_frequency: int = 1
    epoch_length: int = sys.maxsize
    progress: TrialProgress = field(default_factory=TrialProgress)
    parts: TrainedParts = field(init=False)

    def __post_init__(self) -> None:
        self.parts = TrainedParts(
            torch.device("cpu"),
            num_processes=num_processes(),
            aggregation_frequency=self.aggregation_frequency,
            progress=self.progress,
        )
        self.progress.epoch_length = self.epoch_length

    @contextmanager
    def training(self) -> Generator[None]:
        """Train within the context."""
        self.parts.require_trainable()
        self.parts.start_training()
        try:
            yield
        finally:
            self.parts.end_training()

    def run(self, train_batch: Callable[[int], Any], indices: Iterable[int]) -> None:
        """Train on batches.

        Args:
            train_batch: Called with the index of each batch.
            indices: Those.
        """
        self.parts.set_training(True)
        for batch_idx in indices:
            self.progress.batch_idx = batch_idx
            self.parts.start_batch()
            train_batch(batch_idx)
            self.parts.finish_batch()
            self.progress.batches_trained = batch_idx + 1

    def train(self, train_batch: Callable[[int], Any], count: int) -> None:
        """Train on so many batches, from the first one to the end.

        Args:
            train_batch: Called with the index of each batch.
            count: The number of batches.
        """
        with self.training():
            self.run(train_batch, range(count))
