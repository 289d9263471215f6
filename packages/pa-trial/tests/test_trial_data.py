"""The data of a trial in training: its loaders, epochs and records, and what each process gets."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import sys
from collections import UserDict
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, IterableDataset
from typing_extensions import override

from pa_trial import DataLoader
from pa_trial.collectives import num_processes, rank
from pa_trial.data_length import data_length
from pa_trial.errors import ArgumentTypeError, ConfigurationError, EmptyLoaderError
from pa_trial.trial_data import TrialData
from tests.launching import Launch
from tests.support.pa_trial.loaded import Drawing, MiddleOut, Quiet, as_lists, numbers, rng_states

pytestmark = pytest.mark.runs_on("one_process", "two_ranks")

one_process = pytest.mark.runs_on("one_process")


class Loaders:
    """What a trial returns."""

    def __init__(self, training: Any = None, validation: Any = None) -> None:
        self.training = DataLoader(numbers(8), 2) if training is None else training
        self.validation = DataLoader(numbers(5), 2) if validation is None else validation

    def build(self, *, checks: bool = True, skip: int = 0) -> TrialData:
        """Return the data as ``fit`` has them built."""
        ranks = {"rank": rank(), "num_processes": num_processes()}
        return TrialData(self.training, self.validation, checks=checks, seed=3, skip=skip, **ranks)


def trained_on(data: TrialData, batches: int) -> list[Any]:
    """The next batches of a training on this process."""
    return [as_lists(batch) for batch in islice(data.training_batches(), batches)]


# Which loaders


@pytest.mark.parametrize("which", ["training", "validation"])
def test_a_loader_of_torch_is_refused_unless_the_check_is_disabled(which: str) -> None:
    """It can neither be resumed nor shared out; the message names the call that permits it."""
    loaders = Loaders(**{which: TorchDataLoader(numbers(6), 2)})
    advice = r"you can disable this check by calling context\.experimental\.disable_dataset_reproducibility_checks"
    with pytest.raises(RuntimeError, match=advice) as caught:
        loaders.build()
    assert f"build_{which}_data_loader" in str(caught.value)
    assert loaders.build(checks=False).epoch_length > 0


def test_a_loader_that_is_forgotten_is_a_type_error() -> None:
    """A method without a return statement is told apart from a loader of another kind."""
    loaders = Loaders()
    loaders.training = None
    for checks in (True, False):
        with pytest.raises(TypeError, match="NoneType from build_training_data_loader"):
            loaders.build(checks=checks)


def test_a_loader_without_a_batch_is_refused_at_once() -> None:
    """Training on nothing, be it that drop_last left nothing, is an error and not an endless loop."""
    for empty in (DataLoader(numbers(0)), DataLoader(numbers(3), 4, drop_last=True)):
        with pytest.raises(EmptyLoaderError, match="a DataLoader without a batch") as caught:
            Loaders(empty).build()
        assert isinstance(caught.value, RuntimeError | ValueError)


# Loaders of torch, as they are


def test_a_finite_loader_of_torch_begins_again() -> None:
    """After its last batch comes its first one; it is neither shared out nor skipped into, which is up to the user."""
    loader = TorchDataLoader(numbers(5), 2)
    data = Loaders(loader, loader).build(checks=False, skip=5)
    assert data.epoch_length == 3
    assert trained_on(data, 7) == [[0, 1], [2, 3], [4], [0, 1], [2, 3], [4], [0, 1]]
    assert as_lists(list(data.validation_batches())) == [[0, 1], [2, 3], [4]]
    assert data.full_validation_loader is loader


def test_a_sampler_of_torch_is_told_the_epoch() -> None:
    """A ``DistributedSampler`` shuffles each epoch in another way, and in a resumed training as in that epoch."""

    def shuffled() -> TorchDataLoader[Any]:
        return TorchDataLoader(numbers(8), 8, sampler=DistributedSampler(numbers(8), 1, 0, seed=4))

    epochs = trained_on(Loaders(shuffled()).build(checks=False), 3)
    assert epochs[0] != epochs[1] != epochs[2]
    assert trained_on(Loaders(shuffled()).build(checks=False, skip=2), 1) == epochs[2:]


class Three(IterableDataset[int]):
    """Has no length."""

    @override
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_an_epoch_of_a_loader_without_a_length_does_not_end() -> None:
    """An iterable dataset may be used as it is; it repeats, but nothing counts its epochs; an iterator runs dry."""
    data = Loaders(TorchDataLoader(Three())).build(checks=False)
    assert data.epoch_length == sys.maxsize
    assert trained_on(data, 4) == [[0], [1], [2], [0]]
    with pytest.raises(EmptyLoaderError, match="list_iterator that yields nothing in epoch 1"):
        trained_on(Loaders(iter([[1], [2]])).build(checks=False), 3)


# Epochs and shares


def test_processes_train_and_validate_on_batches_in_turn() -> None:
    """Batch i of the repeated ones is for rank ``i % R``, also where R does not divide their number.

    Epochs are counted as the chief's, each validation begins anew, and the full dataset is not shared out.
    """
    batches = [[0, 1], [2, 3], [4]]
    data = Loaders(DataLoader(numbers(5), 2)).build()
    assert data.epoch_length == -(-3 // num_processes())
    assert trained_on(data, 8) == (batches * 6)[rank() :: num_processes()][:8]
    assert isinstance(data.full_validation_loader, TorchDataLoader)
    for _ in range(2):
        assert as_lists(list(data.validation_batches())) == batches[rank() :: num_processes()]
        assert as_lists(list(data.full_validation_loader)) == batches


def test_a_process_may_have_nothing_to_validate_on() -> None:
    """Where there are fewer batches than processes some have none, which is no error."""
    data = Loaders(validation=DataLoader(numbers(2), 2)).build()
    assert as_lists(list(data.validation_batches())) == ([[0, 1]] if rank() == 0 else [])


@pytest.mark.parametrize("workers", [0, 1])
def test_each_validation_draws_alike_and_changes_nothing_else(workers: int) -> None:
    """How often a training was validated does not decide what it draws, nor what a later validation draws."""
    options: dict[str, Any] = {"shuffle": True, "num_workers": workers, "persistent_workers": workers > 0}
    data = Loaders(validation=DataLoader(Drawing(8), 2, **options)).build()
    before = rng_states()
    first = as_lists(list(data.validation_batches()))
    assert as_lists(list(data.validation_batches())) == first
    assert rng_states() == before
    trained = trained_on(Loaders(DataLoader(Drawing(8), 2, shuffle=True)).build(), len(first))
    assert trained != first  # the keys of a validation are its own


@pytest.mark.runs_on("two_ranks")
def test_samples_are_not_shared_out_twice() -> None:
    """A sampler of torch that shares samples out would leave most of them out: it is refused on several processes."""
    loader = DataLoader(numbers(8), 2, sampler=DistributedSampler(numbers(8)))
    for loaders in (Loaders(loader), Loaders(validation=loader)):
        with pytest.raises(ValueError, match="sharded twice"):
            loaders.build()


@one_process
def test_what_has_to_be_alike_is_told_in_words() -> None:
    """Number and size of the batches, the sampler and the seed of a generator: else shares would not fit together."""
    generator = torch.Generator().manual_seed(7)
    loaders = Loaders(DataLoader(numbers(8), 3, shuffle=True, generator=generator), TorchDataLoader(numbers(8)))
    assert loaders.build(checks=False).describe() == {
        "training loader": "3 batches of 3 by RandomSampler, a generator seeded with 7",
        "validation loader": "DataLoader",
    }
    by_batches = Loaders(DataLoader(numbers(8), batch_sampler=[[0], [1]]))
    assert by_batches.build().describe()["training loader"] == "2 batches by list"
    assert Loaders(DataLoader(numbers(8), sampler=MiddleOut(8))).build().describe() == {
        "training loader": "8 batches of 1 by MiddleOut",
        "validation loader": "3 batches of 2 by SequentialSampler",
    }


# Workers


@one_process
def test_closing_ends_workers_that_are_still_loading() -> None:
    """A training that ends in the middle of an epoch leaves no worker behind, nor does a validation cut short."""
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    loaders = Loaders(DataLoader(Quiet(8), 2, num_workers=2), DataLoader(Quiet(8), 2, **options))
    data = loaders.build()
    training, validation = data.training_batches(), data.validation_batches()
    for batches in (training, validation):
        next(batches)
    assert len(multiprocessing.active_children()) == 4
    data.close()
    assert multiprocessing.active_children() == []


SCRIPT = """
import os, signal
from torch.utils.data import Dataset, _utils
from pa_trial import DataLoader
from pa_trial.trial_data import TrialData

