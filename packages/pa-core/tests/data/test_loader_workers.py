"""Loading in worker processes: the same batches and draws as in the main process, and an end with it."""

from __future__ import annotations

import ast
import contextlib
import multiprocessing
import os
import random
import re
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from itertools import chain
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, get_worker_info
from typing_extensions import override

from pa_core import Trainer
from pa_core.data import KeyedDataLoader
from pa_core.data.loaders import default_num_workers
from pa_core.testing import make_classification
from pa_data import start_method
from pa_data.errors import DataError
from tests.launching import Launch
from tests.small_runs import make_trainer
from tests.support.callbacks import FailAt
from tests.support.drawing import Drawing, draw_after, preserved_streams, samples_by_index
from tests.support.explained import assert_explained
from tests.support.trainers import classifier_trainer


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
    for batch, expected in zip(loader, KeyedDataLoader(dataset, batch_size=4, shuffle=True), strict=True):
        assert all(map(torch.equal, batch, expected))


def formatted(error: BaseException) -> str:
    """What python prints."""
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("keyed", [False, True])
def test_an_error_of_a_dataset_names_the_sample(num_workers: int, keyed: bool) -> None:
    """Its number, in a subset also that within the whole dataset, beside the error of the dataset itself."""
    part = Subset(Failing(), [0, 7, 6, 5, 4])
    loader = KeyedDataLoader(part, batch_size=2, num_workers=num_workers, keyed_augmentation=keyed)
    with pytest.raises(OSError, match="the file of sample 5 cannot be read") as error:
        list(loader)
    expected = "sample 3 of Subset, which is sample 5 of Failing" if keyed else "samples 2, 3 of Subset"
    assert expected in formatted(error.value)
    traceback.clear_frames(error.tb)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_collation_names_samples_that_differ(num_workers: int) -> None:
    """And what each of them is like."""
    ragged: Any = [torch.zeros(2)] * 3 + [torch.zeros(5)]
    with pytest.raises(RuntimeError, match="stack expects") as error:
        list(KeyedDataLoader(ragged, batch_size=2, num_workers=num_workers))
    text = formatted(error.value)
    assert "a batch was made of samples 2, 3 of list" in text
    assert "sample 2 is a Tensor of shape (2,)" in text
    assert "sample 3 is a Tensor of shape (5,)" in text
    traceback.clear_frames(error.tb)


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")  # of torch, which knows no remedy here
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_cannot_be_sent_to_workers_is_named_with_the_remedy(method: str) -> None:
    """Where processes are not forked, the dataset and the functions of the loader are pickled."""
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": method}
    with_functions: Any = [lambda: 0] * 4
    loaders: dict[str, KeyedDataLoader[Any]] = {
        "dataset list": KeyedDataLoader(with_functions, **options),
        "collate_fn": KeyedDataLoader(Drawing(4), collate_fn=lambda samples: samples, **options),
    }
    for words, loader in loaders.items():
        with pytest.raises(DataError) as caught:
            list(loader)
        assert_explained(caught.value, words, method, "top level of a file", "num_workers=0", "lambda")
        assert caught.value.__cause__ is not None


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


