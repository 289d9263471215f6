"""Training on batches as the loop of a trial does it, with nothing between them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from typing_extensions import override

from pa_trial.collectives import num_processes, rank
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


@dataclass
class OneWeight(Batches):
    """A model with one weight of zero, and its optimizer, whose rate is one.

    Attributes:
        model: Its gradient in a pass is 1 on the chief, and 2 on the other rank: `mean_over_ranks` in all.
        optimizer: That of the model.
    """

    model: nn.Linear = field(init=False)
    optimizer: SGD = field(init=False)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        self.prepare()
        self.model, self.optimizer = self.wrap_another()

    def prepare(self) -> None:
        """Do what comes before the model is wrapped: nothing."""

    def wrap_another(self) -> tuple[nn.Linear, SGD]:
        """Wrap one more such model and its optimizer."""
        model = self.parts.wrap_model(nn.Linear(1, 1, bias=False))
        nn.init.zeros_(model.weight)
        return model, self.parts.wrap_optimizer(SGD(model.parameters(), lr=1.0))

    def loss(self) -> Tensor:
        """The loss of a pass."""
        loss: Tensor = self.model(torch.full((1, 1), rank() + 1.0)).sum()
        return loss

    def backward(self) -> None:
        """Make a pass."""
        self.parts.backward(self.loss())

    def train_batch(self, _batch_idx: int) -> None:
        """Make a pass and a step."""
        self.backward()
        self.parts.step_optimizer(self.optimizer)

    @property
    def value(self) -> float:
        """The weight."""
        return self.model.weight.item()

    @property
    def gradient(self) -> float:
        """The gradient of the weight."""
        return gradient_of([self.model.weight])


def gradient_of(parameters: Sequence[Tensor]) -> float:
    """The gradient of one weight, for which clipping may be asked."""
    (parameter,) = parameters
    assert parameter.grad is not None
    return parameter.grad.item()


def mean_over_ranks() -> float:
    """The gradient of `OneWeight`, over all processes."""
    return (1 + num_processes()) / 2
