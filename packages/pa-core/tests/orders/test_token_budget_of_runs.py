"""Runs whose batches a token budget makes: the same updates for every division of the work, also when resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.optim import SGD
from torch.utils.data import Dataset
from typing_extensions import override

from pa_checkpoint import Folder, load
from pa_core import (
    AnyTrainer,
    CheckpointError,
    ConfigurationError,
    LimitBatches,
    SaveTrainingStateCallback,
    TrainerCallback,
)
from pa_core.distributed import num_processes
from pa_data.errors import DataError
from pa_data.orders import Shuffled, TokenBudget
from tests.support.callbacks import KillAt, KilledError
from tests.support.explained import assert_explained
from tests.support.models import weights_of
from tests.support.pa_core import entries
from tests.support.pa_core.entries import Entry

VOCABULARY, PADDING = 11, -1
LENGTHS = [2 + (7 * index) % 23 for index in range(61)]
BUDGET = TokenBudget(LENGTHS, max_tokens=64)


class Texts(Dataset[Tensor]):
    """Tokens of many lengths."""

    def __len__(self) -> int:
        return len(LENGTHS)

    @override
    def __getitem__(self, index: int) -> Tensor:
        return (torch.arange(LENGTHS[index]) * (index + 1)) % VOCABULARY


def collate(samples: list[Tensor]) -> Tensor:
    """Pad the samples of a batch to the longest."""
    return pad_sequence(samples, batch_first=True, padding_value=PADDING)


def make_model() -> nn.Module:
    """Predicts the next token from the present one, in double precision."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(VOCABULARY, 4), nn.Tanh(), nn.Linear(4, VOCABULARY)).double()


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """The mean over the tokens of a batch that have one before them."""
    scores: Tensor = model(batch[:, :-1].clamp(min=0))
    return cross_entropy(scores.transpose(1, 2), batch[:, 1:], ignore_index=PADDING)


def count_targets(batch: Tensor) -> int:
    """The number of tokens over which a loss is the mean."""
    return int((batch[:, 1:] != PADDING).sum())


