"""Orders that take a fixed number of samples from each class or dataset, in passes that go on from epoch to epoch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset
from typing_extensions import override

from pa_data import KeyedDataLoader
from pa_data.errors import DataError, EmptyDatasetError
from pa_data.orders import ClassBalanced, EpochOrder, Mixture, Order, Shuffled, Weighted


def numbered(length: int, first: int = 0) -> TensorDataset:
    """Samples that are numbers that follow each other."""
    return TensorDataset(torch.arange(first, first + length))


def mixture(**options: Any) -> Mixture[Any]:
    """Ten samples of a, thirty of b and sixty of c, the shares of which are other ones."""
    return Mixture({"a": numbered(10), "b": numbered(30, 10), "c": numbered(60, 40)}, **options)


WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}


def epochs(order: Order, num_samples: int, *, number: int = 1, seed: int = 0) -> Tensor:
    """The samples of some epochs that follow each other."""
    return torch.cat([whole(order.epoch_order(num_samples, seed=seed, epoch=epoch)) for epoch in range(number)])


def whole(epoch: EpochOrder) -> Tensor:
    """The samples of an epoch."""
    return epoch.indices(0, epoch.num_samples)


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), more=st.integers(0, 90), seed=st.integers(0, 2**40))
@settings(deadline=None, max_examples=60)
def test_each_class_comes_equally_often_and_none_repeats_before_its_class_has_come(
    sizes: list[int], more: int, seed: int
) -> None:
    """Over several epochs each run of as many draws of a class as it has samples takes each of them once."""
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    order = ClassBalanced(labels, num_samples=len(sizes) + more)
    drawn = epochs(order, labels.numel(), number=3, seed=seed)
    for number, size in enumerate(sizes):
        samples = drawn[labels[drawn] == number]
        assert samples.numel() // 3 in ((len(sizes) + more) // len(sizes), (len(sizes) + more) // len(sizes) + 1)
        for one_pass in torch.split(samples, size):
            assert len(set(one_pass.tolist())) == one_pass.numel()


def test_no_part_of_an_epoch_is_without_a_class() -> None:
    """Rare classes and common ones come at an even rate: in each thousand samples each within two of its share."""
    labels = torch.cat([torch.zeros(39_000), torch.ones(900), torch.full((100,), 2)]).long()
    drawn = labels[epochs(ClassBalanced(labels, num_samples=40_960 * 3), labels.numel())]
    by_stretch = torch.stack([part.bincount(minlength=3) for part in torch.split(drawn, 4096)])
    assert by_stretch.min() >= 4096 // 3 - 2
    assert by_stretch.max() <= 4096 // 3 + 3


def test_the_only_samples_of_many_rare_sources_are_spread_over_the_epoch() -> None:
    """What comes once an epoch comes at any time of it, and at another one in each epoch."""
    rare = {f"rare {number}": numbered(1) for number in range(60)}
    mixed = Mixture({"common": numbered(40_000), **rare})
    times = [epochs(mixed.default_order, 40_060, seed=seed).argsort()[40_000:] / 40_060 for seed in (0, 1)]
    for of_epoch in times:
        assert 10 <= int((of_epoch < 1 / 3).sum()) <= 30
        assert 10 <= int((of_epoch > 2 / 3).sum()) <= 30
    assert abs(float(torch.corrcoef(torch.stack(times))[0, 1])) < 0.4


def test_labels_may_be_any_integers() -> None:
    """Classes need not be numbered from 0, nor their samples lie together."""
    labels = [7, -3, 7, 7, 1000, 7, -3, 7]
    drawn = epochs(ClassBalanced(labels), 8)
    assert Counter(labels[int(index)] for index in drawn) == {7: 2, -3: 2, 1000: 2}
    assert ClassBalanced(labels).num_samples == 6


@pytest.mark.parametrize("num_samples", [None, 100, 57, 12_345])
def test_a_mixture_has_the_share_of_each_dataset(num_samples: int | None) -> None:
    """Each dataset has its share of every epoch, to the sample, and of any part of it within a few."""
    mixed = mixture(weights=WEIGHTS, num_samples=num_samples)
    for epoch in range(2):
        order = mixed.default_order.epoch_order(100, seed=0, epoch=epoch)
        drawn = whole(order)
        counts = {"a": (drawn < 10).sum(), "b": ((drawn >= 10) & (drawn < 40)).sum(), "c": (drawn >= 40).sum()}
        shares = order.shares(drawn.numel())
        assert shares == {name: int(count) / drawn.numel() for name, count in counts.items()}
        assert all(abs(shares[name] - WEIGHTS[name]) * drawn.numel() < 1 for name in shares)
        for stop in {1, drawn.numel() // 3, drawn.numel() - 1}:
            taken = order.shares(stop)
            assert taken == {
                name: int(((drawn[:stop] >= first) & (drawn[:stop] < last)).sum()) / stop
                for name, first, last in (("a", 0, 10), ("b", 10, 40), ("c", 40, 100))
            }


def test_a_mixture_without_weights_takes_as_much_as_there_is() -> None:
    """By default the share of a dataset is that of its samples, and an epoch has each sample once."""
    drawn = epochs(mixture().default_order, 100)
    assert torch.equal(drawn.sort().values, torch.arange(100))


def test_a_dataset_goes_on_where_the_epoch_before_ended() -> None:
    """A dataset of which an epoch takes a third is gone through in three epochs, and then anew in another order."""
    mixed = mixture(weights={"a": 1, "b": 1, "c": 2}, num_samples=40)
    drawn = epochs(mixed.default_order, 100, number=6)
    of_c = drawn[drawn >= 40]
    first, second = of_c[:60], of_c[60:]
    assert torch.equal(first.sort().values, torch.arange(40, 100))
    assert torch.equal(second.sort().values, torch.arange(40, 100))
    assert not torch.equal(first, second)


def test_a_mixture_is_fetched_whole_where_all_of_it_is_in_memory() -> None:
    """Datasets of tensors stay as fast in a mixture as they are by themselves, and are evaluated in their order."""
    loader: KeyedDataLoader[Any] = KeyedDataLoader(mixture(weights=WEIGHTS), 40, split="eval")
    assert loader.whole_batches
    assert torch.cat([batch for (batch,) in loader]).tolist() == list(range(100))


def test_a_weight_of_0_leaves_a_dataset_out() -> None:
    """Then it may be empty, too."""
    mixed = Mixture({"a": numbered(10), "none": numbered(0)}, weights={"a": 1, "none": 0})
    assert torch.equal(epochs(mixed.default_order, 10).sort().values, torch.arange(10))
    with pytest.raises(EmptyDatasetError, match="'none' with 0 samples"):
        Mixture({"a": numbered(10), "none": numbered(0)}, weights={"a": 1, "none": 1})


class Drawn(TensorDataset):
    """Brings an order that draws some samples more often than others."""

    default_order = Weighted([1.0, 2.0, 3.0])


class Plain(TensorDataset):
    """Brings the order that it would have anyway."""

    default_order = Shuffled()


@pytest.mark.parametrize("inner", [mixture(), Drawn(torch.arange(3))])
def test_a_dataset_whose_order_would_be_lost_is_refused(inner: Dataset[Any]) -> None:
    """An inner mixture would have other shares than it was made with. An order that says nothing of them may go."""
    with pytest.raises(DataError, match=rf"'inner' is a {type(inner).__name__}, which brings"):
        Mixture({"inner": inner, "ours": numbered(3)})
    assert len(Mixture({"inner": Plain(torch.arange(3)), "ours": numbered(3)})) == 6


@pytest.mark.parametrize(
    "other",
    [
        TensorDataset(torch.zeros(4, 3), torch.zeros(4)),
        TensorDataset(torch.zeros(4, 2)),
        Subset(TensorDataset(torch.zeros(4, 3).long()), [0, 1]),
    ],
)
def test_tensors_that_make_no_batch_are_refused(other: Any) -> None:
    """Tensors in memory of another number, shape or type are refused by name, not concatenated to something else."""
    with pytest.raises(DataError, match=r"a sample of 'ours' is (.|\n)* a sample of 'others' is "):
        Mixture({"ours": TensorDataset(torch.zeros(4, 3)), "others": other})


class Sample(Dataset[Any]):
    """One sample, or the error that it raises."""

    def __init__(self, sample: object) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 1

    @override
    def __getitem__(self, index: int) -> object:
        if isinstance(self.sample, Exception):
            raise self.sample
        return self.sample


@pytest.mark.parametrize(
    ("other", "note"),
    [
        (
            {"x": 1},
            "sample 0 of 'ours' is a tuple of 1 [Tensor of shape (1,) and dtype float32], and sample 2 of 'others' ",
        ),
        (OSError("gone"), "Raised for sample 2 of Mixture, which is sample 0 of 'others'."),
    ],
)
def test_an_error_says_which_dataset_it_is_about(other: object, note: str) -> None:
    """Samples that make no batch, and one that cannot be read, are named by the dataset that they are from."""
    ours = [Sample((torch.zeros(length),)) for length in (1, 2)]
    mixed = Mixture({"ours": ConcatDataset(ours), "others": Sample(other)})
    with pytest.raises(Exception) as error:  # noqa: PT011  # of torch, or of the dataset
        list(KeyedDataLoader(mixed, batch_size=3))
    assert any(note in line for line in error.value.__notes__)
    assert mixed.locate(2) == ("others", 0)
