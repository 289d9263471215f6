"""Batches without a token that counts: the mean over nothing is NaN, adds nothing, and ends no run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset, TensorDataset
from typing_extensions import override

from pa_core import NonFiniteLossError, TerminateOnNaNCallback, Trainer
from tests.support.models import weights_of
from tests.support.pa_core.entries import Entry, on_both_entries, train

on_one_and_two_ranks = pytest.mark.runs_on("one_process", "two_ranks")


def masked(num_empty: int) -> TensorDataset:
    """Sixteen samples of three tokens, the last of which do not count."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.ones(16, 3)
    counts[16 - num_empty :] = 0
    return TensorDataset(torch.randn(16, 3, 4, generator=generator), torch.randn(16, 3, generator=generator), counts)


def loss_of(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """The mean over the tokens that count, written as most scripts do: 0/0 where none does."""
    errors: Tensor = (model(batch[0]).squeeze(2) - batch[1]).square() * batch[2]
    return errors.sum() / batch[2].sum()


def counted(model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, int]:
    """The same, with the number of these tokens."""
    return loss_of(model, batch), int(batch[2].sum())


def linear() -> nn.Linear:
    """The same model each time."""
    torch.default_generator.manual_seed(0)
    return nn.Linear(4, 1)


def options(accumulation: int) -> dict[str, Any]:
    """Four updates, or two, of four samples each, in order."""
    size = 4 // torch.distributed.get_world_size() if torch.distributed.is_initialized() else 4
    return {
        "per_device_batch_size": size,
        "gradient_accumulation_steps": accumulation,
        "train_dataloader_kwargs": {"shuffle": False},
    }


def expected_weights(data: TensorDataset, accumulation: int) -> Tensor:
    """The weights after plain updates by the mean over all tokens that count; none where there is no such token."""
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    size = 4 * accumulation
    for first in range(0, 16, size):
        batch = [one[first : first + size] for one in data.tensors]
        optimizer.zero_grad()
        if batch[2].sum() > 0:
            torch.autograd.backward(loss_of(model, batch))
            optimizer.step()
    return weights_of(model)


@on_both_entries
@on_one_and_two_ranks
@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize("num_empty", [2, 6, 10])
@pytest.mark.parametrize("begins_empty", [False, True])
def test_a_run_goes_on_and_its_weights_are_right(
    entry: Entry, accumulation: int, num_empty: int, begins_empty: bool
) -> None:
    """In training and in evaluation, on any number of processes; means are means over the tokens that count."""
    tensors = masked(num_empty).tensors
    data = TensorDataset(*(one.flip(0) if begins_empty else one for one in tensors))
    model = linear()
    optimizer, guard = SGD(model.parameters(), lr=0.1), [TerminateOnNaNCallback]
    trained = train(
        entry, model, optimizer, data, step=counted, callbacks=guard, eval_dataset=data, **options(accumulation)
    )
    torch.testing.assert_close(weights_of(model), expected_weights(data, accumulation))
    expected = loss_of(model, list(data.tensors)).item()
    assert trained.run_history.get_latest_metric("eval_loss_epoch") == pytest.approx(expected, rel=1e-5)
    if isinstance(trained, Trainer):
        assert trained.evaluate(data)["evaluation_loss"] == pytest.approx(expected, rel=1e-5)


def test_a_batch_without_a_sample_is_an_error_that_says_so() -> None:
    """A loader that filters samples may make such batches; the learning rate has nothing to do with it."""

    def drop_all_but_few(drawn: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        kept = [one for one in drawn if one[0][0] < 12]
        inputs = [one[0] for one in kept] or [torch.empty(0, 1)[:0]]
        return [torch.cat(inputs).reshape(-1, 1), torch.zeros(len(kept), 1)]

    data = TensorDataset(torch.arange(16.0)[:, None], torch.zeros(16, 1))
    loader: DataLoader[Any] = DataLoader(data, 4, collate_fn=drop_all_but_few)
    model = nn.Linear(1, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=1e-3), callbacks=[TerminateOnNaNCallback])
    with pytest.raises(NonFiniteLossError, match=r"batch 4 of epoch 1, a batch of 0 samples\n.*leave out batches"):
        trainer.train(loader, 1)


class Numbered(Dataset[tuple[Tensor, Tensor]]):
    """Has one sample with a value that is no number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __len__(self) -> int:
        return 32

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs = torch.full((3,), index / 32)
        inputs[1] = self.value if index == 21 else inputs[1]
        return inputs, torch.zeros(1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_sample_that_is_not_finite_is_named(value: float) -> None:
    """In training by its number in the dataset, whatever the order; in evaluation too."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[TerminateOnNaNCallback])
    match = rf"batch\[0\] holds {value} in sample \d of the batch, number 21 of the dataset\n.*Correct this sample"
    with pytest.raises(NonFiniteLossError, match=match):
        trainer.train(Numbered(value), 1)
    with pytest.raises(NonFiniteLossError, match=match):
        trainer.evaluate(Numbered(value), 5)


def test_targets_that_are_all_ignored_are_named() -> None:
    """The mean over none of them is NaN; ``num_items_in_batch`` would leave them out."""
    data = TensorDataset(torch.randn(8, 3), torch.full((8,), -100))
    model = nn.Linear(3, 3)
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[TerminateOnNaNCallback])
    with pytest.raises(NonFiniteLossError, match=r"all targets are -100, which the loss function ignores\n.*num_items"):
        trainer.train(data, 1)
