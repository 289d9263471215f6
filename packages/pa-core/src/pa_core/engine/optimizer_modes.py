"""Optimizers with ``train()`` and ``eval()``, whose weights for evaluation differ from those in training."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer


def has_modes(optimizer: Optimizer) -> bool:
    """Return whether an optimizer has two modes, like schedule-free optimizers.

    Args:
        optimizer: An optimizer; torch's optimizers have no modes.
    """
    return all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))


class OptimizerModes:
    """The optimizers of a run that have modes, while they are in training mode.

    Their training weights are restored bit-for-bit after an evaluation; calling only ``eval()`` and ``train()`` would
    round the weights.
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
        """Put the optimizers into training mode again, after loading a state that was saved in the other mode."""
        for optimizer in self._training:
            optimizer.train()

    def end(self) -> None:
        """Switch to the weights for evaluation and export, at the end of the training."""
        for optimizer in self._training:
            optimizer.eval()
        self._training = []

    @contextmanager
    def evaluating(self) -> Generator[None]:
        """Use the weights for evaluation and export within the context."""
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
