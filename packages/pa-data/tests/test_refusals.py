"""What orders, splits of updates and loaders refuse when they are made, with what was given and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from typing_extensions import override

from pa_data import KeyedDataLoader
from pa_data.errors import DataError, EmptyDatasetError
from pa_data.orders import (
    ClassBalanced,
    Curriculum,
    LengthGrouped,
    Mixture,
    Order,
    TableOrder,
    TokenBudget,
    Weighted,
    epoch_order,
)
from tests.support.drawing import Indices

untyped: Any = partial


def loader(order: Order | None = None, num_samples: int = 10, **options: Any) -> Callable[[], object]:
    """Return what makes a loader of some samples."""
    return partial(KeyedDataLoader, Indices(num_samples), order=order, **{"batch_size": 2, **options})


def three(**options: Any) -> Callable[[], object]:
    """Return what makes a mixture of three datasets of 10, 30 and 60 samples."""
    datasets = {name: TensorDataset(torch.arange(size)) for name, size in (("a", 10), ("b", 30), ("c", 60))}
    return partial(Mixture, datasets, **options)


class Endless(IterableDataset[int]):
    """Has no length, and no indices."""

    @override
    def __iter__(self) -> Iterator[int]:
        return count()


class WithoutLength(Dataset[int]):
    """Cannot say how many samples it has."""

    @override
    def __getitem__(self, index: int) -> int:
        return index


class Drawn(TableOrder):
    """Returns what it is given as the indices of an epoch."""

    name = "drawn-v1"

    def __init__(self, given: object, length: Any = 10) -> None:
        self._given, self._length = given, length

    @override
    def indices_of_epoch(self, num_samples: int, epoch: int) -> Any:
        return self._given

    @override
    def length_of_epoch(self, num_samples: int, epoch: int) -> Any:
        return self._length

    @override
    def parameters(self) -> dict[str, object]:
        return {}


class Weighs(TableOrder):
    """An order with a parameter of any kind."""

    name = "weighs-v1"

    def __init__(self, thing: object) -> None:
        self.thing = thing

    @override
    def indices_of_epoch(self, num_samples: int, epoch: int) -> Tensor:
        return torch.arange(num_samples)


class Nameless(TableOrder):
    """An order that no training state could know."""

    @override
    def indices_of_epoch(self, num_samples: int, epoch: int) -> Tensor:
        return torch.arange(num_samples)


class Forgetful(TokenBudget):
    """Says where batches end, and not that it makes them."""

    name = "forgetful-v1"
    makes_batches = False


def drawn(given: object, length: Any = 10) -> Callable[[], object]:
    """Return what asks for the first sample of an order of indices."""
    return lambda: next(iter(KeyedDataLoader(Indices(10), 4, order=Drawn(given, length))))


def chosen(given: object) -> Callable[[], object]:
    """Return what makes an epoch of a curriculum."""
    return lambda: Curriculum(lambda _: given).epoch_order(10, seed=0, epoch=2)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]  # any mistake


BUDGET = TokenBudget([1] * 10, 8)
GLOBAL_BATCH_OF_8: dict[str, Any] = {"drop_last": True, "batch_size": 4, "num_processes": 2}
Refusal: TypeAlias = tuple[Callable[[], object], str]
WRONG_VALUES: list[Refusal] = [
    (partial(epoch_order, -1, seed=0, epoch=0), "num_samples must be a whole number >= 0, got -1"),
    (
        partial(epoch_order, 10, seed=0, epoch=0, algorithm="quantum-v9"),
        "quantum-v9.*feistel-v1, identity, randperm-v1",
    ),
    *(
        (partial(Weighted, weights, replacement=replacement), named)
        for replacement in (True, False)
        for weights, named in (
            ([1.0, -2.0, -1.0], r"weights\[1\]=-2\.0, and 1 more"),
            ([1.0, math.nan], r"weights\[1\]=nan\. "),
            ([math.inf, 1.0], r"weights\[0\]=inf"),
            ([0.0, 0.0], "none of them above 0"),
            ([], "0 weights"),
        )
    ),
    (loader(Weighted([1, 2, 3])), "3 weights and a dataset of 10 samples"),
    (partial(Weighted, [1, 0, 2], replacement=False, num_samples=3), "num_samples=3.*2 weights above 0"),
    *(
        (untyped(Weighted, [1, 2], num_samples=number), f"num_samples must be a whole number >= 1, got {number}")
        for number in (0, -1, 2.5, True)
    ),
    (chosen([True] * 9), r"9 elements of choose\(2\) and a dataset of 10 samples"),
    (chosen([0, 10]), r"10 at position 1.*choose\(2\)"),
    (chosen([-1]), "-1 at position 0"),
    (untyped(LengthGrouped, [1.5], group_size=4), "torch.float32"),
    (partial(LengthGrouped, [1, -5], group_size=4), r"lengths\[1\]=-5"),
    (partial(LengthGrouped, [1], group_size=0), "group_size must be .* got 0"),
    (partial(LengthGrouped, [1], group_size=1), "group_size must be a whole number >= 2"),
    (partial(LengthGrouped, [1], group_size=4, window=0), "window must be .* got 0"),
    (partial(LengthGrouped, [1], group_size=4, window=10), "window must be a multiple of group_size=4, got 10"),
    (partial(TokenBudget, [3, 90, 80], 64), "sample 1 with 90 tokens.*max_tokens=90"),
    (partial(TokenBudget, [3, -1], 64), r"lengths\[1\]=-1"),
    (untyped(TokenBudget, [3.5], 64), "torch.float32"),
    (partial(TokenBudget, [], 64), "0 lengths"),
    (partial(TokenBudget, [3], 0), "max_tokens must be .* got 0"),
    (untyped(TokenBudget, [3], 64.0), "max_tokens must be .* got 64.0"),
    (partial(TokenBudget, [3], 64, max_samples=0), "max_samples must be .* got 0"),
    (partial(TokenBudget, [3], 64, pad_to_multiple_of=0), "pad_to_multiple_of must be .* got 0"),
    (partial(TokenBudget, [3], 64, bucket_growth=0.9), "bucket_growth must be .* got 0.9"),
    (loader(BUDGET, 4, batch_size=None), "10 lengths and a dataset of 4 samples"),
    (loader(BUDGET, batch_size=8), "batch_size=8, and order=TokenBudget"),
    (loader(BUDGET, batch_size=None, drop_last=True), "leave out drop_last=True with order=TokenBudget"),
    (loader(BUDGET, batch_size=None, split="eval"), 'split="eval", and order=TokenBudget'),
    (loader(Forgetful([1] * 10, max_tokens=6)), "makes_batches = True"),
    *((untyped(ClassBalanced, no), r"labels of type torch\.float32") for no in ([0.5, 1.5], torch.tensor([1.0, 2.0]))),
    (partial(ClassBalanced, [0, 1, 2], num_samples=2), "num_samples=2 and 3 classes"),
    (loader(ClassBalanced([0, 1, 2])), "3 labels and a dataset of 10 samples"),
    (three(weights={"a": 1, "b": 2}), "names a, b, c"),
    (three(weights={"a": 1, "b": 2, "c": 3, "d": 4}), "names a, b, c"),
    (three(weights=[1, 2, 3]), r"weights=\[1, 2, 3\]"),
    (three(weights={"a": 1, "b": 2, "c": -3}), r"weights\['c'\] must be .* got -3"),
    (three(weights={"a": 1, "b": 2, "c": math.nan}), r"weights\['c'\] must be .* got nan"),
    (three(weights={"a": 1, "b": 2, "c": "3"}), r"weights\['c'\] must be .* got '3'"),
    (three(weights={"a": 0, "b": 0, "c": 0}), "none of them above 0"),
    (three(weights={"a": 1e-6, "b": 1, "c": 1}), r"weights\['a'\]=1e-06, which is 5e-05 of the 100 samples"),
    (three(num_samples=0), "num_samples must be .* got 0"),
    (untyped(KeyedDataLoader, Endless(), 2), "needs a dataset with a length.*Endless.*__len__.*utils.data.DataLoader"),
    (partial(KeyedDataLoader, WithoutLength(), 2), "needs a dataset with a length.*WithoutLength.*__len__.*DataLoader"),
    *((loader(batch_size=size), f"batch_size must be a whole number >= 1, got {size}") for size in (0, -1, None)),
    *(
        (loader(rank=rank, num_processes=processes), f"rank={rank}, num_processes={processes}")
        for rank, processes in ((2, 2), (-1, 2), (0, 0))
    ),
    (loader(algorithm="quantum-v9"), "quantum-v9"),
    (loader(split="test"), "split='test'"),
    (loader(in_order=False), "in_order=False"),
    (loader(timeout=3), "timeout=3"),
    (loader(fixed_batches=True), "parts of an update: pass samples_per_update"),
    (loader(fixed_batches=True, keyed_augmentation=False, samples_per_update=4), "leave out keyed_augmentation=False"),
    (loader(fixed_batches=True, keyed_augmentation=False, split="eval"), "leave out keyed_augmentation=False"),
    (loader(fixed_batches=True, split="eval", drop_last=True), "leave out drop_last=True"),
    (
        loader(fixed_batches=True, split="eval", samples_per_update=4),
        "makes no updates: leave out samples_per_update=4",
    ),
    (loader(BUDGET, fixed_batches=True, batch_size=None), "fixed_batches=True with TokenBudget"),
    *(
        (drawn(given), rf"{found} of Drawn.indices_of_epoch\(\).* Look at how the indices are computed")
        for given, found in (
            (torch.arange(10) + 1, "10 at position 9"),
            (torch.arange(10) - 1, "-1 at position 0"),
        )
    ),
    (drawn(torch.arange(9)), r"9 indices from Drawn.indices_of_epoch\(\).* Override length_of_epoch\(\) to return"),
    *(
        (drawn(torch.arange(10), length), rf"Drawn.length_of_epoch\(\) .* must be .* got {length}")
        for length in (0, -1, 2.5)
    ),
]
WRONG_TYPES: list[Refusal] = [
    (partial(Weighted, torch.ones(2, 3)), r"shape \(2, 3\)"),
    (untyped(Weighted, "heavy"), "weights of type str"),
    (chosen([0.5, 1.0]), r"float32 from choose\(2\)"),
    (chosen(None), r"choose\(2\) of type NoneType.*Return indices from choose"),
    (chosen({1, 2}), r"choose\(2\) of type set.*Return indices from choose"),
    (chosen(iter([1])), r"choose\(2\) of type list_iterator.*Return indices from choose"),
    (chosen([[1, 2], [3, 4]]), r"choose\(2\) of shape \(2, 2\).*Return indices from choose"),
    (untyped(Curriculum, [[0, 1], [2, 3]]), "choose of type list"),
    (untyped(TokenBudget, ["abc"], 64), "list"),
    (untyped(ClassBalanced, ["cat", "dog"]), r"Number the classes: numbers = \{name"),
    (partial(ClassBalanced, torch.tensor([[0], [1]])), r"shape \(2, 1\)"),
    *(
        (untyped(Mixture, no), rf"needs its datasets by name\. Got a {type(no).__name__} with the names \[{names}\]")
        for no, names in (({}, ""), ([Indices(3)], ""), (Indices(3), ""), ({1: Indices(3)}, "1"))
    ),
    *(
        (untyped(Mixture, {"a": no}), f"takes datasets with a length.* 'a' is a {type(no).__name__}")
        for no in (Endless(), 3)
    ),
    (loader(sampler=[[0]]), "takes no sampler: its order"),
    (loader(batch_sampler=[[0]]), "takes no batch_sampler: its order"),
    (loader(batchsize=3), r"no option batchsize\. The nearest name is batch_size\.$"),
    (loader(num_worker=1, color=1), r"no option color\. .*no option num_worker\. The nearest name is num_workers\.$"),
    *(
        (drawn(given), rf"{found}.* Return integers, for example torch\.randperm")
        for given, found in (
            (torch.rand(10), r"torch.float32 from Drawn.indices_of_epoch\(\)"),
            (torch.ones(10, dtype=torch.bool), r"torch.bool from Drawn.indices_of_epoch\(\)"),
            (torch.arange(10)[None], r"Drawn.indices_of_epoch\(\).*of shape \(1, 10\)"),
            ("a", r"Drawn.indices_of_epoch\(\).*of type str"),
            (None, r"Drawn.indices_of_epoch\(\).*of type NoneType"),
        )
    ),
    *(
        (
            partial(getattr, Weighs(thing), "fingerprint"),
            r"weighs-v1: thing.* Override parameters\(\) to return tensors",
        )
        for thing in (object(), np.array([object()]), [Indices(2)])
    ),
    (loader(Nameless()), 'Write name = "nameless-v1" in Nameless'),
]
EMPTY: list[Refusal] = [
    (chosen([]), r"choose\(2\) returned none"),
    (chosen([False] * 10), r"choose\(2\) returned none"),
    (partial(ClassBalanced, []), "0 labels"),
    *(
        (partial(KeyedDataLoader, empty, 2), "0 samples.*at least one.*path")
        for empty in (Indices(0), TensorDataset(torch.zeros(0, 3)))
    ),
    (loader(num_samples=7, **GLOBAL_BATCH_OF_8), "7 samples, and global batches of 8.*drop_last=False"),
    (loader(num_samples=7, split="eval", **GLOBAL_BATCH_OF_8), "7 samples, and global batches of 8.*drop_last=False"),
    (
        loader(fixed_batches=True, samples_per_update=14, drop_last=True),
        "10 samples, and updates of 14.*fewer samples per update",
    ),
]


@pytest.mark.parametrize(("make", "message"), WRONG_VALUES)
def test_what_cannot_work_is_refused_at_once(make: Callable[[], object], message: str) -> None:
    """Before anything is loaded, by what was given, and with what to do."""
    with pytest.raises(DataError, match=message):
        make()


@pytest.mark.parametrize(("make", "message"), WRONG_TYPES)
def test_an_object_of_a_wrong_type_is_refused_at_once(make: Callable[[], object], message: str) -> None:
    """As Python's own functions do."""
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(("make", "message"), EMPTY)
def test_an_epoch_without_a_batch_is_refused_at_once(make: Callable[[], object], message: str) -> None:
    """It would end without a word."""
    with pytest.raises(EmptyDatasetError, match=message):
        make()


def test_an_order_that_makes_batches_needs_no_batch_size() -> None:
    """The default of a loader is of no effect then."""
    assert KeyedDataLoader(Indices(10), order=BUDGET, batch_size=None).batch_size is None
