"""The types of loaders, and of what starts and connects processes."""

from __future__ import annotations

from typing import Any, assert_type

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pa_core import LimitBatches, gather_objects, local_process_zero_only, notebook_launcher
from pa_core.data import DataLoaderSlice, KeyedDataLoader
from pa_core.types import SizedIterable
from pa_data import EvalSplit, SupportsFetchBatch, move_to_device
from pa_data.orders import epoch_order
from tests.typing.vocabulary import Batch, collate, make_data


def test_our_loader_is_one_of_torch() -> None:
    """It knows its samples, as every loader of torch does, and fits where a loader of torch is expected."""

    def take(loader: DataLoader[tuple[Tensor, ...]]) -> None:
        assert_type(loader.batch_size, int | None)

    loader = KeyedDataLoader(make_data(), batch_size=4, collate_fn=collate)
    assert_type(loader, KeyedDataLoader[tuple[Tensor, ...]])
    assert_type(loader.position, int)
    assert_type(epoch_order(8, seed=0, epoch=1).indices(0, 4), Tensor)
    assert_type(EvalSplit(8, 4, 1).piece(0, 0), range)
    take(loader)
    assert len(list(loader)) == 2


def test_a_slice_yields_what_its_loader_yields() -> None:
    """The first batches of a loader have the type of all of them."""
    batches = [collate([(torch.ones(4), torch.tensor(1))])] * 3
    first = DataLoaderSlice(batches, slice_size=2)

    assert_type(first, DataLoaderSlice[Batch])
    loader: SizedIterable[Batch] = first
    for batch in loader:
        assert_type(batch, Batch)
    with LimitBatches(1):
        assert len(first) == 2


def test_a_batch_keeps_its_type_on_its_way() -> None:
    """Moving a batch to a device, and a dataset that fetches batches, keep the type of the batch."""

    class Squares:
        def fetch_batch(self, indices: Tensor) -> dict[str, Tensor]:
            return {"squares": indices**2}

    fetcher: SupportsFetchBatch[dict[str, Tensor]] = Squares()
    batch = fetcher.fetch_batch(torch.arange(3))
    assert_type(batch, dict[str, Tensor])
    assert_type(move_to_device(batch, "cpu"), dict[str, Tensor])
    assert_type(gather_objects(len("three")), list[int])


def test_a_decorated_function_keeps_its_signature() -> None:
    """A function that runs on some processes alone is called as before, and may return None."""

    @local_process_zero_only
    def double(number: int) -> int:
        return 2 * number

    assert_type(double(4), int | None)
    assert double(number=4) == 8


def test_arguments_of_a_notebook_belong_to_its_function(capsys: pytest.CaptureFixture[str]) -> None:
    """The launcher takes the arguments that the function takes."""
    results: list[Any] = []

    def main(epochs: int, rate: float = 0.1) -> None:
        results.append((epochs, rate))

    notebook_launcher(main, (3, 0.5), num_processes=1, mixed_precision="no")
    notebook_launcher(main, (3,), num_processes=1)
    notebook_launcher(lambda: main(4), num_processes=1)
    assert results == [(3, 0.5), (3, 0.1), (4, 0.1)]
    assert "CPU" in capsys.readouterr().out
