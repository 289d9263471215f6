"""What the pages on differences from the original say of data: a test for each row."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_core import AnyTrainer, ConfigurationError, EmptyDatasetError
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import TrainerCallback
from tests.small_runs import NoteBatches, make_trainer, samples

everywhere = pytest.mark.runs_on("one_process", "two_ranks", "bf16")


def order_of(seed: int, global_batch_size: int = 6) -> list[list[int]]:
    """The samples of each update, of all processes."""
    notes = NoteBatches()
    trainer = make_trainer(Trainer, notes)
    torch.default_generator.manual_seed(seed)
    trainer.train(samples(24), 2, per_device_batch_size=global_batch_size // trainer.num_processes)
    gathered = trainer.gather(torch.tensor(notes.trained))
    updates = gathered.reshape(trainer.run_config.num_processes, len(notes.trained), -1).transpose(0, 1)
    return [sorted(int(number) for number in update.flatten()) for update in updates]


@pytest.mark.runs_on("one_process", "two_ranks")
def test_order() -> None:
    """The samples of an update follow from the seed, and are these on any number of processes."""
    updates = order_of(seed=0)
    assert updates == order_of(seed=0)
    assert updates != order_of(seed=1)
    assert updates[:4] != updates[4:]
    assert updates[0] == [4, 7, 10, 12, 18, 22]


def test_seed() -> None:
    """Each run draws once from the global generator of torch, and none of the others is touched."""
    torch.default_generator.manual_seed(0)
    trainer = make_trainer()
    torch.default_generator.manual_seed(0)
    trainer.train(samples(4), 1)
    after = torch.rand(3)
    torch.default_generator.manual_seed(0)
    expected_seed = int(torch.randint(2**63 - 1, ()).item())
    assert trainer.run_config.seed == expected_seed
    assert torch.equal(after, torch.rand(3))


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Adds noise to its samples, which are not in memory as tensors."""

    def __len__(self) -> int:
        """The number of samples."""
        return 8

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([float(index), np.random.rand()]).double(), torch.zeros(1).double()


def noise(num_workers: int, **kwargs: Any) -> dict[int, float]:
    """The noise that each sample got in training."""
    found: dict[int, float] = {}

    class Note(TrainerCallback):
        @override
        def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            found.update({int(number): float(value) for number, value in batch[0]})

    torch.default_generator.manual_seed(0)
    trainer = make_trainer(Trainer, Note)
    torch.default_generator.manual_seed(0)
    trainer.train(Noisy(), 1, per_device_batch_size=2, train_dataloader_kwargs={"num_workers": num_workers, **kwargs})
    return found


def test_augmentation() -> None:
    """What a sample draws does not depend on the number of workers, unless that is switched off."""
    assert noise(0) == noise(2)
    assert noise(0, keyed_augmentation=False) != noise(0)


