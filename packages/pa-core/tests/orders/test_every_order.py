"""Each order gives the same updates, of the same samples and draws, however a run is divided and interrupted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler
from typing_extensions import override

from pa_checkpoint import Folder, load
from pa_core import (
    AnyTrainer,
    ArgumentTypeError,
    CheckpointError,
    ConfigurationError,
    SaveTrainingStateCallback,
    Trainer,
    TrainerCallback,
)
from pa_core.data import KeyedDataLoader
from pa_data import files, orders
from pa_data.errors import DataError
from pa_data.orders import EpochOrder, Order, Sequential, Shuffled, Weighted
from tests.launching import Launch
from tests.support.callbacks import KillAt, KilledError
from tests.support.every_order import ORDERS, loaders_of, updates_of
from tests.support.explained import assert_explained
from tests.support.pa_core import entries
from tests.support.pa_core.entries import Entry
from tests.support.pa_core.orders import train_in_every_order

EPOCH = 1
MOST_FOR_WORKERS = ("Mixture", "ShardOrder", "TokenBudget")
"""Several data sets, files, and batches of different sizes."""
CASES = [
    *((name, 0) for name in ORDERS),
    *(
        pytest.param(name, 2, marks=[] if name in MOST_FOR_WORKERS else [pytest.mark.more_cases], id=f"{name}, workers")
        for name in ORDERS
    ),
]


def test_none_is_left_out() -> None:
    """An order that is added to pa_core has its row here."""
    public = [getattr(module, name) for module in (orders, files) for name in module.__all__]
    kinds = {one for one in public if isinstance(one, type) and issubclass(one, Order) and one is not Order}
    assert {one for one in kinds if not any(isinstance(order, one) for order in ORDERS.values())} == set()


@pytest.mark.parametrize(("name", "workers"), CASES)
def test_updates_are_the_same_on_any_number_of_processes_and_resumed_anywhere(name: str, workers: int) -> None:
    """On 1, 2 and 4 processes, from each update on: samples, draws, and which of them make an update."""
    whole = updates_of(loaders_of(ORDERS[name], 1), EPOCH)
    assert len(whole) > 2
    for num_processes in (1, 2, 4):
        loaders = loaders_of(ORDERS[name], num_processes, num_workers=workers, persistent_workers=workers > 0)
        for update in range(len(whole)) if workers == 0 or num_processes == 2 else (0, 1):
            position = sum(len(samples) for samples in whole[:update])
            assert updates_of(loaders, EPOCH, position) == whole[update:], (num_processes, update)
        for loader in loaders:
            loader.close()


def test_four_processes_train_as_one_loader_says(launch: Launch, tmp_path: Path) -> None:
    """Real processes, `train()` and all orders, one after the other: what they train on is what one process would."""
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert launch(Path(train_in_every_order.__file__), ranks=4, env=path).status == 0
    trained: dict[str, Any] = json.loads((tmp_path / "trained.json").read_text())
    assert list(trained) == list(ORDERS)
    for name, run in trained.items():
        loaders = loaders_of(ORDERS[name], 1, seed=run["seed"])
        expected = [update for epoch in range(train_in_every_order.NUM_EPOCHS) for update in updates_of(loaders, epoch)]
        updates: list[list[list[float]]] = [[] for _ in expected]
        for batches in run["batches_of_ranks"]:
            for number, samples in batches:
                updates[number] += samples
        assert updates == expected, name


X, Y = torch.arange(12.0)[:, None], torch.zeros(12, 1)
DATA = TensorDataset(X, Y)


class _Rotated(EpochOrder):
    algorithm = "rotated-v1"

    def __init__(self, num_samples: int, by: int) -> None:
        super().__init__(num_samples, seed=0, epoch=0)
        self.by = by

    @override
    def compute_indices(self, start: int, stop: int) -> Tensor:
        return (torch.arange(start, stop) + self.by).remainder(self.num_samples)


class Rotated(Order):
    """Begins each epoch further on."""

    name: ClassVar[str] = "rotated-v1"

    def __init__(self, by: int = 1) -> None:
        self.by = by

    @override
    def epoch_order(self, num_samples: int, *, seed: int, epoch: int) -> EpochOrder:
        return _Rotated(num_samples, self.by * (epoch + 1))

    @override
    def parameters(self) -> Mapping[str, object]:
        return {"by": self.by}


class BringsOrder(Dataset[tuple[Tensor, Tensor]]):
    """A dataset that knows best in which order to read it."""

    default_order = Rotated(3)

    def __len__(self) -> int:
        return len(DATA)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index], Y[index]


class Numbers(IterableDataset[tuple[Tensor, Tensor]]):
    """An iterable of the same samples."""

    def __len__(self) -> int:
        return len(DATA)

    @override
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X, Y, strict=True))


class Ids(TrainerCallback):
    """Notes the samples of each step, of training and of evaluation."""

    def __init__(self) -> None:
        self.trained: list[int] = []
        self.evaluated: list[int] = []

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.trained += [int(one) for one in trainer.gather(batch[0])]

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.evaluated += [int(one) for one in trainer.gather(batch[0])]


def make_trainer(*callbacks: TrainerCallback, kind: type[Trainer] = Trainer) -> Trainer:
    """A trainer of a line."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    return kind(model, nn.MSELoss(), SGD(model.parameters(), lr=1e-4), callbacks=callbacks)