def counted(model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
    """The loss, and the number of tokens."""
    return loss_of(model, batch), count_targets(batch)


def train(
    *callbacks: TrainerCallback, batches: int = 4, num_epochs: int = 2, entry: Entry = "Trainer", **arguments: Any
) -> AnyTrainer:
    """Train with so many batches in an update, on any number of processes; each update is the mean over its tokens."""
    model = make_model()
    optimizer = SGD(model.parameters(), lr=1.0, momentum=0.9)
    torch.manual_seed(1)
    arguments = {"gradient_accumulation_steps": batches // num_processes(), "order": BUDGET, **arguments}
    for name in ("train_dataloader_kwargs", "eval_dataloader_kwargs") if entry == "Trainer" else ():
        arguments[name] = {"num_workers": 0, **arguments.get(name, {})}
    options: dict[str, Any] = {"step": counted, "callbacks": callbacks, "collate_fn": collate, **arguments}
    return entries.train(entry, model, optimizer, Texts(), num_epochs, **options)


def samples_of_updates(seed: int, epoch: int, batches: int) -> list[list[int]]:
    """The samples of each update of an epoch, as the order itself gives them."""
    one = BUDGET.epoch_order(len(LENGTHS), seed=seed, epoch=epoch)
    assert one.batch_ends is not None
    ends: list[int] = one.batch_ends[batches - 1 :: batches].tolist()
    begins, ends = [0, *ends], [*ends, len(LENGTHS)]
    parts = [one.indices(begin, end).tolist() for begin, end in zip(begins, ends, strict=True)]
    return [part for part in parts if part]


def train_by_hand(seed: int, batches: int = 4, num_epochs: int = 2) -> Tensor:
    """The weights after updates with all samples of each update in one batch."""
    model = make_model()
    optimizer = SGD(model.parameters(), lr=1.0, momentum=0.9)
    for epoch in range(num_epochs):
        for samples in samples_of_updates(seed, epoch, batches):
            torch.autograd.backward(loss_of(model, collate([Texts()[index] for index in samples])))
            optimizer.step()
            optimizer.zero_grad()
    return weights_of(model)


class Samples(TrainerCallback):
    """Counts the samples of each step on this process."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.tokens: list[int] = []

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        if batch is not None:
            self.sizes.append(len(batch))
            self.tokens.append(batch.numel())


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("batches", [2, 4, 6])
@entries.on_both_entries
def test_an_update_is_the_mean_over_the_tokens_of_its_batches(entry: Entry, batches: int) -> None:
    """The next batches of the order make an update, whoever has them; none is above the budget."""
    samples = Samples()
    trainer = train(samples, batches=batches, entry=entry)
    seed = trainer.run_config.seed
    assert seed is not None
    assert torch.allclose(weights_of(trainer.get_model()), train_by_hand(seed, batches), rtol=0, atol=1e-12)
    assert max(samples.tokens) <= 64
    assert trainer.num_updates_completed == 2 * -(-BUDGET.num_batches // batches)


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("update", [2, 4, 5, 6])
def test_a_run_resumes_at_any_update(update: int, shared_tmp_path: Path) -> None:
    """After a kill the rest of the run is as if nothing had happened, within an epoch and where one ends."""
    whole = train()
    with pytest.raises(KilledError):
        train(SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=1), KillAt(update))
    resumed = train(resume_from=shared_tmp_path)
    assert torch.equal(weights_of(resumed.get_model()), weights_of(whole.get_model()))
    assert resumed.run_history.get_metric_values("train_loss_epoch") == pytest.approx(
        whole.run_history.get_metric_values("train_loss_epoch"), rel=1e-12
    )


def interrupted(folder: Path, **arguments: Any) -> dict[str, Any]:
    """Train for three updates, and return the settings of the state."""
    with pytest.raises(KilledError):
        train(SaveTrainingStateCallback(folder, save_every_n_steps=1), KillAt(3), **arguments)
    state, _ = Folder(folder).newest_readable(load)
    assert state is not None
    settings: dict[str, Any] = state.parts["run"]["settings"]
    return settings


def test_an_update_has_as_many_batches_in_a_resumed_run(tmp_path: Path) -> None:
    """Updates are counted in batches: another number of them is refused with the number that fits."""
    assert interrupted(tmp_path)["samples_per_update"] == "4 batches"
    with pytest.raises(CheckpointError, match="samples_per_update=2 batches") as refused:
        train(batches=2, resume_from=tmp_path)
    assert_explained(refused.value)
    assert "pass gradient_accumulation_steps=4" in refused.value.do
    train(batches=2, resume_from=tmp_path, resume_allow=("samples_per_update",))


def test_a_run_may_change_to_a_budget_of_tokens_and_back(tmp_path: Path) -> None:
    """Where that is allowed, the epoch continues at the nearest batch of the new order."""
    differences = ("order", "samples_per_update")
    interrupted(tmp_path / "shuffled", order=Shuffled(), batches=1)
    for allowed in ((), ("order",), ("samples_per_update",)):
        with pytest.raises(CheckpointError) as refused:
            train(resume_from=tmp_path / "shuffled", resume_allow=allowed)
        assert_explained(refused.value)
        assert refused.value.do.startswith("Keep the saved values, or allow it by name: ")
    assert train(resume_from=tmp_path / "shuffled", resume_allow=differences).num_epochs_completed == 2
    interrupted(tmp_path / "budget")
    with pytest.raises(CheckpointError) as refused:
        train(order=None, batches=1, resume_from=tmp_path / "budget", resume_allow=("order",))
    assert "gradient_accumulation_steps" not in refused.value.do
    resumed = train(order=None, batches=1, resume_from=tmp_path / "budget", resume_allow=differences)
    assert resumed.num_epochs_completed == 2


def test_the_run_config_has_the_mean_size_of_a_batch() -> None:
    """As there is no single size, those who read it get the mean; nothing is said of a size that was not used."""
    config = train(num_epochs=1).run_config
    mean = round(len(LENGTHS) / BUDGET.num_batches)
    assert (config.train_per_device_batch_size, config.train_total_batch_size) == (mean, 4 * mean)
    assert "batch_size" not in config.train_dl_kwargs
    assert config.num_update_steps_per_epoch == -(-BUDGET.num_batches // 4)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"per_device_batch_size": 16}, "per_device_batch_size=16, and pass TokenBudget"),
        ({"train_dataloader_kwargs": {"batch_size": 16}}, "batch_size=16, and order=TokenBudget"),
        ({"train_dataloader_kwargs": {"drop_last": True}}, "leave out drop_last=True with order=TokenBudget"),
    ],
)
def test_a_size_of_batches_beside_the_budget_is_refused(arguments: dict[str, Any], found: str) -> None:
    """What would have no effect is said, and what to do instead."""
    with pytest.raises((ConfigurationError, DataError), match=found):
        train(**arguments)


def test_an_evaluation_has_batches_of_one_size() -> None:
    """``per_device_batch_size`` is that of the evaluation, which goes in the order of the dataset."""
    trainer = train(num_epochs=1, eval_dataset=Texts(), per_device_batch_size=16)
    assert trainer.run_config.eval_per_device_batch_size == 16
    assert len(list(trainer.run_history.get_metric_values("eval_loss_epoch"))) == 1


def test_limits_count_batches_of_the_order() -> None:
    """An epoch that is limited has the first batches of the order."""
    samples = Samples()
    with LimitBatches(3):
        trainer = train(samples, batches=2, num_epochs=1)
    assert trainer.num_updates_completed == 2
    assert trainer.run_config.seed is not None
    first, second = samples_of_updates(trainer.run_config.seed, 0, batches=2)[:2]
    assert sum(samples.sizes[:2]) == len(first)
    assert 0 < samples.sizes[2] < len(second)
    assert len(samples.sizes) == 3


@pytest.mark.parametrize("update", [4, 8, 11])
def test_limits_hold_for_a_resumed_epoch(update: int, tmp_path: Path) -> None:
    """The batches that were trained on before count in the limit, whatever their sizes."""
    with LimitBatches(12):
        with pytest.raises(KilledError):
            train(SaveTrainingStateCallback(tmp_path, save_every_n_steps=1), KillAt(update), batches=1)
        trainer = train(batches=1, num_epochs=1, resume_from=tmp_path)
    assert trainer.num_updates_completed == 12
