"""Runs whose samples are drawn by weight, by class, from a mixture, or by a curriculum."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from pa_core import AnyTrainer, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.data import KeyedDataLoader
from pa_core.distributed import num_processes
from pa_data.orders import ClassBalanced, Curriculum, Mixture, Order, Weighted
from tests.support.callbacks import KillAt, KilledError, Notes, TellAt
from tests.support.pa_core import entries

pytestmark = pytest.mark.runs_on("one_process", "two_ranks")

NUMBERS = torch.arange(60.0)[:, None]
DATA = TensorDataset(NUMBERS, NUMBERS * 0)


def mixture(**options: Any) -> Mixture[Any]:
    """Ten of the numbers from one dataset, fifty from another."""
    ours, others = TensorDataset(NUMBERS[:10], NUMBERS[:10] * 0), TensorDataset(NUMBERS[10:], NUMBERS[10:] * 0)
    return Mixture({"ours": ours, "others": others}, weights={"ours": 0.25, "others": 0.75}, **options)


DATASETS: dict[str, tuple[Dataset[Any], Order | None]] = {
    "weighted": (DATA, Weighted(torch.arange(60))),
    "class balanced": (DATA, ClassBalanced(torch.arange(60) // 25)),
    "mixture": (mixture(), None),
    "curriculum": (DATA, Curriculum(lambda epoch: range(12 * epoch, 60))),
}


def train(data: Dataset[Any], *callbacks: TrainerCallback, **options: Any) -> tuple[list[list[int]], AnyTrainer]:
    """Train a line for three epochs, six samples an update, and return the samples of each update and the trainer."""
    torch.manual_seed(0)
    model, updates = nn.Linear(1, 1), Notes()
    note = TellAt("on_train_step_end", lambda one, told: updates.append([int(n) for n in one.gather(told["batch"][0])]))
    settings: dict[str, Any] = {"per_device_batch_size": 6 // num_processes(), **options}
    optimizer = SGD(model.parameters(), lr=1e-5)
    trainer = entries.train("Trainer", model, optimizer, data, 3, callbacks=[note, *callbacks], **settings)
    return updates, trainer


def of_one_process(data: Dataset[Any], order: Order | None, seed: int | None) -> list[list[int]]:
    """The samples of each update of three epochs, as the loader of one process has them."""
    assert seed is not None
    loader: KeyedDataLoader[Any] = KeyedDataLoader(data, 6, shuffle=order is None, order=order, seed=seed)
    updates: list[list[int]] = []
    for epoch in range(3):
        loader.start_epoch(epoch)
        updates += [[int(number) for number in numbers] for numbers, _ in loader]
    return updates


@pytest.mark.parametrize("name", DATASETS)
def test_a_run_goes_on_at_its_sample(name: str, shared_tmp_path: Path) -> None:
    """The updates are those of one process, also where the run was killed within its second epoch."""
    data, order = DATASETS[name]
    with pytest.raises(KilledError):
        train(data, SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=11), KillAt(12), order=order)
    resumed, trainer = train(data, order=order, resume_from=shared_tmp_path)
    whole = of_one_process(data, order, trainer.run_config.seed)
    assert resumed == whole[11:]
    assert train(data, order=order)[0] == whole


def test_the_history_has_the_share_of_each_dataset() -> None:
    """It is recorded for each epoch and, where a run ends within one, for the part that was trained on."""
    updates, trainer = train(mixture(num_samples=60), max_num_train_steps=14)
    for name, first, last in (("ours", 0, 10), ("others", 10, 60)):
        samples = [torch.tensor(part).flatten() for part in (updates[:10], updates[10:])]
        shares = [float(((part >= first) & (part < last)).double().mean()) for part in samples]
        assert shares[0] == {"ours": 0.25, "others": 0.75}[name]
        assert trainer.run_history.get_metric_values(f"train_share_{name}_epoch") == pytest.approx(shares)
    assert len(updates) == 14
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=1e-5)
    run = entries.train("Run", model, optimizer, mixture(num_samples=60), per_device_batch_size=2)
    assert run.run_history.get_metric_values("train_share_ours_epoch") == [0.25]


def test_a_mixture_is_evaluated_sample_by_sample() -> None:
    """An evaluation visits each sample of each dataset once, whatever the shares in training are."""
    evaluated: list[int] = []

    def note(trainer: AnyTrainer, told: Any) -> None:
        evaluated.extend(int(number) for number in trainer.gather(told["batch"][0]))

    class Evaluated(TellAt):
        """Another class, as two of one are refused."""

    train(mixture(num_samples=6), Evaluated("on_eval_step_end", note), eval_dataset=mixture())
    assert evaluated == 3 * list(range(60))


@pytest.mark.parametrize(
    ("data", "holder"),
    [
        (Subset(mixture(), range(6)), "a Subset"),
        (ConcatDataset([DATA, Subset(mixture(), range(6))]), "a Subset"),
        (ConcatDataset([DATA, mixture()]), "a ConcatDataset"),
        (DataLoader(mixture(), 6), "a DataLoader"),
    ],
)
def test_shares_that_are_lost_are_warned_of(data: Any, holder: str) -> None:
    """Within another dataset, or in a loader with an order of its own, a mixture loses its shares."""
    model = nn.Linear(1, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=1e-5), callbacks=[])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")  # on several processes, a loader is warned of for another reason too
        trainer.train(data, 1)
    text = f"The order of a Mixture, mixture-v1, has no effect in {holder}"
    assert [one.filename for one in warned if str(one.message).startswith(text)] == [__file__]
