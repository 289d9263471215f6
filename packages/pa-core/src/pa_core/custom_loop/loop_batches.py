"""The weights of a loop's own batches in their updates, no matter how many the other processes have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from pa_core.custom_loop import mistakes
from pa_core.data.custom_loader import length_of
from pa_core.distributed import gather_objects
from pa_core.run_config import check_count
from pa_core.trained import MicroBatch
from pa_data import move_to_device
from pa_data.batches import is_mapping


def batches_of_loop(
    batches: Iterable[Any], around: MicroBatch, *, device: torch.device, accumulation_steps: int, samples: int | None
) -> Iterator[tuple[MicroBatch, Any]]:
    """Iterate over batches with the part of each in its update, as often on each process as on the one with the most.

    A process that has no batch left repeats one of its batches, or one of another process, with weight 0. Where all
    processes know the number of their batches, they tell each other once; otherwise before each update.

    Args:
        batches: The batches of this process. The batches of an update are fetched together.
        around: The part of the batch of the training loader in whose body they are trained on; what a process makes of
            one that weighs nothing weighs nothing, too.
        device: Where they are moved.
        accumulation_steps: The number of batches of each process in an update.
        samples: The number of samples of each batch; None where the first dimension tells.

    Raises:
        ConfigurationError: This is one batch, or a dataset; or ``samples`` is not a number of them.

    Example:
        >>> around = MicroBatch(step=1, weight=1.0, ends_group=True)
        >>> parts = batches_of_loop(
        ...     torch.zeros(5, 3).split(2), around, device=torch.device("cpu"), accumulation_steps=2, samples=None
        ... )
        >>> [(len(batch), part.ends_group) for part, batch in parts]
        [(2, False), (2, True), (1, True)]
    """
    is_dataset = isinstance(batches, Dataset) and not isinstance(batches, IterableDataset)
    if isinstance(batches, Tensor | str) or is_dataset or is_mapping(batches):
        raise mistakes.not_batches(batches)
    if samples is not None:
        check_count("num_samples", samples)
    arriving = iter(batches)
    left = gather_objects(length_of(batches))
    while True:
        group = [move_to_device(batch, device) for batch in islice(arriving, accumulation_steps)]
        if None in left:
            of_each = gather_objects(len(group))
        else:
            of_each = [min(cast("int", number), accumulation_steps) for number in left]
            left = [cast("int", number) - len_of_group for number, len_of_group in zip(left, of_each, strict=True)]
        most = max(of_each)
        if most == 0:
            return
        stand_in = group[-1] if group else None
        if 0 in of_each:  # pickled on the CPU, as the devices of the processes are not the same
            of_others = gather_objects([move_to_device(batch, "cpu") for batch in group[:1]])
            stand_in = stand_in if group else move_to_device(next(one[0] for one in of_others if one), device)
        for number in range(most):
            is_empty = around.is_empty or number >= len(group)
            batch = group[number] if number < len(group) else stand_in
            part = MicroBatch(around.step, 1 / most, number + 1 == most, is_empty=is_empty, samples=samples)
            yield part, batch
