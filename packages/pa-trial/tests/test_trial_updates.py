"""With ``samples_per_update``, a trial makes the same updates on any number of processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import RandomSampler
from typing_extensions import override

import pa_trial
from pa_distributed import RanksDifferError
from pa_trial import (
    Batch,
    DataLoader,
    EmptyLoaderError,
    Epoch,
    InvalidCheckpointException,
    InvalidExperimentException,
    InvalidHP,
)
from pa_trial.collectives import rank
from pa_trial.errors import ConfigurationError
from tests.launching import Launch
from tests.support.models import weights_of
from tests.support.pa_trial.saved_checkpoints import changed_trial_state
from tests.support.pa_trial.updates import EPOCHS, SAMPLES, UPDATE, Numbered, double_model, numbered, sizes
from tests.support.trials import fit, variant

pytestmark = pytest.mark.runs_on("one_process", "two_ranks")


def order_of_epochs(folder: Path) -> list[list[int]]:
    """The samples of each epoch in their order, as batches of one process show them that do not cut updates."""
    with pa_trial.init(checkpoint_dir=folder, seed=0) as context:
        loader = DataLoader(numbered(), 1, shuffle=True).get_data_loader(True, seed=context.get_trial_seed())
        batches: Iterator[Any] = iter(loader)
        return [[int(next(batches)[1]) for _ in range(SAMPLES)] for _ in range(EPOCHS)]


def by_hand(folder: Path) -> Tensor:
    """The weights after a loop of one process with whole updates."""
    model = double_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    updates = 0
    for epoch, order in enumerate(order_of_epochs(folder)):
        for begin in range(0, SAMPLES, UPDATE):
            optimizer.param_groups[0]["lr"] = 0.1 * 0.97**updates * 0.8**epoch
            inputs = numbered().tensors[0][order[begin : begin + UPDATE]]
            loss = nn.functional.mse_loss(model(inputs), inputs.square().sum(1, keepdim=True))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            updates += 1
    return weights_of(model)


def assert_close(weights: Any, expected: Any) -> None:
    """Up to the order of additions in double precision."""
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("per_device_batch_size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("workers", [0, 1])
def test_updates_are_those_of_a_loop_with_whole_updates(
    per_device_batch_size: int, workers: int, shared_tmp_path: Path
) -> None:
    """However they are cut: by the samples that fit, by the processes, and where an epoch ends."""
    trial_class = variant(Numbered, workers=workers)
    settings = sizes(UPDATE, per_device_batch_size)
    trial = fit(trial_class, shared_tmp_path, settings=settings, max_length=Epoch(EPOCHS))

    assert_close(weights_of(trial.model), by_hand(shared_tmp_path))
    most = per_device_batch_size + (per_device_batch_size == 2)  # no process gets one sample of three
    assert max(len(numbers) for _, numbers in trial.given) <= most


def test_an_update_smaller_than_the_processes(shared_tmp_path: Path) -> None:
    """A process whose samples count nothing takes part."""
    trial = fit(Numbered, shared_tmp_path, settings=sizes(1, 4), max_length=Batch(30))
    again = fit(Numbered, shared_tmp_path, settings=sizes(1, 1), max_length=Batch(30))
    assert_close(weights_of(trial.model), weights_of(again.model))
    assert not torch.equal(weights_of(trial.model)[0], trial.first[0])


@pytest.mark.parametrize("per_device_batch_size", [2, 100])
def test_batches_and_epochs_count_updates(per_device_batch_size: int, shared_tmp_path: Path) -> None:
    """Lengths, periods, indices and events are the same, into however many pieces an update is cut."""
    trial = fit(
        Numbered,
        shared_tmp_path,
        settings=sizes(UPDATE, per_device_batch_size),
        max_length=Batch(5),
        validation_period=Epoch(1),
        checkpoint_period=Batch(3),
        reporting_period=Batch(100),
    )
    assert sorted(set(trial.trained)) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4)]
    assert trial.notes.events == ["W3", "C3", "W4", "V4", "W5", "V5", "C5"]


def test_epochs_begin_and_end_once(shared_tmp_path: Path) -> None:
    """Callbacks are not told of pieces."""
    told: list[tuple[str, int]] = []

    class Tells(pa_trial.PyTorchCallback):
        @override
        def on_training_epoch_start(self, epoch_idx: int) -> None:
            told.append(("start", epoch_idx))

        @override
        def on_training_epoch_end(self, epoch_idx: int) -> None:
            told.append(("end", epoch_idx))

    fit(Numbered, shared_tmp_path, {"tells": Tells()}, settings=sizes(UPDATE, 1), max_length=Epoch(2))
    assert told == [("start", 0), ("end", 0), ("start", 1), ("end", 1)]


def test_drop_last_leaves_out_what_does_not_fill_an_update(shared_tmp_path: Path) -> None:
    """An epoch of 27 samples has three updates of seven."""
    trial = fit(variant(Numbered, drops_last=True), shared_tmp_path, settings=sizes(), max_length=Epoch(2))
    assert trial.trained[-1] == (1, 5)


def test_the_context_tells_the_sizes(shared_tmp_path: Path) -> None:
    """They count more than a hyperparameter."""
    hparams = {"global_batch_size": 4}
    with pa_trial.init(checkpoint_dir=shared_tmp_path, hparams=hparams, **sizes(256, 32)) as context:
        assert (context.get_global_batch_size(), context.get_per_slot_batch_size()) == (256, 32)


@pytest.mark.parametrize(("saved_with", "interrupted_at"), [(3, 5), (2, 8)])
def test_a_resumed_training_goes_on_with_the_next_update(
    saved_with: int, interrupted_at: int, shared_tmp_path: Path
) -> None:
    """Also with another ``per_device_batch_size``."""
    settings = sizes(UPDATE, saved_with)
    fit(Numbered, shared_tmp_path, settings=settings, max_length=Batch(interrupted_at))
    (checkpoint,) = shared_tmp_path.iterdir()
    trial = fit(Numbered, shared_tmp_path, settings=sizes(), max_length=Epoch(EPOCHS), latest_checkpoint=checkpoint)
    assert trial.trained[0][1] == interrupted_at
    assert_close(weights_of(trial.model), by_hand(shared_tmp_path))


def test_an_update_that_was_left_between_its_pieces_is_begun_again(shared_tmp_path: Path) -> None:
    """Its first gradients do not count twice."""

    class GivesUp(Numbered):
        @override
        def before_batch(self, batch_idx: int) -> None:
            if self.trained.count((1, 5)) == 1:
                raise InvalidHP("the loss does not fall")

    with pytest.raises(SystemExit):
        fit(GivesUp, shared_tmp_path, settings=sizes(UPDATE, 2), max_length=Epoch(EPOCHS))
    (checkpoint,) = shared_tmp_path.iterdir()
    trial = fit(Numbered, shared_tmp_path, settings=sizes(), max_length=Epoch(EPOCHS), latest_checkpoint=checkpoint)
    assert trial.trained[0][1] == 5
    assert_close(weights_of(trial.model), by_hand(shared_tmp_path))


SCRIPT = """
import sys
import torch
from pa_trial import Batch
from pa_trial.collectives import rank
from tests.support.pa_trial.saved_checkpoints import changed_trial_state
from tests.support.pa_trial.updates import Numbered, sizes
from tests.support.trials import fit
from pathlib import Path

