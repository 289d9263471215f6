"""The order of an epoch whose samples a function chooses."""

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
"""The indices of the chosen samples, or a mask with an element for each sample of the dataset."""

_WHAT_TO_RETURN = "Return indices from choose, or a mask such as difficulty <= epoch, in one dimension."
_DRAWS = -6  # extends the key of an epoch for draws in the choice of its samples


class Curriculum(Order):
    """Visits the samples that a function chooses for each epoch, in random order by default.

    Use it to begin with easy samples, to drop samples after some epochs, or to repeat hard samples. Pass it as
    ``order`` to a ``KeyedDataLoader``. Epochs may have different lengths. To choose the sequence of the samples, too,
    derive from ``TableOrder``.

    The function must depend only on the epoch number, not on the progress of training, since it is called when a loader
    is created, whenever an epoch is chosen, and again in a resumed run. It should be fast. Random numbers that the
    function draws from the global generators of Python, NumPy and torch depend on the seed and the epoch; the
    generators are restored afterwards. A saved state identifies the function by its name and by its choice for the
    first epoch.

    Args:
        choose: A function that takes an epoch number, from 0, and returns the samples to visit, as a tensor, an array
            or a list in one dimension: of integers, the indices of the samples in the dataset; or of booleans, a mask
            with an element for each sample. An index may appear several times; the sample then gets different random
            augmentation each time.
        shuffle: Whether to shuffle the chosen samples in each epoch. The default is True, the usual choice for
            training. With False they are visited in the returned order.

    Attributes:
        choose: The function.
        shuffle: Whether the chosen samples are shuffled.

    Raises:
        TypeError: ``choose`` is not a function. If its return values are wrong, an error is raised when an epoch is
            chosen; see ``epoch_order``.

    Example:
        >>> import torch
        >>> from pa_data import KeyedDataLoader
        >>> from pa_data.orders import Curriculum
        >>> difficulty = torch.tensor([0.9, 0.1, 0.5, 0.3])
        >>> order = Curriculum(lambda epoch: difficulty < 0.4 + 0.2 * epoch)
        >>> [order.epoch_order(4, seed=0, epoch=epoch).num_samples for epoch in range(4)]
        [2, 3, 3, 4]
        >>> loader = KeyedDataLoader(["hard", "easy", "medium", "simple"], batch_size=4, order=order)
        >>> [sorted(batch) for batch in loader]
        [['easy', 'simple']]
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
        """Call the function for an epoch, and return the order of the chosen samples.

        A loader calls it when an epoch is chosen, with the length of its dataset; you call it to look at the order.

        Args:
            num_samples: The number of samples of the dataset.
            seed: The seed of the run, on which the shuffling and the draws of the function depend.
            epoch: The epoch number, from 0, which the function receives.

        Returns:
            The order of the epoch, with a position for each chosen index.

        Raises:
            TypeError: The function has returned neither integers nor booleans in one dimension.
            DataError: The function has returned indices out of range, or a mask of the wrong length.
            EmptyDatasetError: The function has returned no sample.

        Example:
            >>> from pa_data.orders import Curriculum
            >>> order = Curriculum(lambda epoch: range(epoch + 1), shuffle=False)
            >>> order.epoch_order(5, seed=0, epoch=2).indices(0, 3)
            tensor([0, 1, 2])
        """
        chosen = _indices(self._chosen(epoch, mix(seed, epoch, _DRAWS)), num_samples, epoch)
        return _CurriculumEpoch(chosen, shuffle=self.shuffle, seed=seed, epoch=epoch)

    def _chosen(self, epoch: int, key: int) -> Tensor:
        with preserve_rng_state():
            seed_rng(key)
            return column(f"choose({epoch})", self.choose(epoch), do=_WHAT_TO_RETURN)

    @override
    def parameters(self) -> Mapping[str, object]:
        """Return the identity of the function and ``shuffle``, which identify this order in saved states.

        You need not call it; ``fingerprint`` calls it, so that a run cannot resume with a different curriculum by
        mistake. The function is called for epoch 0.

        Returns:
            The function under ``"choose"`` (for a callable object, its class and its attributes), its choice for epoch
            0 under ``"first"``, as a tensor, and ``"shuffle"``.

        Raises:
            TypeError: The function has not returned numbers in one dimension.

        Example:
            >>> from pa_data.orders import Curriculum
            >>> Curriculum(lambda epoch: range(epoch + 1)).parameters()["first"]
            tensor([0])
        """
        return {"choose": _parts(self.choose), "first": self._chosen(0, 0), "shuffle": self.shuffle}


class _CurriculumEpoch(EpochOrder):
    algorithm = Curriculum.name
    repeats = True  # it may, which need not be checked

    def __init__(self, chosen: Tensor, *, shuffle: bool, seed: int, epoch: int) -> None:
        super().__init__(chosen.numel(), seed=seed, epoch=epoch)
        self._chosen = chosen
        self._order = epoch_order(chosen.numel(), seed=seed, epoch=epoch, shuffle=shuffle)

    @override
    def compute_indices(self, start: int, stop: int) -> Tensor:
        return self._chosen[self._order.indices(start, stop)]


def _indices(chosen: Tensor, num_samples: int, epoch: int) -> Tensor:
    """Return the chosen samples as checked indices."""
    name = f"choose({epoch})"
    if chosen.dtype == torch.bool:
        check_one_for_each_sample(f"elements of {name}", chosen.numel(), num_samples)
        chosen = chosen.nonzero().squeeze(1)
    if chosen.numel() == 0:
        problem = f"An epoch of the curriculum has no sample: {name} returned none."
        raise EmptyDatasetError(f"{problem} Choose more samples for this epoch, or train for fewer epochs.")
    return checked_indices(chosen, num_samples, name, _WHAT_TO_RETURN)


def _parts(choose: object) -> object:
    """Return the identity of a function: its name or, for a callable object, its class and its attributes."""
    if isinstance(choose, partial):
        return _parts(choose.func), choose.args, choose.keywords
    return choose if hasattr(choose, "__qualname__") else (type(choose), vars(choose))
