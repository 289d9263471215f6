"""What the pages on differences from the original say of data: a test for each row."""

from __future__ import annotations

import pytest
import torch

from pytorch_accelerated import Trainer
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
