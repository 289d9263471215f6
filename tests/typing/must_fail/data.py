"""What must not pass a type checker around loaders, and around starting and connecting processes."""

# What is unknown because of an error is no error of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import torch
from torch import Tensor

from pa_core import gather_objects, local_process_zero_only, notebook_launcher
from pa_core.data import DataLoaderSlice, KeyedDataLoader
from pa_core.types import SizedIterable
from pa_data import BatchRequests, RequestedDataLoader, SupportsFetchBatch, move_to_device
from tests.typing.vocabulary import Batch, make_data


def main(epochs: int) -> None:
    """Train."""


@local_process_zero_only
def double(number: int) -> int:
    """Return twice a number."""
    return 2 * number


class Squares:
    """Fetches batches of tensors."""

    def fetch_batch(self, indices: Tensor) -> Tensor:
        """Return the squares."""
        return indices**2


def load(batches: BatchRequests) -> None:
    """Load what is requested."""
    loader: RequestedDataLoader[int] = RequestedDataLoader(make_data(), batches)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]  # pa_data.RequestedDataLoader[_SampleT_co]: they are tensors
    iter(loader)


# Loaders

samples: KeyedDataLoader[int] = KeyedDataLoader(make_data())  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]  # pa_core.data.KeyedDataLoader[_SampleT_co]: they are tensors
KeyedDataLoader(make_data(), split="test")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.data.KeyedDataLoader: "train" or "eval"
KeyedDataLoader(make_data()).position = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.data.KeyedDataLoader.position: it is set by start_epoch()
slice_of_batches: DataLoaderSlice[Batch] = DataLoaderSlice([1, 2, 3], 2)  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]  # pa_core.data.DataLoaderSlice[_BatchT_co]: numbers
DataLoaderSlice(iter([1, 2, 3]), 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.data.DataLoaderSlice: an iterator has no length
loader: SizedIterable[Batch] = [1, 2, 3]  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]  # pa_core.types.SizedIterable[_Item_co]: numbers are no batches
endless: SizedIterable[int] = iter([1, 2, 3])  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.types.SizedIterable: an iterator has no length
fetch: SupportsFetchBatch[Batch] = Squares()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_data.SupportsFetchBatch[_BatchT_co]: another batch
on_device: Batch = move_to_device(torch.ones(1), "cpu")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.data.move_to_device: a tensor stays one

# Processes

names: list[str] = gather_objects(3)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]  # pa_core.gather_objects: numbers come back
notebook_launcher(main, ("3",))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]  # pa_core.notebook_launcher: a number of epochs
notebook_launcher(main)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.notebook_launcher: an argument is missing
notebook_launcher(main(3))  # type: ignore[call-overload, func-returns-value]  # pyright: ignore[reportArgumentType]  # pa_core.notebook_launcher: it was called
double("2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.local_process_zero_only: a number
four: int = double(2)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_core.local_process_zero_only: other processes have none
