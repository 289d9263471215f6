"""The order that visits in each epoch the samples that a function chooses for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor
from typing_extensions import override

from pa_data.errors import EmptyDatasetError
from pa_data.orders._checks import check_one_for_each_sample, checked_indices, column
from pa_data.orders._epoch_order import EpochOrder, epoch_order
from pa_data.orders._order import Order
from pa_data.rng import mix, preserve_rng_state, seed_rng

__all__ = ["Chosen", "Curriculum"]

Chosen: TypeAlias = Tensor | Sequence[int] | Sequence[bool]
"""The indices of samples, or whether each sample of the dataset is among them."""

_WHAT_TO_RETURN = "Return indices from choose, or a mask such as difficulty <= epoch, in one dimension."
_DRAWS = -6  # extends the key of an epoch for what is drawn while its samples are chosen


class Curriculum(Order):
    """Visits in each epoch the samples that a function chooses for it, in a random order.

    Epochs may have different lengths. A run computes the lengths of all its epochs when it begins, so the function is
    called for each epoch, and again when the epoch starts: it has to follow from the number of the epoch, not from how
    the training goes, and to be cheap. What it draws from the global generators of Python, NumPy and torch is keyed by
    the seed of the run and the epoch, and the generators are afterwards as they were.

    Saved states know the function by its name and by what it chooses for the first epoch.

    Args:
        choose: Takes the number of an epoch, from 0, and returns the samples to visit: their indices, or a mask with
            an element for each sample of the dataset. An index that comes twice is visited twice, with other
            random numbers each time.
        shuffle: Whether the samples that it returns are shuffled; otherwise they are visited as it returns them.

    Attributes:
        choose: The function.
        shuffle: Whether the samples that it returns are shuffled.

    Raises:
        TypeError: ``choose`` is not a function, or returns something else than indices or a mask.
        DataError: It returns indices that the dataset does not have, or a mask of another length.
        EmptyDatasetError: It returns no sample.

    Example:
        >>> difficulty = torch.tensor([0.9, 0.1, 0.5, 0.3])
        >>> order = Curriculum(lambda epoch: difficulty < 0.4 + 0.2 * epoch)
        >>> [order.epoch_order(4, seed=0, epoch=epoch).num_samples for epoch in range(4)]
        [2, 3, 3, 4]
    """

    name: ClassVar[str] = "curriculum-v1"

    def __init__(self, choose: Callable[[int], Chosen], *, shuffle: bool = True) -> None:
        if not callable(choose):
            raise TypeError(
                f"A curriculum is given as a function, got choose of type {type(choose).__name__}. Pass for example "
                "lambda epoch: difficulty <= epoch."
            )
        self.choose: Callable[[int], Chosen] = choose
        self.shuffle: bool = shuffle

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        chosen = _indices(self._chosen(epoch, mix(seed, epoch, _DRAWS)), num_samples, epoch)
        return _CurriculumEpoch(chosen, shuffle=self.shuffle, seed=seed, epoch=epoch)

    def _chosen(self, epoch: int, key: int) -> Tensor:
        with preserve_rng_state():
            seed_rng(key)
            return column(f"choose({epoch})", self.choose(epoch), do=_WHAT_TO_RETURN)

    @override
    def parameters(self) -> Mapping[str, object]:
        return {"choose": _parts(self.choose), "first": self._chosen(0, 0), "shuffle": self.shuffle}


class _CurriculumEpoch(EpochOrder):
    algorithm = Curriculum.name
    repeats = True  # it may, and nobody has to look

    def __init__(self, chosen: Tensor, *, shuffle: bool, seed: int, epoch: int) -> None:
        super().__init__(chosen.numel(), seed=seed, epoch=epoch)
        self._chosen = chosen
        self._order = epoch_order(chosen.numel(), seed=seed, epoch=epoch, shuffle=shuffle)

    @override
    def compute_indices(self, start: int, stop: int) -> Tensor:
        return self._chosen[self._order.indices(start, stop)]


def _indices(chosen: Tensor, num_samples: int, epoch: int) -> Tensor:
    name = f"choose({epoch})"
    if chosen.dtype == torch.bool:
        check_one_for_each_sample(f"elements of {name}", chosen.numel(), num_samples)
        chosen = chosen.nonzero().squeeze(1)
    if chosen.numel() == 0:
        problem = f"An epoch of the curriculum has no sample: {name} returned none."
        raise EmptyDatasetError(f"{problem} Choose more samples for this epoch, or train for fewer epochs.")
    return checked_indices(chosen, num_samples, name, _WHAT_TO_RETURN)


def _parts(choose: object) -> object:
    """What a function is known by: its name; for a callable object, the name of its class and what it holds."""
    if isinstance(choose, partial):
        return _parts(choose.func), choose.args, choose.keywords
    return choose if hasattr(choose, "__qualname__") else (type(choose), vars(choose))