def test_workers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Data in memory is loaded without workers; other data by at most 16, which stay, where processes are forked."""
    trainer = make_trainer()
    trainer.train_dataset = samples(4)
    assert trainer.get_default_train_dl_kwargs(1)["num_workers"] == 0
    trainer.train_dataset = Noisy()
    assert 0 <= trainer.get_default_train_dl_kwargs(1)["num_workers"] <= 16
    loader: Any = trainer.create_train_dataloader(2, {"num_workers": 1})
    assert loader.persistent_workers
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "spawn")  # pyright: ignore[reportUnknownLambdaType]  # a flag
    assert trainer.get_default_train_dl_kwargs(1)["num_workers"] == 0
    capsys.readouterr()
    trainer.create_train_dataloader(2)
    assert "Loading Noisy without workers" in capsys.readouterr().out


@everywhere
def test_evaluation() -> None:
    """Seven samples in batches of two are seven samples on any number of processes, in their order."""
    notes = NoteBatches()
    make_trainer(Trainer, notes).evaluate(samples(7), per_device_batch_size=2)
    assert notes.evaluated == list(range(7))


@pytest.mark.runs_on("two_ranks")
def test_few_samples() -> None:
    """One sample cannot be evaluated on two processes, and no event of the run has fired."""
    notes = NoteBatches()
    with pytest.raises(ConfigurationError, match="processes"):
        make_trainer(Trainer, notes).evaluate(samples(1))
    assert notes.evaluated == []


@pytest.mark.runs_on("one_process", "two_ranks")
def test_dropped() -> None:
    """Of eleven samples, four at a time, three are left out, whatever the number of processes."""
    notes = NoteBatches()
    trainer = make_trainer(Trainer, notes)
    world = trainer.num_processes
    trainer.train(samples(11), 1, per_device_batch_size=4 // world, train_dataloader_kwargs={"drop_last": True})
    assert [len(batch) for batch in notes.trained] == [4 // world] * 2


@everywhere
def test_gather() -> None:
    """Different numbers of rows are gathered as they are; with a padding value, rows of nothing else are left out."""
    trainer = make_trainer()
    rank = trainer.process_index
    world = trainer.num_processes
    rows = torch.full((1 + rank,), rank)
    expected = [0] if world == 1 else [0, 1, 1]
    assert trainer.gather(rows).tolist() == expected
    assert trainer.gather(rows, padding_value=-1).tolist() == expected
    assert trainer.gather(rows, padding_value=1).tolist() == [0]
    placeholder = torch.tensor([-1, -1]) if rank == 0 else torch.ones(1, 2, dtype=torch.int64)
    assert trainer.gather(placeholder, padding_value=-1).tolist() == ([] if world == 1 else [[1, 1]])


def test_loader() -> None:
    """The loaders of a run are of torch's class, with what scripts read of them."""
    trainer = make_trainer()
    dataset = samples(7)
    trainer.train(dataset, 1, eval_dataset=dataset, per_device_batch_size=2)
    for loader in (trainer._train_dataloader, trainer._eval_dataloader):  # pyright: ignore[reportPrivateUsage]  # as users do
        assert isinstance(loader, DataLoader)
        known: Any = loader
        assert (len(known), known.dataset, known.batch_size) == (4, dataset, 2)
        assert known.device == trainer.device


def test_dataloader() -> None:
    """Its batches are those of the run, and an argument that would change them is refused."""
    notes = NoteBatches()
    trainer = make_trainer(Trainer, notes)
    trainer.train(DataLoader(samples(6), batch_size=4), 1)
    assert notes.trained == [[0, 1, 2, 3], [4, 5]]
    with pytest.raises(ConfigurationError, match=r"train_dataloader_kwargs=.* has no effect"):
        trainer.train(DataLoader(samples(6)), 1, train_dataloader_kwargs={"shuffle": True})


def test_arrays() -> None:
    """The error names what to pass."""
    data: Any = samples(6).tensors
    with pytest.raises(ConfigurationError, match="TensorDataset"):
        make_trainer().train(data, 1)


class Claims(list[Any]):
    """Batches with another number of them as a length."""

    length = 2

    @override
    def __len__(self) -> int:
        return self.length


def trainer_of(batches: Claims) -> Trainer:
    """A trainer with such a loader."""

    class WithLoader(Trainer):
        @override
        def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> Any:
            return batches

    return make_trainer(WithLoader)


def test_lengths() -> None:
    """Each epoch has the updates that were planned; one without a batch records nothing."""
    tensors = samples(4).tensors
    trainer = trainer_of(Claims([tensors] * 3))
    with pytest.warns(UserWarning, match="whose length is 2 yielded more than 2 batches"):
        trainer.train(samples(4), 3)
    assert len(list(trainer.run_history.get_metric_values("train_loss_epoch"))) == 3
    trainer = trainer_of(Claims([tensors]))
    with pytest.warns(UserWarning, match="whose length is 2 yielded 1 of these batches"):
        trainer.train(samples(4), 3)
    with pytest.raises(EmptyDatasetError):
        trainer_of(Claims()).train(samples(4), 1)
