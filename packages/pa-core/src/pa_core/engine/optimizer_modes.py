"""Optimizers with ``train()`` and ``eval()``, whose weights in training are not those to evaluate."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer


def has_modes(optimizer: Optimizer) -> bool:
    """Return whether an optimizer has two modes, as schedule-free ones do.

    Args:
        optimizer: Any optimizer; torch's have none.
    """
    return all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))


class OptimizerModes:
    """The optimizers of a run that are in training mode and have another one.

    Their training weights come back bit-for-bit after an evaluation: calling ``eval()`` and ``train()`` alone would
    round them.
    """

    def __init__(self) -> None:
        self._training: list[Any] = []

    def train(self, optimizers: Iterable[Optimizer]) -> None:
        """Put optimizers into training mode.

        Args:
            optimizers: All optimizers of the run.
        """
        self._training = [optimizer for optimizer in optimizers if has_modes(optimizer)]
        self.train_again()

    def train_again(self) -> None:
        """Put them into it again, after a state was loaded that was saved in the other mode."""
        for optimizer in self._training:
            optimizer.train()

    def end(self) -> None:
        """Leave the weights that are to be evaluated and exported, as the training is over."""
        for optimizer in self._training:
            optimizer.eval()
        self._training = []

    @contextmanager
    def evaluating(self) -> Generator[None]:
        """Have the weights that are to be evaluated and exported within the context."""
        optimizers, self._training = self._training, []
        parameters = [
            parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]
        ]
        before = [parameter.detach().clone() for parameter in parameters]
        for optimizer in optimizers:
            optimizer.eval()
        try:
            yield
        finally:
            self._training = optimizers
            self.train_again()
            with torch.no_grad():
                for parameter, value in zip(parameters, before, strict=True):
                    parameter.copy_(value)
