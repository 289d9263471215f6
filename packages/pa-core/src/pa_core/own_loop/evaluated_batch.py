"""An evaluation batch of a custom training loop, and its loss."""

from __future__ import annotations

import torch
from torch import Tensor

from pa_core.tracking import LossTracker, MetricValue
from pa_core.tracking.step_means import logged_twice, single_number

__all__ = ["EvaluatedBatch"]


class EvaluatedBatch:
    """The loss of one evaluation batch, which counts for its samples.

    Args:
        losses: The losses of the evaluation so far.
        samples: The number of samples of the batch; 0 for one that is there only because other processes have samples.

    Attributes:
        samples: As passed.
        loss: What was logged; zero before.
    """

    def __init__(self, losses: LossTracker, samples: int) -> None:
        self._losses = losses
        self.samples: int = samples
        self._is_logged = False
        self.loss: Tensor = torch.zeros(())

    @property
    def is_empty(self) -> bool:
        """Whether this process has no sample in this step, while others do."""
        return self.samples == 0

    def log_loss(self, value: MetricValue, num_items: int | None = None) -> None:
        """Add the loss of the batch.

        Args:
            value: The mean over its samples, or over its items.
            num_items: The number of items; None for the samples.

        Raises:
            ConfigurationError: It was logged already, or is not a single number.
        """
        if self._is_logged:
            raise logged_twice("loss")
        number = single_number("loss", value)
        self._is_logged = True
        self.loss = number if isinstance(number, Tensor) else torch.tensor(float(number))
        if not self.is_empty:  # a loss that is not finite would spoil the mean even so
            self._losses.update(self.loss, self.samples if num_items is None else num_items)