class Samples(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return os.getpid()

if __name__ == "__main__":
    _utils.worker.MP_STATUS_CHECK_INTERVAL = 0.2  # seconds after which a worker looks for its parent
    loaders = DataLoader(Samples(), 4, num_workers=2), DataLoader(Samples(), 4, num_workers=2, sampler=list(range(100)))
    data = TrialData(*loaders, checks=True, rank=0, num_processes=1, seed=1, skip=0)
    for batches in (data.training_batches(), data.validation_batches()):
        print("workers", next(batches)[0].item(), next(batches)[0].item(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@one_process
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux to wait for a process that is no child")
def test_workers_end_with_the_process_that_started_them(launch: Launch) -> None:
    """A job that is killed leaves no worker behind, which would hold its memory."""
    launched = launch(SCRIPT, timeout=60)
    assert launched.status == -9
    lines = [line.split()[1:] for line in launched.output.splitlines() if line.startswith("workers")]
    workers = {int(pid) for line in lines for pid in line}
    assert len(workers) == 4
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            assert select.select([os.pidfd_open(worker)], [], [], 10)[0], f"worker {worker} is alive"


LENGTHS: list[tuple[Any, int]] = [
    (torch.zeros(3, 2), 3),
    (np.zeros((4, 2)), 4),
    ({"image": torch.zeros(5, 2), "label": torch.zeros(7)}, 5),
    (UserDict(image=torch.zeros(5)), 5),
    ([torch.zeros(6), torch.zeros(1)], 6),
    ((np.zeros(2), torch.zeros(1)), 2),
    ([["a", "b", "c"], torch.zeros(8)], 3),
    ([[torch.zeros(3), torch.zeros(3)], torch.zeros(3)], 2),  # the first value's own length: nothing is searched
]


@pytest.mark.parametrize(("batch", "length"), LENGTHS)
def test_the_length_of_a_batch_is_that_of_its_first_value(batch: Any, length: int) -> None:
    """An array counts itself; a dict, a list or a tuple counts its first value."""
    assert data_length(batch) == length


@pytest.mark.parametrize("batch", [{}, [], ()])
def test_an_empty_batch_is_a_value_error(batch: Any) -> None:
    """A batch without a value has no length to take."""
    with pytest.raises(ConfigurationError, match=type(batch).__name__) as caught:
        data_length(batch)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("batch", [3, "text", None, {1, 2}, object(), [3], {"a": 1.5}, torch.tensor(1.0)])
def test_anything_else_is_a_type_error_that_says_what_to_override(batch: Any) -> None:
    """A batch of another kind is counted by the trial's own ``get_batch_length``."""
    with pytest.raises(ArgumentTypeError, match="get_batch_length") as caught:
        data_length(batch)
    assert isinstance(caught.value, TypeError)