def trained(data: Dataset[Any] = DATA, num_epochs: int = 2, **arguments: Any) -> list[int]:
    """The samples of a run, in the order in which it had them."""
    ids = Ids()
    make_trainer(ids).train(data, num_epochs, per_device_batch_size=2, **arguments)
    return ids.trained


def rotated(*begins: int) -> list[int]:
    """The numbers of the samples of an epoch from each of these on."""
    return [(one + begin) % len(DATA) for begin in begins for one in range(len(DATA))]


@entries.on_both_entries
def test_a_run_has_the_order_that_it_is_given(entry: Entry) -> None:
    """Each epoch visits the samples as the order says, in `train()` and in `Run`."""
    ids, model = Ids(), nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=1e-4)
    entries.train(entry, model, optimizer, DATA, 2, callbacks=[ids], per_device_batch_size=2, order=Rotated())
    assert ids.trained == rotated(1, 2)


def test_without_an_order_a_run_is_shuffled_and_an_evaluation_is_not() -> None:
    """``None`` is ``Shuffled()``, and the order of the training is not that of the evaluation."""
    assert trained() == trained(order=Shuffled()) != trained(order=Sequential()) == rotated(0, 0)
    ids = Ids()
    make_trainer(ids).train(DATA, 1, eval_dataset=BringsOrder(), order=Rotated())
    assert ids.evaluated == rotated(0)


def test_a_dataset_may_bring_its_own_order() -> None:
    """It is followed in training, unless shuffling is switched off or a plain order is asked for."""
    own = BringsOrder()
    assert trained(own) == rotated(3, 6)
    assert trained(own, order=Shuffled()) == trained()
    assert trained(own, order=Sequential()) == rotated(0, 0)
    assert trained(own, train_dataloader_kwargs={"shuffle": False}) == rotated(0, 0)


@pytest.mark.parametrize(
    ("data", "arguments", "found"),
    [
        (DataLoader(DATA), {}, "a DataLoader"),
        (Numbers(), {}, "Numbers"),
        (BringsOrder(), {}, "BringsOrder"),
        (DATA, {"train_dataloader_kwargs": {"shuffle": False}}, "shuffle=False"),
        (DATA, {"train_dataloader_kwargs": {"sampler": range(12)}}, "sampler=range(0, 12)"),
        (DATA, {"train_dataloader_kwargs": {"order": Rotated()}}, "order=Rotated"),
        (DATA, {"eval_dataset": DATA, "eval_dataloader_kwargs": {"order": Rotated()}}, "loader of eval_dataset"),
    ],
)
def test_an_order_beside_another_is_refused(data: Any, arguments: dict[str, Any], found: str) -> None:
    """What decides the order already is named, as one of the two would have no effect."""
    if isinstance(data, DataLoader):
        found = "DataLoader with SequentialSampler"
    with pytest.raises(ConfigurationError) as refused:
        make_trainer().train(data, 1, order=Rotated(), **arguments)
    assert_explained(refused.value)
    assert found in refused.value.given


class MakesLoader(Trainer):
    """A trainer with a loader of its own."""

    @override
    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> Any:
        return KeyedDataLoader(self.train_dataset, batch_size)


