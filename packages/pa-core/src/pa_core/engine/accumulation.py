"""What each batch weighs in its update: as many samples as it has of it, or as many items, such as tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from torch import Tensor

from pa_core._tensors import local_pieces
from pa_core._torch import foreach
from pa_core.engine.micro_batches import BatchPlace
from pa_core.errors import BatchOutputError


class Accumulation:
    """Makes the gradient of an update the gradient of the mean over all its samples, or all its items such as tokens.

    A batch weighs as many samples as it has of the update, which the loader knows beforehand: ``BatchPlace.weight``.
    Items are counted by the step itself, and how many an update has is known when its last batch has been counted,
    after most of its backward passes. So each batch is weighed by its items over a reference number, and at the end the
    gradients are multiplied once by what is missing. The reference keeps losses in the range that gradient scalers
    expect; it is a power of two, so that it changes no digit of the result.

    A run has one for each optimizer.

    Args:
        num_processes: The number of processes, over which gradients are averaged.
        counted_by: What the script gives the number of items as, for messages.
        weighs_all: Whether the only batch of an update is weighed, too, as others are on any number of processes.

    Attributes:
        items: The items of this process in the current update so far; 0 where losses are means over samples.
        counts_items: Whether the steps count items; None before the first one.
        counts_samples: Whether samples are counted as items where a step counts none. This is the case for a stream, as
            nobody knows beforehand how many an update has.
        counts_nothing: Whether the last batch was counted as one without a sample or an item.
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

    def __init__(self, num_processes: int, *, counted_by: str = "num_items_in_batch", weighs_all: bool = False) -> None:
        self._num_processes = num_processes
        self._weighs_all = weighs_all
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
            items: The number of items that the loss is the mean over; None if that is the samples.

        Raises:
            BatchOutputError: Other batches of the run count their items, and this one does not, or the reverse.
        """
        weight = place.weight
        if not place.is_empty:
            items = self._count(batch_size, items)
            is_alone = weight == 1 and self._num_processes == 1 and not self._weighs_all
            if items is not None and not is_alone:
                if place is not self._counted:  # a further pass over the same batch has the same items
                    self.items += items
                self._counted = place
                weight = items / (self.reference_items or 1.0)
        return loss if weight == 1 else loss * weight

    def _count(self, batch_size: int, items: int | None) -> int | None:
        """Note what a batch holds; return the number of items that it weighs, None for its samples."""
        if self.counts_items is None:
            self.counts_items = items is not None
        if self.counts_items != (items is not None):
            raise BatchOutputError(
                "Some steps of this run count their items, and others do not.",
                given=f"{self._counted_by} in earlier steps, and none in this one"
                if items is None
                else f"{self._counted_by}={items} in this step, and none in earlier ones",
                do=f"Give {self._counted_by} in every step, even if it is 0.",
            )
        self.last_batch_size = batch_size
        self.counts_nothing = (batch_size if items is None else items) == 0
        return batch_size if items is None and self.counts_samples else items

    def scale_gradients(self, parameters: Callable[[], Iterable[Tensor]], total: float | Tensor) -> None:
        """Turn the gradients of an update into the gradients of the mean over its items, if it counts items.

        Args:
            parameters: Returns the parameters whose gradients were accumulated, and averaged over the processes; not
                called in an update that counts no items.
            total: The items of the update on all processes. A tensor on the device is not waited for, except after the
                first update.
        """
        is_known = isinstance(total, Tensor) and self.counts_items is not None
        if not is_known and float(total) == 0:  # a process without a sample so far learns it from the others
            return
        reference = self.reference_items or 1.0
        if self.reference_items is None and float(total) > 0:
            self.reference_items = _power_of_two(float(total) / self._num_processes)
        gradients = local_pieces(parameter.grad for parameter in parameters() if parameter.grad is not None)
        if gradients:
            # Without any item all gradients are zero, and stay so.
            at_least_one = total.clamp(min=1) if isinstance(total, Tensor) else max(total, 1)
            factor = reference * self._num_processes / at_least_one
            foreach("mul_", gradients, factor)
        self.items = 0.0


def _power_of_two(number: float) -> float:
    return 2.0 ** round(math.log2(number)) if number > 0 else 1.0
