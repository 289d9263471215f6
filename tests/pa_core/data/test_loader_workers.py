"""Loading in worker processes: the same batches and draws as in the main process, epoch after epoch."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import traceback
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import Dataset, TensorDataset, get_worker_info
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_core.data import KeyedDataLoader
from pa_core.testing import TinyClassifier, make_classification
from tests.pa_core.data.drawing import Drawing, draw_after, preserved_streams, samples_by_index

pytestmark = pytest.mark.filterwarnings(
    # From python 3.12 on; the timeout of the tests is a thread.
    "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"
)


class WithFile(Dataset[str]):
    """Opens something in each worker, as datasets over archives do."""

    opened_by = -1

    def __len__(self) -> int:
        return 4

    @override
    def __getitem__(self, index: int) -> str:
        return f"{index} read by worker {self.opened_by}"


class Failing(Dataset[int]):
    """Raises at one sample."""

    def __len__(self) -> int:
        return 8

    @override
    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise OSError("the file of sample 5 cannot be read")
        return index


def open_file(worker_id: int) -> None:
    """Prepare the dataset of a worker in the way torch's documentation shows."""
    info: Any = get_worker_info()
    info.dataset.opened_by = worker_id


def mixed(samples: list[Tensor]) -> Tensor:
    """Collate, and draw from each stream."""
    drawn = torch.tensor([[-1.0, random.random(), float(numpy.random.rand()), torch.rand(()).item()]])
    return torch.cat([torch.stack(samples), drawn])


def as_they_are(samples: list[Any]) -> list[Any]:
    """Return the samples."""
    return samples


def drawing_loader(**options: Any) -> KeyedDataLoader[Tensor]:
    """Return a loader over 20 samples that draw, in samples and in collation."""
    return KeyedDataLoader(Drawing(20), batch_size=4, shuffle=True, seed=3, collate_fn=mixed, **options)


def epochs_of(loader: KeyedDataLoader[Tensor]) -> list[Tensor]:
    """Return three epochs, one of them resumed, as one tensor each."""
    epochs: list[Tensor] = []
    for epoch, position in ((0, 0), (1, 8), (2, 0)):
        loader.start_epoch(epoch, position)
        epochs.append(torch.cat(list(loader)))
    return epochs


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "prefetch_factor": 5},
        {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
    ],
)
def test_batches_and_draws_do_not_depend_on_the_workers(options: dict[str, Any]) -> None:
    """Over several epochs and a resumed one, workers make exactly the batches of the main process."""
    loader = drawing_loader(**options)
    for batches, expected in zip(epochs_of(loader), epochs_of(drawing_loader()), strict=True):
        assert torch.equal(batches, expected)


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_an_abandoned_epoch_does_not_leak_into_the_next(persistent_workers: bool) -> None:
    """What was loaded ahead for an epoch that a run left in the middle is never seen in another one."""
    loader = drawing_loader(num_workers=2, persistent_workers=persistent_workers)
    abandoned = iter(loader)
    next(abandoned)
    loader.start_epoch(1)
    expected = drawing_loader()
    expected.start_epoch(1)
    assert torch.equal(torch.cat(list(loader)), torch.cat(list(expected)))


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_a_live_iterator_keeps_its_own_epoch(persistent_workers: bool) -> None:
    """Choosing another epoch is for the next iterator, also for batches that no worker was asked for yet."""
    loader = drawing_loader(num_workers=1, persistent_workers=persistent_workers)
    live = iter(loader)
    batches = [next(live)]
    loader.start_epoch(1)
    batches.extend(live)
    assert torch.equal(torch.cat(batches), torch.cat(list(drawing_loader())))


def test_an_old_iterator_of_persistent_workers_is_refused() -> None:
    """Persistent workers serve one iterator; an older one says so instead of taking batches of the newer."""
    loader = drawing_loader(num_workers=1, persistent_workers=True)
    old = iter(loader)
    next(old)
    new = iter(loader)
    with pytest.raises(RuntimeError, match="out of date"):
        next(old)
    assert len(list(new)) == 5


def test_iterators_without_persistent_workers_are_independent() -> None:
    """Each iterator has workers of its own, as under a plain loader."""
    loader = drawing_loader(num_workers=1)
    pairs = list(zip(loader, loader, strict=True))
    assert len(pairs) == 5
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("keyed_augmentation", [False, True])
def test_the_streams_of_the_main_process_are_undisturbed(keyed_augmentation: bool) -> None:
    """Making an iterator with workers draws nothing, unlike under a plain loader."""
    loader = drawing_loader(num_workers=1, keyed_augmentation=keyed_augmentation)
    with preserved_streams():
        assert draw_after(loader) == draw_after([])


