"""What cannot have the same bits on any number of processes is refused: before the first step, or where it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset
from typing_extensions import override

from pa_core import ConfigurationError, Run, Trainer, UnsupportedConfigurationError
from pa_core.callbacks import LimitBatchesCallback
from pa_core.testing import make_regression
from pa_data.errors import DataError
from pa_data.orders import LengthGrouped, TokenBudget
from tests.support.callbacks import TellAt
from tests.support.pa_core.entries import train
from tests.support.sharded_models import sentences, sharded, tiny_transformer

DATA = make_regression(24)


class _Stream(IterableDataset[list[Tensor]]):
    @override
    def __iter__(self) -> Iterator[list[Tensor]]:
        yield from (list(one) for one in zip(*DATA.tensors, strict=True))


class _SizedStream(_Stream):
    """Yields the 24 samples, and says how many there are."""

    def __init__(self, length: int = 24) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


class _Part(_SizedStream):
    """Says that it yields the samples of one process."""

    num_replicas, rank = 2, 0


def trainer_of(*callbacks: Any, model: nn.Module | None = None) -> Trainer[nn.Module]:
    """A reproducible trainer."""
    model = model or nn.Linear(4, 1)
    options: dict[str, Any] = {"reproducible": "any_processes"}
    return Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks, **options)


def run_of(model: Any, optimizer: Any, **options: Any) -> Run[Any, Any]:
    """A reproducible run."""
    arguments: dict[str, Any] = {"num_epochs": 1, "samples_per_update": 12, "reproducible": "any_processes", **options}
    return Run(model, optimizer, DATA, **arguments)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        pytest.param({"samples_per_update": None}, r"pass samples_per_update=", id="no size of updates"),
        pytest.param({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps", id="accumulation"),
        pytest.param({"train_dataset": DataLoader(DATA, batch_size=4)}, "DataLoader", id="a loader"),
        pytest.param({"eval_dataset": DataLoader(DATA, batch_size=4)}, "DataLoader", id="a loader of an evaluation"),
        pytest.param({"train_dataset": _Stream()}, "[Ii]terable|length", id="a stream"),
        pytest.param({"train_dataset": _Stream()}, "a stream with a __len__", id="a stream, with a way out"),
        pytest.param({"eval_dataset": _Stream()}, "a stream with a __len__", id="a stream to evaluate"),
        pytest.param({"train_dataset": DataLoader(_SizedStream(), 4)}, "DataLoader", id="a loader of a stream"),
        pytest.param({"train_dataset": _Part()}, r"num_replicas=2 and rank=0", id="a part of a stream"),
        pytest.param({"train_dataloader_kwargs": {"sampler": RandomSampler(DATA)}}, "sampler", id="a sampler"),
        pytest.param({"order": TokenBudget([1] * 24, max_tokens=6)}, "TokenBudget", id="batches of an order"),
        pytest.param({"order": TokenBudget([1] * 24, max_tokens=6)}, r"Pass LengthGrouped", id="an order in its place"),
        pytest.param(
            {"order": TokenBudget([1] * 24, max_tokens=6), "samples_per_update": None}, "TokenBudget", id="order alone"
        ),
        pytest.param(
            {"train_dataloader_kwargs": {"keyed_augmentation": False}}, "keyed_augmentation", id="draws without keys"
        ),
        pytest.param(
            {"eval_dataset": DATA, "eval_dataloader_kwargs": {"keyed_augmentation": False}},
            "keyed_augmentation",
            id="draws without keys in an evaluation",
        ),
        pytest.param(
            {"eval_dataset": DATA, "eval_dataloader_kwargs": {"drop_last": True}},
            "drop_last",
            id="an evaluation of some samples",
        ),
    ],
)
def test_data_that_cannot_be_cut_by_position_are_refused(arguments: dict[str, Any], match: str) -> None:
    """Before anything is trained, and in the words of what was passed."""
    model = nn.Linear(4, 1)
    before = model.weight.detach().clone()
    refused: Any = trainer_of(model=model).train
    with pytest.raises(ConfigurationError, match=match) as refusal:
        refused(**{"train_dataset": DATA, "num_epochs": 1, "samples_per_update": 12, **arguments})
    assert "reproducible" in str(refusal.value)
    assert "fixed" not in str(refusal.value).lower()
    assert model.weight.equal(before)


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        pytest.param(nn.SyncBatchNorm(4), "SyncBatchNorm", id="statistics of all processes"),
        pytest.param(nn.Embedding(9, 4, sparse=True), "sparse", id="sparse gradients"),
    ],
)
def test_layers_that_follow_the_processes_are_refused(layer: nn.Module, match: str) -> None:
    """In the forward pass, or with gradients that are added up as they come."""
    with pytest.raises(UnsupportedConfigurationError, match=match):
        trainer_of(model=nn.Sequential(layer, nn.Linear(4, 1))).train(DATA, 1, samples_per_update=12)


def test_a_limit_of_batches_is_refused() -> None:
    """It counts those of each process."""
    with pytest.raises(ConfigurationError, match="limit"):
        trainer_of(LimitBatchesCallback(2)).train(DATA, 1, samples_per_update=12)


class _OwnEpoch(Trainer[nn.Module]):
    @override
    def _run_train_epoch(self, train_dl: Any) -> None:
        for batch in train_dl:
            self.backward_step(self.calculate_train_batch_loss(batch)["loss"])
            self.optimizer_step()


def test_epochs_of_ones_own_are_refused() -> None:
    """Nobody would add up their gradients."""
    model = nn.Linear(4, 1)
    options: dict[str, Any] = {"reproducible": "any_processes"}
    trainer = _OwnEpoch(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), [], **options)
    with pytest.raises(UnsupportedConfigurationError, match="_OwnEpoch"):
        trainer.train(DATA, 1, samples_per_update=12)


@pytest.mark.runs_on("two_ranks")
def test_sharded_models_are_refused() -> None:
    """Each process would have a part of the gradients alone."""
    trainer = trainer_of(model=sharded(tiny_transformer()))
    trainer.loss_func = nn.CrossEntropyLoss()
    with pytest.raises(UnsupportedConfigurationError, match="shard"):
        trainer.train(TensorDataset(*sentences(24)), 1, samples_per_update=12)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        pytest.param({"samples_per_update": None}, r"pass samples_per_update=", id="no size of updates"),
        pytest.param(
            {"samples_per_update": None, "max_updates_per_batch": 2}, "leave out max_updates", id="updates of a batch"
        ),
        pytest.param({"gradient_accumulation_steps": 2}, "leave out gradient_accumulation", id="accumulation"),
    ],
)
def test_runs_whose_updates_follow_the_processes_are_refused(options: dict[str, Any], match: str) -> None:
    """What an update is made of is known before the loop."""
    model = nn.Linear(4, 1)
    with pytest.raises(ConfigurationError, match=match):
        run_of(model, SGD(model.parameters(), lr=0.1), **options)


def test_a_callback_that_gathers_in_steps_is_refused() -> None:
    """Processes have other samples in a step, and fewer steps, where there are more processes."""
    with pytest.raises(ConfigurationError, match="gather"):
        trainer_of(TellAt("on_train_step_end", lambda one, told: one.gather(told["batch"][0]))).train(
            DATA, 1, samples_per_update=12
        )


def _gather(run: Run[Any, Any]) -> None:
    for inputs, _ in run.batches():
        run.gather(inputs)


def _evaluate(run: Run[Any, Any]) -> None:
    for _ in run.batches():
        list(run.evaluation_batches(DATA))


def _step_between(run: Run[Any, Any]) -> None:
    for inputs, _ in run.batches():
        run.backward(run.models["first"](inputs).mean(), model="first")
        if run.step("first"):
            run.backward(run.models["second"](inputs).mean(), model="second")


def _move_target(run: Run[Any, Any]) -> None:
    target: Any = run.models["second"].requires_grad_(False)
    student: Any = run.models["first"]
    for inputs, _ in run.batches():
        run.backward((student(inputs) - target(inputs)).square().mean(), model="first")
        with torch.no_grad():
            target.weight.lerp_(student.weight, 0.1)
        run.step("first")


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (_gather, "gather"),
        (_evaluate, "evaluat"),
        (_step_between, "backward"),
    ],
)
def test_loops_in_whose_steps_processes_communicate_are_refused(
    body: Callable[[Run[Any, Any]], None], match: str
) -> None:
    """They gather or evaluate in a step, or exchange gradients after the first step of an update."""
    models = {"first": nn.Linear(4, 1), "second": nn.Linear(4, 1)}
    optimizers = {name: SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    run = run_of(models, optimizers)
    with run, pytest.raises(ConfigurationError, match=match):
        body(run)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"train_dataloader_kwargs": {"shuffle": True}}, r"own order(.|\n)*Shuffled"),
        (
            {"order": LengthGrouped([1] * 24, group_size=4)},
            r"own order(.|\n)*LengthGrouped|LengthGrouped(.|\n)*own order",
        ),
        ({"train_dataloader_kwargs": {"num_workers": 1, "persistent_workers": True}}, "persistent_workers=True"),
    ],
)
def test_what_a_stream_cannot_follow_is_refused(arguments: dict[str, Any], match: str) -> None:
    """It is read forwards, anew in each epoch."""
    refused: Any = trainer_of().train
    with pytest.raises((ConfigurationError, DataError), match=match):
        refused(_SizedStream(), 1, samples_per_update=12, **arguments)


def test_a_target_network_that_a_loop_moves_within_an_update_is_refused() -> None:
    """Before the first update, as the micro-batches after it would depend on who computes them."""
    models = {"first": nn.Linear(4, 1), "second": nn.Linear(4, 1)}
    optimizers = {name: SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    before = models["first"].weight.detach().clone()
    run = run_of(models, optimizers)
    with run, pytest.raises(ValueError, match="A parameter was changed between two updates"):
        _move_target(run)
    assert models["first"].weight.equal(before)


_NO_WORKERS = {"num_workers": 0}


def _train(stream: _SizedStream) -> None:
    trainer_of().train(stream, 1, samples_per_update=12, per_device_batch_size=4, train_dataloader_kwargs=_NO_WORKERS)


def _train_by_run(stream: _SizedStream) -> None:
    model = nn.Linear(4, 1)
    options: dict[str, Any] = {"reproducible": "any_processes", "train_dataloader_kwargs": _NO_WORKERS}
    # A process has nothing in some steps, and gets a batch of another process.
    train(
        "Run", model, SGD(model.parameters(), lr=0.1), stream, samples_per_update=10, per_device_batch_size=4, **options
    )


def _evaluate_stream(stream: _SizedStream) -> None:
    trainer_of().evaluate(stream, 4, _NO_WORKERS)


def _predict(stream: _SizedStream) -> None:
    list(trainer_of().predict(stream, 4, _NO_WORKERS))


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("use", [_train, _train_by_run, _evaluate_stream, _predict])
@pytest.mark.parametrize(
    ("length", "given"),
    [
        pytest.param(25, "24 samples of _SizedStream, whose length is 25", id="one too few"),
        pytest.param(23, "more than 23 samples of _SizedStream, whose length is 23", id="too many"),
        pytest.param(24, None, id="as many as it says"),
    ],
)
def test_a_stream_of_another_length_is_an_error_of_all_processes(
    use: Callable[[_SizedStream], None], length: int, given: str | None
) -> None:
    """It names both numbers on each of them, and none waits for another one."""
    if given is None:
        use(_SizedStream(length))
        return
    with pytest.raises(DataError, match=given):
        use(_SizedStream(length))
