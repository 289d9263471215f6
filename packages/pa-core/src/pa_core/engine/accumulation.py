"""The weight of each batch in its update: its share of the samples, or of items, for example tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from torch import Tensor

from pa_core._tensors import local_pieces
from pa_core._torch import foreach
from pa_core.engine.micro_batches import BatchPlace
from pa_core.errors import BatchOutputError


class Accumulation:
    """Turns the gradient of an update into the gradient of the mean loss over all its samples or items.

    The weight of a batch is its share of the samples of the update, which the loader knows: ``BatchPlace.weight``.
    Items are counted by the step, so the number of items in an update is known only with its last batch, after most of
    its backward passes. Therefore, each loss is multiplied by the ratio of its items to a reference number, and at the
    end the gradients are multiplied once by the ratio of the reference number to the total. The reference keeps losses
    in the range that gradient scalers expect; it is a power of two, so that it changes no digit of the result.

    A run has an accumulation for each optimizer.

    Args:
        num_processes: The number of processes, over which gradients are averaged.
        counted_by: The name of the number of items in scripts, for messages.
        scales_all: Whether the loss is scaled even if a batch is a whole update, so that the arithmetic is the same on
            any number of processes.

    Attributes:
        items: The number of items of this process in the current update so far; 0 if losses are means over samples.
        counts_items: Whether the steps count items; None before the first step.
        counts_samples: Whether samples are counted as items if a step counts none. This is the case for a stream,
            because the numbers of samples in its updates are unknown.
        counts_nothing: Whether the last batch has no sample or item.
        reference_items: The reference number, None before the first update that counts items.
        last_batch_size: The number of samples of the last batch.

    Example:
        >>> import torch
        >>> parameter = torch.nn.Parameter(torch.zeros(()))
        >>> accumulation = Accumulation(num_processes=1)
        >>> for step, mean_loss, tokens in ((1, 1.0, 3), (2, 5.0, 1)):  # the mean over the four tokens is 2
        ...     place = BatchPlace(step, weight=0.5, ends_group=step == 2)
        ...     accumulation.scale_loss(parameter * mean_loss, place, batch_size=1, items=tokens).backward()
        >>> accumulation.scale_gradients(lambda: [parameter], accumulation.items)
        >>> parameter.grad
        tensor(2.)
    """

    def __init__(self, num_processes: int, *, counted_by: str = "num_items_in_batch", scales_all: bool = False) -> None:
        self._num_processes = num_processes
        self._scales_all = scales_all
        self._counted_by = counted_by
        self.counts_items: bool | None = None
        self._counted: BatchPlace | None = None
        self.reference_items: float | None = None
        self.items: float = 0.0
        self.counts_samples: bool = False
        self.counts_nothing: bool = False
        self.last_batch_size: int = 0

    def scale_loss(self, loss: Tensor, place: BatchPlace, batch_size: int, items: int | None = None) -> Tensor:
        """Scale the mean loss of a batch to its share of the update, and count its items.

        Args:
            loss: The mean over the samples or the items of the batch.
            place: The place of the batch in the update.
            batch_size: The number of its samples.
            items: The number of items that the loss is the mean over; None for samples.

        Raises:
            BatchOutputError: Only some batches of the run count their items.
        """
        weight = place.weight
        if not place.is_empty:
            items = self._count(batch_size, items)
            is_alone = weight == 1 and self._num_processes == 1 and not self._scales_all
            if items is not None and not is_alone:
                if place is not self._counted:  # a further pass over the same batch has the same items
                    self.items += items
                self._counted = place
                weight = items / (self.reference_items or 1.0)
        return loss if weight == 1 else loss * weight

    def _count(self, batch_size: int, items: int | None) -> int | None:
        """Count the items of a batch, and return their number; None for samples."""
        if self.counts_items is None:
            self.counts_items = items is not None
        if self.counts_items != (items is not None):
            raise BatchOutputError(
                "Only some steps of this run count their items.",
                given=f"{self._counted_by} in earlier steps, but not in this step"
                if items is None
                else f"{self._counted_by}={items} in this step, but not in earlier steps",
                do=f"Return {self._counted_by} in every step, even if it is 0.",
            )
        self.last_batch_size = batch_size
        self.counts_nothing = (batch_size if items is None else items) == 0
        return batch_size if items is None and self.counts_samples else items

    def scale_gradients(self, parameters: Callable[[], Iterable[Tensor]], total: float | Tensor) -> None:
        """Turn the gradients of an update into the gradients of the mean over its items, if it counts items.

        Args:
            parameters: Returns the parameters whose gradients were accumulated, and averaged over the processes; not
                called in an update that counts no items.
            total: The items of the update on all processes. A tensor on the device is not read, except after the first
                update.
        """
        is_known = isinstance(total, Tensor) and self.counts_items is not None
        if not is_known and float(total) == 0:  # a process without a sample so far knows it from the others
            return
        reference = self.reference_items or 1.0
        if self.reference_items is None and float(total) > 0:
            self.reference_items = _power_of_two(float(total) / self._num_processes)
        gradients = local_pieces(parameter.grad for parameter in parameters() if parameter.grad is not None)
        if gradients:
            # Without items all gradients are zero.
            at_least_one = total.clamp(min=1) if isinstance(total, Tensor) else max(total, 1)
            factor = reference * self._num_processes / at_least_one
            foreach("mul_", gradients, factor)
        self.items = 0.0


def _power_of_two(number: float) -> float:
    return 2.0 ** round(math.log2(number)) if number > 0 else 1.0
