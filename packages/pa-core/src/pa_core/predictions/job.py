"""The job of a call of ``predict()``: the samples, cut into the same pieces and batches on any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from pa_core.data.custom_loader import is_dataloader
from pa_core.data.data_arguments import GivenData
from pa_core.errors import ConfigurationError
from pa_core.run_config import check_count
from pa_data import KeyedDataLoader, count_samples
from pa_data.orders import EpochOrder, Order
from pa_data.rng import mix, preserve_rng_state, seed_rng

_BATCHES = -3  # extends the seed for what is drawn in predict_batch; datasets draw by the index of the sample
_FIXED = ("sampler", "batch_sampler", "shuffle", "drop_last", "algorithm", "split", "seed", "rank", "num_processes")
"""Arguments of a loader that would change which samples come, and in which order."""


@dataclass(frozen=True)
class Pieces:
    """The samples of a dataset, cut into pieces of consecutive samples, and those into batches.

    Attributes:
        num_samples: The number of samples of the dataset, at least one.
        batch_size: The number of samples of each batch but perhaps the last one of the dataset.
        batches_per_piece: The number of batches of each piece but perhaps the last one.

    Example:
        >>> pieces = Pieces(num_samples=10, batch_size=2, batches_per_piece=2)
        >>> len(pieces), pieces.positions(2), list(pieces.batches(1))
        (3, range(8, 10), [range(4, 6), range(6, 8)])
    """

    num_samples: int
    batch_size: int
    batches_per_piece: int = 1

    @property
    def size(self) -> int:
        """The number of samples of each piece but perhaps the last one."""
        return self.batch_size * self.batches_per_piece

    def __len__(self) -> int:
        """Return the number of pieces."""
        return (self.num_samples + self.size - 1) // self.size

    def positions(self, piece: int) -> range:
        """Return the samples of a piece."""
        return range(piece * self.size, min((piece + 1) * self.size, self.num_samples))

    def batches(self, piece: int) -> Iterator[range]:
        """Iterate over the samples of each batch of a piece."""
        positions = self.positions(piece)
        starts = range(positions.start, positions.stop, self.batch_size)
        return (range(start, min(start + self.batch_size, positions.stop)) for start in starts)


@dataclass(frozen=True, eq=False)
class ChosenPieces(Order):
    """Some pieces of a dataset, one after the other; only the last one of them may be shorter than the others.

    Attributes:
        pieces: All pieces.
        numbers: The numbers of the chosen ones, in this order; int64, at least one.

    Example:
        >>> order = ChosenPieces(Pieces(num_samples=10, batch_size=4), torch.tensor([0, 2]))
        >>> order.epoch_order(10, seed=0, epoch=0).indices(2, 6).tolist()
        [2, 3, 8, 9]
    """

    name: ClassVar[str] = "chosen-pieces-v1"
    pieces: Pieces
    numbers: Tensor

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        return _OrderOfChosen(self, seed=seed, epoch=epoch)

    @cached_property
    def num_samples(self) -> int:
        """The number of samples of the chosen pieces."""
        return (len(self.numbers) - 1) * self.pieces.size + len(self.pieces.positions(int(self.numbers[-1])))


class _OrderOfChosen(EpochOrder):
    algorithm: ClassVar[str] = ChosenPieces.name

    def __init__(self, chosen: ChosenPieces, *, seed: int, epoch: int) -> None:
        super().__init__(chosen.num_samples, seed=seed, epoch=epoch)
        self._numbers, self._size = chosen.numbers, chosen.pieces.size

    @override
    def compute_indices(self, start: int, stop: int) -> Tensor:
        positions = torch.arange(start, stop)
        return self._numbers[positions // self._size] * self._size + positions % self._size


@dataclass(frozen=True)
class PredictionJob:
    """The samples to predict, and how they are loaded.

    Attributes:
        dataset: The samples.
        per_device_batch_size: Samples in a batch, unless the arguments of the loader say otherwise.
        dataloader_kwargs: The arguments for the loader.
        collate_fn: Makes a batch of a list of samples.
        seed: What is drawn in the dataset and in ``predict_batch`` follows from it.

    Raises:
        ConfigurationError: The samples have no order, or an argument would change it.
        EmptyDatasetError: There is no sample.
    """

    dataset: Dataset[Any]
    per_device_batch_size: int
    dataloader_kwargs: Mapping[str, Any]
    collate_fn: Callable[[list[Any]], Any] | None
    seed: int

    def __post_init__(self) -> None:
        """Raise an error for anything that cannot be predicted sample by sample."""
        if is_dataloader(self.dataset):
            raise ConfigurationError(
                "Predictions come in the order of a dataset, and a DataLoader has its own order.",
                given=f"a {type(self.dataset).__name__}",
                do="Pass its dataset, and what else it was made with as collate_fn and dataloader_kwargs.",
            )
        GivenData(self.dataset, "dataset", None, is_made_by_method=False)
        count_samples(self.dataset)
        for name in _FIXED:
            if self.dataloader_kwargs.get(name):
                raise ConfigurationError(
                    f"Predictions come in the order of the dataset, one for each sample. Leave {name}="
                    f"{self.dataloader_kwargs[name]!r} out of dataloader_kwargs; predict a torch.utils.data.Subset for "
                    "other samples or another order."
                )
        check_count("seed", self.seed, minimum=0)
        check_count("per_device_batch_size", self.batch_size)

    @property
    def batch_size(self) -> int:
        """The number of samples of each batch but perhaps the last one."""
        size: int = self.dataloader_kwargs.get("batch_size", self.per_device_batch_size)
        return size

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return count_samples(self.dataset)

    def describe(self) -> dict[str, object]:
        """Return what has to be the same on all processes, by name."""
        return {
            "number of samples": self.num_samples,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "collate_fn": self.collate_fn,
        }

    def loader(
        self,
        pieces: Pieces,
        numbers: Tensor,
        create_defaults: Callable[[Dataset[Any], int], Mapping[str, Any]],
        device: torch.device,
    ) -> KeyedDataLoader[Any]:
        """Return the loader of some pieces, one after the other.

        Args:
            pieces: All pieces of the dataset.
            numbers: Those to load; at least one.
            create_defaults: Called with the dataset and the batch size, returns arguments, which the arguments of the
                job override.
            device: The device of the run.
        """
        defaults = create_defaults(self.dataset, self.batch_size)
        asked = {name: value for name, value in self.dataloader_kwargs.items() if name not in _FIXED}
        kwargs: dict[str, Any] = {"collate_fn": self.collate_fn, **defaults, **asked}
        order = ChosenPieces(pieces, numbers)
        return KeyedDataLoader(self.dataset, seed=self.seed, order=order, device=device, **kwargs)

    @contextmanager
    def draws_of_batch(self, start: int, device: torch.device) -> Generator[None]:
        """Let what is drawn within the context depend on the batch alone; the RNGs of the process stay as they were.

        Args:
            start: The position of the first sample of the batch.
            device: The device of the run.
        """
        key = mix(self.seed, _BATCHES, start)
        devices = [] if device.type == "cpu" else [device]
        untyped: Any = torch.random  # torch annotates it only in part
        with preserve_rng_state(), untyped.fork_rng(devices, device_type=device.type):
            seed_rng(key)
            for one in devices:
                torch.get_device_module(one).manual_seed(key)
            yield