def test_without_keys_workers_still_follow_the_seed_and_the_epoch() -> None:
    """The workers' own streams differ from epoch to epoch, and repeat with the seed."""
    loader = drawing_loader(num_workers=1, keyed_augmentation=False)
    first = samples_by_index(loader)
    assert samples_by_index(loader) == first
    loader.start_epoch(1)
    assert samples_by_index(loader) != first


def test_a_generator_of_the_users_seeds_the_workers() -> None:
    """The generator that is passed is the one that workers are seeded from, and it advances."""
    generator = torch.Generator().manual_seed(0)
    loader = drawing_loader(num_workers=1, keyed_augmentation=False, generator=generator)
    first = samples_by_index(loader)
    assert samples_by_index(loader) != first
    generator.manual_seed(0)
    assert samples_by_index(loader) == first


def test_the_worker_init_function_finds_the_users_dataset() -> None:
    """In each worker the user's function runs once, and what it does to the dataset is what samples see."""
    loader = KeyedDataLoader(WithFile(), batch_size=1, num_workers=2, worker_init_fn=open_file, collate_fn=as_they_are)
    assert loader.worker_init_fn is open_file
    assert [batch[0] for batch in loader] == [f"{index} read by worker {index % 2}" for index in range(4)]


def test_whole_batches_are_fetched_in_workers_too() -> None:
    """Workers and whole batches together give the batches of either alone."""
    dataset = TensorDataset(torch.randn(10, 3), torch.arange(10))
    loader = KeyedDataLoader(dataset, batch_size=4, shuffle=True, num_workers=1)
    assert loader.whole_batches
    expected_batches = list(KeyedDataLoader(dataset, batch_size=4, shuffle=True))
    for batch, expected in zip(loader, expected_batches, strict=True):
        inputs, labels = batch
        assert torch.equal(inputs, expected[0])
        assert torch.equal(labels, expected[1])


def test_an_error_of_the_dataset_arrives() -> None:
    """What a dataset raises in a worker is raised in the main process, with its message."""
    with pytest.raises(OSError, match="sample 5") as error:
        list(KeyedDataLoader(Failing(), batch_size=2, num_workers=1))
    # An iterator of torch that is found by the garbage collector waits five seconds for its workers.
    traceback.clear_frames(error.tb)


def test_closing_ends_persistent_workers_and_the_loader_can_be_used_again() -> None:
    """A run that is over leaves no process behind, and the next one starts new workers."""
    loader = drawing_loader(num_workers=1, persistent_workers=True)
    before = set(multiprocessing.active_children())
    expected = list(loader)
    (worker,) = set(multiprocessing.active_children()) - before
    assert worker.is_alive()
    loader.close()
    worker.join(timeout=10)
    assert not worker.is_alive()
    assert all(torch.equal(batch, other) for batch, other in zip(loader, expected, strict=True))
    loader.close()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_sigterm_while_workers_start_leaves_them_to_the_main_process(
    persistent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launchers send it to all processes; where the script handles it, no worker ends by it, however early it comes."""
    main_process, set_num_threads = os.getpid(), torch.set_num_threads

    def hit_as_soon_as_torch_handles_it(number: int) -> None:
        if os.getpid() != main_process:
            os.kill(os.getpid(), signal.SIGTERM)
        set_num_threads(number)

    monkeypatch.setattr(torch, "set_num_threads", hit_as_soon_as_torch_handles_it)
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    try:
        loader = KeyedDataLoader(TensorDataset(torch.arange(8)), 4, num_workers=2, persistent_workers=persistent)
        for _ in range(2):
            assert [batch.tolist() for (batch,) in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("persistent", [False, True])
def test_no_worker_outlives_a_run_that_failed(persistent: bool) -> None:
    """Not even while the exception, and with it everything that it passed through, is still held."""
    model = TinyClassifier()
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[Fails])
    workers = {"num_workers": 2, "persistent_workers": persistent}
    with pytest.raises(OSError, match="no space left") as held:
        trainer.train(make_classification(64), 1, train_dataloader_kwargs=workers)
    assert held.tb is not None
    assert multiprocessing.active_children() == []


class Fails(TrainerCallback):
    """Fails in mid-epoch."""

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        raise OSError("no space left")