@pytest.fixture
def handled_sigterm() -> Generator[None]:
    """The script handles the signal, here by doing nothing."""
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("handled_sigterm")
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
    loader = KeyedDataLoader(TensorDataset(torch.arange(8)), 4, num_workers=2, persistent_workers=persistent)
    for _ in range(2):
        assert [batch.tolist() for (batch,) in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


class Terminated(Dataset[int]):
    """Its workers are sent SIGTERM for each sample, as by a launcher and by the system."""

    def __len__(self) -> int:
        return 4

    @override
    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return index


@pytest.mark.usefixtures("handled_sigterm")
def test_further_sigterms_leave_workers_to_the_main_process_as_well() -> None:
    """They deliver what the run needs until it has saved a state, however often they are told to end."""
    assert [batch.tolist() for batch in KeyedDataLoader(Terminated(), 2, num_workers=1)] == [[0, 1], [2, 3]]


@pytest.mark.usefixtures("handled_sigterm")
def test_a_worker_that_is_stuck_ends_after_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the second SIGTERM, such as the one of a loader that is closed: it would keep the process from ending."""
    monkeypatch.setattr("pa_data._workers.SECONDS_AFTER_SECOND_SIGTERM", 0.1)
    children = multiprocessing.active_children()
    iterator = iter(KeyedDataLoader(Terminated(), 2, num_workers=1))
    (worker,) = set(multiprocessing.active_children()) - set(children)
    with suppress(RuntimeError):  # torch raises it if it is the first to notice
        worker.join(timeout=10)
    assert worker.exitcode == 1
    del iterator


@pytest.mark.parametrize("persistent", [False, True])
def test_no_worker_outlives_a_run_that_failed(persistent: bool) -> None:
    """Not even while the exception, and with it everything that it passed through, is still held."""
    trainer = classifier_trainer(Trainer, FailAt("on_train_step_end", OSError("no space left")))
    workers = {"num_workers": 2, "persistent_workers": persistent}
    with pytest.raises(OSError, match="no space left") as held:
        trainer.train(make_classification(64), 1, train_dataloader_kwargs=workers)
    assert held.tb is not None
    assert multiprocessing.active_children() == []


WITHOUT_GUARD = """
import multiprocessing
import sys

import torch
from torch.utils.data import Dataset

from pa_core import Trainer
from pa_data.errors import DataError

multiprocessing.set_start_method("spawn", force=True)  # as on macOS and Windows


class Samples(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.ones(1), torch.ones(1)


def train(**kwargs):
    model = torch.nn.Linear(1, 1)
    trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(Samples(), 2, Samples(), **kwargs)
    print("updates:", trainer.num_updates_completed)


if "ask" not in sys.argv:
    train()
    sys.exit()
try:
    train(train_dataloader_kwargs={"num_workers": 1})
except DataError as error:
    print("refused:", error)
"""


def test_a_script_without_a_main_guard_trains(launch: Launch) -> None:
    """Without workers, unless they are asked for; a line says so, once in a run."""
    launched = launch(WITHOUT_GUARD)
    assert launched.status == 0
    assert "updates: 2" in launched.output


def test_workers_without_a_main_guard_are_an_error_with_the_remedy(launch: Launch) -> None:
    """The one that the user sees last says what to do."""
    launched = launch(WITHOUT_GUARD, "ask")
    refusal = launched.output.rpartition("refused:")[2]
    assert "The workers of a loader could not start." in refusal
    assert 'if __name__ == "__main__":' in refusal
    assert "num_workers=0" in refusal
    assert "updates: 2" not in launched.output


def test_asking_how_processes_start_fixes_nothing() -> None:
    """A script can still choose the method after a trainer has asked for it."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    assert start_method() == (chosen or multiprocessing.get_all_start_methods()[0])
    assert multiprocessing.get_start_method(allow_none=True) == chosen
    assert start_method(multiprocessing.get_context("forkserver")) == "forkserver"


KILLED = """
import os
import signal

import torch
from torch.utils.data import DataLoader, Dataset

from pa_core import Trainer
from pa_data import worker_init_fn


class Samples(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return os.getpid()


def larger_than_a_pipe(samples):
    return samples[0], bytes(300_000)


if __name__ == "__main__":
    trainer = Trainer(torch.nn.Linear(1, 1), torch.nn.MSELoss(), None, callbacks=[])
    trainer.train_dataset, trainer.collate_fn = Samples(), larger_than_a_pipe
    iterators = []
    for method in ("fork", "spawn", "forkserver"):
        workers = {"num_workers": 1, "multiprocessing_context": method}
        iterators.append(iter(trainer.create_train_dataloader(4, workers)))
    workers = {"num_workers": 1, "multiprocessing_context": "fork", "worker_init_fn": worker_init_fn}
    iterators.append(iter(DataLoader(Samples(), collate_fn=larger_than_a_pipe, **workers)))
    for iterator in iterators:
        pid, _ = next(iterator)
        print("worker", pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux to wait for a process that is no child")
def test_workers_end_with_the_process_that_started_them(launch: Launch) -> None:
    """However they were started, also while nobody takes the batches that they hand over."""
    launched = launch(KILLED, timeout=60)
    assert launched.status == -9
    workers = [int(line.split()[1]) for line in launched.output.splitlines() if line.startswith("worker")]
    assert len(set(workers)) == 4
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            assert select.select([os.pidfd_open(worker)], [], [], 10)[0], f"worker {worker} is alive"


PREPARED = """
import os
import torch
from accelerate import Accelerator
from torch.utils.data import TensorDataset

from pa_data import KeyedDataLoader

def train(part, saves_after=-1, resumes=False):
    accelerator = Accelerator(cpu=True)
    processes = {"rank": accelerator.process_index, "num_processes": accelerator.num_processes}
    dataset = TensorDataset(torch.arange(22.0).unsqueeze(1))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = KeyedDataLoader(dataset, 4, shuffle=True, seed=3, num_workers=2, device=accelerator.device, **processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if resumes:
        accelerator.load_state("middle")
    steps = 0
    for epoch in range(loader.epoch, 3):
        loader.set_epoch(epoch)
        for (inputs,) in loader:
            accelerator.backward(model(inputs).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            samples = [int(index) for index in inputs.flatten()]
            os.write(1, f"{part}: ({accelerator.process_index}, {epoch}, {samples})\\n".encode())
            if steps == saves_after:
                accelerator.save_state("middle")
                return

train("whole")
train("before", saves_after=5)
train("after", resumes=True)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_leaves_the_loader_as_it_is_and_saves_its_position(launch: Launch, ranks: int) -> None:
    """After `prepare` each sample comes once an epoch, and `load_state` continues at the next batch of an epoch."""
    launched = launch(PREPARED, ranks=ranks)
    assert launched.status == 0
    whole, before, after = (
        [ast.literal_eval(batch) for batch in re.findall(rf"{part}: (\(.*\))", launched.output)]
        for part in ("whole", "before", "after")
    )
    for epoch in range(3):
        seen = chain.from_iterable(samples for _, number, samples in whole if number == epoch)
        assert sorted(seen) == list(range(22))

    assert len(before) == 5 * ranks
    assert sorted(before + after) == sorted(whole)


class Local(Dataset[Any]):
    """Raises errors or returns samples of classes that are local to a function."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 4

    @override
    def __getitem__(self, index: int) -> Any:
        class LocalError(Exception):
            """Nobody else knows it."""

        class LocalList(list[int]):
            """A list."""

        if self.kind == "error":
            raise LocalError("of a sample")
        return {"list": LocalList([1]), "lambda": lambda: index, "object": LocalError, "nested": {"a": [LocalList()]}}[
            self.kind
        ]


@pytest.mark.parametrize("kind", ["error", "list", "lambda", "object", "nested"])
def test_what_cannot_be_sent_back_is_an_error_and_no_wait(kind: str) -> None:
    """Torch would print a traceback and wait forever, for a local class of an error as for that of a sample."""
    loader = KeyedDataLoader(Local(kind), 2, collate_fn=list, num_workers=1)
    with pytest.raises((RuntimeError, DataError), match=r"LocalError: of a sample|cannot be sent") as caught:
        next(iter(loader))
    assert kind != "error" or "Raised for sample 0 of Local" in str(caught.value)


def read_from_both(index: int) -> int:
    """Fail as what asks several sources at once does."""
    raise ExceptionGroup("no source works", [OSError("the disk is gone"), ValueError(f"no sample {index}")])


def test_the_errors_of_a_group_in_a_worker_arrive() -> None:
    """Torch cannot make the group again, and would tell of that only."""
    with pytest.raises(RuntimeError, match="no source works") as caught:
        next(iter(KeyedDataLoader(Reads(read_from_both), 2, num_workers=1)))
    text = str(caught.value)
    assert "the disk is gone" in text
    assert "no sample 0" in text
    assert "Raised for sample 0 of Reads" in text


class Reads(Dataset[int]):
    """Reads its samples with a function."""

    def __init__(self, read: Callable[[int], int]) -> None:
        self.read = read

    def __len__(self) -> int:
        return 4

    @override
    def __getitem__(self, index: int) -> int:
        return self.read(index)


def read_by_import(index: int) -> int:
    """Import the library where it is needed, as many do."""
    import polars  # type: ignore[import-not-found, unused-ignore]  # installed where types are checked

    return int(vars(polars)["add"](index))


def read_by_helper(index: int) -> int:
    """Call what does so."""
    return read_by_import(index) + 1


@pytest.fixture
def polars(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A library of this name, which has started its threads."""
    module = ModuleType("polars")
    exec("class Frame: ...\ndef add(index): return index + 1", vars(module))
    monkeypatch.setitem(sys.modules, "polars", module)
    return module


def test_a_dataset_whose_library_does_not_survive_a_fork_gets_no_workers(polars: ModuleType) -> None:
    """Where its code or what it holds leads to it, in any way; others are loaded by workers as before."""
    frame = polars.Frame()

    def read_with_frame(index: int) -> int:
        return index if frame else 0

    def read_with(_frame: object, index: int) -> int:
        return index

    datasets: list[Dataset[int]] = [
        Reads(read_by_import),
        Reads(read_by_helper),
        Reads(read_with_frame),
        Reads(partial(read_with, frame)),
        Subset(Reads(read_by_import), [0, 1]),
        ConcatDataset([Reads(int), Reads(read_by_import)]),
    ]
    for dataset in datasets:
        assert default_num_workers(dataset, local_processes=1) == 0
    assert default_num_workers(Reads(int), local_processes=1) > 0
    del sys.modules["polars"]
    assert default_num_workers(Reads(read_by_import), local_processes=1) > 0


def test_workers_that_were_requested_for_such_a_dataset_are_warned_about(polars: ModuleType) -> None:
    """The warning comes before they start, and names both ways out."""
    trainer = make_trainer()
    trainer.train_dataset = Reads(read_by_helper)
    with pytest.warns(UserWarning, match=r"Reads uses polars.*num_workers=0.*forkserver"):
        trainer.create_train_dataloader(2, {"num_workers": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.create_train_dataloader(2, {"num_workers": 1, "multiprocessing_context": "forkserver"})
        trainer.create_train_dataloader(2, {"num_workers": 0})


def test_a_collate_function_that_uses_such_a_library_gets_no_workers(polars: ModuleType) -> None:
    """It is called in the workers, too; of workers that were requested, a warning speaks."""
    trainer = make_trainer()
    trainer.train_dataset = Reads(int)
    trainer.collate_fn = _collate_by_library
    loader: Any = trainer.create_train_dataloader(2, {})
    assert loader.num_workers == 0
    with pytest.warns(UserWarning, match=r"collate_fn uses polars.*num_workers=0.*forkserver"):
        trainer.create_train_dataloader(2, {"num_workers": 1})
    trainer.collate_fn = None
    loader = trainer.create_train_dataloader(2, {})
    assert loader.num_workers > 0


def _collate_by_library(samples: list[int]) -> torch.Tensor:
    return torch.tensor([read_by_import(one) for one in samples])


def test_a_worker_that_sends_nothing_for_long_is_explained(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It may wait for a thread that was not forked with it; one that is merely slow sends its batch afterwards."""
    monkeypatch.setattr("pa_data._workers.SECONDS_BEFORE_HINT", 0.2)

    def read(index: int) -> int:
        time.sleep(0.5)
        return index

    loader = KeyedDataLoader(Reads(read), 4, num_workers=1)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3]]
    assert "forkserver" in capfd.readouterr().err
    monkeypatch.setattr("pa_data._workers.SECONDS_BEFORE_HINT", 60)
    assert len([*loader]) == 1
    assert capfd.readouterr().err == ""