folder, length, *latest = sys.argv[1:]
asked = {"latest_checkpoint": latest[0]} if latest else {}
trial = fit(Numbered, Path(folder), settings=sizes(), max_length=Batch(int(length)), **asked)
if rank() == 0:
    torch.save(trial.model.state_dict(), "weights.pt")
    print("trained", sorted({batch_idx for _, batch_idx in trial.trained}))
"""


@pytest.mark.runs_on("one_process")
def test_another_number_of_processes_goes_on_with_the_next_update(launch: Launch, tmp_path: Path) -> None:
    """In the middle of an epoch, with the same weights as a training that was never interrupted."""
    folder, latest = tmp_path / "checkpoints", list[str]()
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    for ranks, batches in ((2, range(5)), (1, range(5, 8)), (3, range(8, 12))):
        before = {*folder.glob("*")}
        arguments = (str(folder), str(batches.stop), *latest)
        ended = launch(SCRIPT, *arguments, ranks=ranks, env={"PYTHONPATH": path})
        assert f"trained {[*batches]}" in ended.output
        (checkpoint,) = {*folder.iterdir()} - before
        latest = [checkpoint.name]

    model = double_model()
    model.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert_close(weights_of(model), by_hand(tmp_path))


@pytest.mark.runs_on("one_process")
@pytest.mark.parametrize("now", [{}, sizes(14)], ids=["batches", "another size"])
def test_another_number_of_processes_needs_the_same_size(now: dict[str, int], tmp_path: Path) -> None:
    """Otherwise a batch would be another part of the data."""
    fit(Numbered, tmp_path, settings=sizes(), max_length=Batch(2))
    (checkpoint,) = tmp_path.iterdir()
    checkpoint = changed_trial_state(checkpoint, num_processes=5)
    with pytest.raises(InvalidCheckpointException, match="a different number of processes"):
        fit(Numbered, tmp_path, settings=now, max_length=Batch(4), latest_checkpoint=checkpoint)


# What is refused


@pytest.mark.parametrize(
    "given",
    [sizes(per_device_batch_size=None), sizes(samples_per_update=None), sizes(aggregation_frequency=2)],
    ids=["no batch size", "no size of an update", "aggregation"],
)
def test_sizes_that_are_not_clear_are_refused(given: dict[str, Any]) -> None:
    """Before anything is done."""
    with pytest.raises(ConfigurationError, match="both and alone"):
        pa_trial.init(**given)


def loading(loader: Any) -> type[Numbered]:
    """A trial with another loader, which need not be one that resumes."""

    def build(self: Numbered) -> Any:
        self.context.experimental.disable_dataset_reproducibility_checks()
        return loader

    return variant(Numbered, build_training_data_loader=build)


def step_twice(self: Numbered, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
    """Make a step between two backward passes."""
    for _ in range(2):
        self.context.backward(self.loss(batch))
        self.context.step_optimizer(self.optimizer)
    return {}


def keep_gradients(self: Numbered, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
    """Leave the gradients to the trial, as is possible without aggregation."""
    self.context.step_optimizer(self.optimizer, auto_zero_grads=False)
    return {}


SAMPLER = RandomSampler(range(SAMPLES), replacement=True)
STEPS_TWICE = variant(Numbered, train_batch=step_twice)
REFUSED: list[tuple[type[Numbered], dict[str, Any], type[Exception], str]] = [
    *((Numbered, given, ValueError, r"samples_per_update|batch_size")
      for given in (sizes(0, 3), sizes(UPDATE, 0), sizes(7.5, 3))),
    *((loading(loader), sizes(), ConfigurationError, "cannot be cut into updates")
      for loader in (DataLoader(numbered(), 3, sampler=SAMPLER), DataLoader(numbered(), batch_sampler=[[0], [1, 2]]),
                     TorchDataLoader(numbered(), 3))),
    *((STEPS_TWICE, sizes(UPDATE, most), InvalidExperimentException, r"call backward\(\) before step_optimizer\(\)")
      for most in (1, 100)),
    (variant(Numbered, train_batch=keep_gradients), sizes(), InvalidExperimentException, "auto_zero_grads=False"),
    (variant(Numbered, drops_last=True), sizes(28), EmptyLoaderError, "do not fill an update of 28"),
]  # fmt: skip


@pytest.mark.parametrize(("trial_class", "given", "error", "text"), REFUSED)
def test_what_cannot_be_cut_into_updates_is_refused(
    trial_class: type[Numbered], given: dict[str, Any], error: type[Exception], text: str, shared_tmp_path: Path
) -> None:
    """Sizes, loaders and steps with which a program would not work on any number of processes."""
    with pytest.raises(error, match=text):
        fit(trial_class, shared_tmp_path, settings=given, max_length=Batch(1))


@pytest.mark.runs_on("two_ranks")
def test_processes_with_other_sizes_are_refused(shared_tmp_path: Path) -> None:
    """They would wait for each other in different places."""
    with pytest.raises(RanksDifferError, match="samples_per_update"):
        fit(Numbered, shared_tmp_path, settings=sizes(UPDATE + rank()), max_length=Batch(1))


def test_several_passes_of_several_optimizers(shared_tmp_path: Path) -> None:
    """All before the first step: the gradients of a loop with whole updates."""

    class Parts(Numbered):
        @override
        def train_batch(self, batch: list[Tensor], epoch_idx: int, batch_idx: int) -> dict[str, Any]:
            self.context.backward(0.25 * self.loss(batch))
            self.context.backward(0.75 * self.loss(batch))
            self.context.step_optimizer(self.optimizer)
            return {}

    trial = fit(Parts, shared_tmp_path, settings=sizes(UPDATE, 2), max_length=Epoch(EPOCHS))
    assert_close(weights_of(trial.model), by_hand(shared_tmp_path))