def test_a_method_that_makes_a_loader_without_the_order_is_refused() -> None:
    """An order that an overridden method leaves out does not go unnoticed."""
    with pytest.raises(ConfigurationError, match="create_train_dataloader") as refused:
        make_trainer(kind=MakesLoader).train(DATA, 1, order=Rotated())
    assert_explained(refused.value)


@pytest.mark.parametrize(
    ("order", "advice"),
    [
        (Rotated, "Rotated(...)"),
        ("shuffled", "Shuffled()"),
        (True, "Shuffled()"),
        (False, "Sequential()"),
        (range(12), "TableOrder"),
        (len, "TableOrder"),
        (WeightedRandomSampler([1.0] * 12, 12), "Weighted(weights)"),
    ],
)
def test_what_is_no_order_is_refused(order: Any, advice: str) -> None:
    """A class, a name and a list of indices are told from an order before anything is trained."""
    calls: list[tuple[type[TypeError], Callable[[], object]]] = [
        (ArgumentTypeError, lambda: make_trainer().train(DATA, 1, order=order)),
        (TypeError, lambda: KeyedDataLoader(DATA, order=order)),
    ]
    for error, call in calls:
        with pytest.raises(error) as refused:
            call()
        assert_explained(refused.value)
        assert advice in str(refused.value)


def test_a_loader_has_one_order() -> None:
    """The name of a permutation beside an order would have no effect."""
    with pytest.raises(DataError, match="algorithm='feistel-v1'"):
        KeyedDataLoader(DATA, algorithm="feistel-v1", order=Rotated())


def interrupted(folder: Path, **arguments: Any) -> dict[str, Any]:
    """Train until after the fourth update, and return the settings of the state."""
    callbacks = SaveTrainingStateCallback(folder, save_every_n_steps=1), KillAt(4)
    with pytest.raises(KilledError):
        make_trainer(*callbacks).train(DATA, 2, per_device_batch_size=2, **arguments)
    state, _ = Folder(folder).newest_readable(load)
    assert state is not None
    run: dict[str, Any] = state.parts["run"]
    return run


def test_the_order_is_in_the_training_state_and_is_resumed(tmp_path: Path) -> None:
    """A run continues at its position in the order; that of another order is refused unless it is allowed by name."""
    saved = interrupted(tmp_path, order=Rotated(2))
    assert (saved["settings"]["order"], saved["algorithm"]) == (Rotated(2).fingerprint, None)
    assert trained(order=Rotated(2), resume_from=tmp_path) == rotated(2, 4)[6:]
    for other in (Rotated(1), None):
        with pytest.raises(CheckpointError, match="order") as refused:
            trained(order=other, resume_from=tmp_path)
        assert_explained(refused.value)
    with pytest.raises(CheckpointError, match=r"order=Sequential\(\)(.|\n)*order=rotated-v1"):
        trained(order=Sequential(), resume_from=tmp_path)
    assert trained(order=Rotated(1), resume_from=tmp_path, resume_allow=("order",)) == rotated(1, 2)[6:]
    shuffled = trained(resume_from=tmp_path, resume_allow=("order",))
    assert len(shuffled) == 18
    assert sorted(shuffled[6:]) == rotated(0)


def test_the_length_of_a_dataset_is_not_that_of_its_epochs(tmp_path: Path) -> None:
    """A training state has the number of samples of the dataset, however many an epoch visits."""
    saved = interrupted(tmp_path, order=Weighted([1.0] * len(DATA), num_samples=100))
    assert saved["settings"]["dataset_length"] == len(DATA)


@pytest.mark.parametrize("order", [None, Shuffled(), Sequential()])
def test_plain_orders_leave_training_states_what_they_were(order: Order | None, tmp_path: Path) -> None:
    """The state of a run without an order, or with a plain one, has no entry for it."""
    saved = interrupted(tmp_path, order=order)
    assert "order" not in saved["settings"]
    assert saved["algorithm"] in ("randperm-v1", "identity")
    with pytest.raises(
        CheckpointError, match=r"order: (a position means a different sample|the order of the samples changes)"
    ):
        trained(order=Rotated(), resume_from=tmp_path)
    assert len(trained(order=order, resume_from=tmp_path)) == 18
