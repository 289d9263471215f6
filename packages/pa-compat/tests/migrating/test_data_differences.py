"""What the pages on differences from the original say of data: a test for each row."""

from __future__ import annotations

import pytest
import torch

from tests.small_runs import make_trainer, samples

everywhere = pytest.mark.runs_on("one_process", "two_ranks", "bf16")


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
