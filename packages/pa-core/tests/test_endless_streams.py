"""Streams without a length, and epochs of different lengths: what a run plans, shows, saves and resumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import IterableDataset, TensorDataset, get_worker_info
from typing_extensions import override

from pa_core import (
    ConfigurationError,
    ProgressBarCallback,
    SaveTrainingStateCallback,
    Trainer,
    TrainerPlaceholderValues,
)
from pa_core.callbacks import PrintProgressCallback
from pa_core.data.epoch_lengths import EpochLengths
from pa_core.data.loaders import default_num_workers
from pa_core.distributed import num_processes, rank
from pa_core.errors import EmptyDatasetError
from pa_data.orders import Order, Sequential
from tests.small_runs import NoteBatches, linear, make_trainer, samples
from tests.support.callbacks import KillAt, KilledError
from tests.support.histories import updates_of
from tests.support.pa_core.stages import Stages

Sample = tuple[Tensor, ...]
NO_WORKERS: dict[str, Any] = {"num_workers": 0}


class Stream(IterableDataset[Sample]):
    """Yields the first samples of a small dataset; counts what was asked of it."""

    def __init__(self, length: int | None) -> None:
        self.length = length
        self.data = samples(20 if length is None else length)
        self.num_read = 0

    @override
    def __iter__(self) -> Iterator[Sample]:
        for number in count() if self.length is None else range(self.length):
            self.num_read += 1
            yield self.data[number % len(self.data)]


class StreamWithState(IterableDataset[Sample]):
    """Knows its position."""

    def __init__(self, length: int) -> None:
        self.data = samples(length)
        self.position = 0
        self.num_read = 0

    @override
    def __iter__(self) -> Iterator[Sample]:
        while self.position < len(self.data):
            self.position += 1
            self.num_read += 1
            yield self.data[self.position - 1]
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """Where it is."""
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go there."""
        self.position = state_dict["position"]


class Share(IterableDataset[Sample]):
    """What one process reads, and nobody else."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data
        self.rank, self.num_replicas = rank(), num_processes()

    @override
    def __iter__(self) -> Iterator[Sample]:
        return (self.data[number] for number in range(len(self.data)))


def train(trainer: Trainer, data: Any, updates: int | None, **options: Any) -> Trainer:
    """Train on batches of 8 without workers."""
    torch.manual_seed(1)
    settings: dict[str, Any] = {"per_device_batch_size": 8, "train_dataloader_kwargs": NO_WORKERS}
    trainer.train(data, 1, max_num_train_steps=updates, **{**settings, **options})
    return trainer


def weights(trainer: Trainer) -> Tensor:
    """The weights of the small model."""
    weight: Tensor = trainer.model.state_dict()["weight"]
    return weight


def killed_and_resumed(
    run: Callable[..., Trainer], folder: Path, update: int, event: str = "on_train_step_start"
) -> tuple[Trainer, list[list[int]], list[list[int]]]:
    """A run that was resumed after an update, and the batches of both of its parts."""
    before, after = NoteBatches(), NoteBatches()
    saving = SaveTrainingStateCallback(folder, save_every_n_steps=1)
    with pytest.raises(KilledError):
        run(make_trainer(Trainer, before, saving, KillAt(update, event)))
    return run(make_trainer(Trainer, after), resume_from=folder), before.trained, after.trained


def batches_of_longer_and_longer_runs(run: Callable[..., object], folder: Path, *limits: int) -> list[list[int]]:
    """The batches of runs, each of which goes on from the one before up to another number of updates."""
    trained: list[list[int]] = []
    for limit in limits:
        part = NoteBatches()
        run(make_trainer(Trainer, part, SaveTrainingStateCallback(folder)), limit, resume_from=folder)
        trained += part.trained
    return trained


@pytest.mark.parametrize(("accumulation_steps", "updates"), [(1, 3), (2, 2), (3, 1), (4, 1)])
def test_a_stream_trains_as_the_same_samples_in_a_list_do(accumulation_steps: int, updates: int) -> None:
    """Three epochs of 20 samples: the last batch and the last group are smaller, and each sample weighs the same."""
    options: dict[str, Any] = {"gradient_accumulation_steps": accumulation_steps}
    listed = make_trainer(lr=1e-2)
    listed.train(samples(20), 3, per_device_batch_size=8, order=Sequential(), **options)

    streamed = train(make_trainer(lr=1e-2), Stream(20), 3 * updates, **options)

    torch.testing.assert_close(weights(streamed), weights(listed), rtol=1e-12, atol=0)
    assert (streamed.num_updates_completed, streamed.num_epochs_completed) == (3 * updates, 3)
    losses = (trainer.run_history.get_metric_values("train_loss_epoch") for trainer in (streamed, listed))
    assert next(losses) == pytest.approx(next(losses), rel=1e-12)


def test_a_stream_without_an_end_is_trained_on_for_a_number_of_updates(capsys: pytest.CaptureFixture[str]) -> None:
    """The displays count its batches without a total; the config has one epoch of all updates."""
    trainer = train(make_trainer(Trainer, PrintProgressCallback()), Stream(None), 7, eval_dataset=Stream(17))
    train(make_trainer(Trainer, ProgressBarCallback()), Stream(None), 7, eval_dataset=Stream(17))

    printed = capsys.readouterr().out
    assert (trainer.num_updates_completed, trainer.num_epochs_completed) == (7, 1)
    config = trainer.run_config
    assert (config.num_epochs, config.num_update_steps_per_epoch, config.max_num_train_steps) == (1, 7, 7)
    assert "Training starts: 7 updates of a stream, 8 samples per update" in printed
    assert "Epoch 1: 7 batches, " in printed
    assert "Epoch 1 eval: 3 batches, " in printed


def test_a_stream_is_evaluated_to_its_end() -> None:
    """Each of its samples counts once, also in the smaller last batch."""
    note, trainer = NoteBatches(), make_trainer()
    trainer.callback_handler.add_callback(note)
    data = samples(19)

    trainer.evaluate(Stream(19), per_device_batch_size=8)

    assert note.evaluated == list(range(19))
    expected = nn.functional.mse_loss(linear()(data.tensors[0]), data.tensors[1]).item()
    assert trainer.run_history.get_latest_metric("evaluation_loss") == pytest.approx(expected, rel=1e-12)


def test_a_run_on_a_stream_needs_a_number_of_updates() -> None:
    """Without one, nothing would end the run; the error asks for it before anything is read."""
    stream = Stream(20)
    with pytest.raises(ConfigurationError, match="Pass max_num_train_steps") as caught:
        train(make_trainer(), stream, None)

    assert "Stream" in str(caught.value)
    assert stream.num_read == 0


def test_a_stream_that_is_used_up_ends_the_run_with_an_error() -> None:
    """What yields nothing the second time would be gone through again and again in vain."""

    class Once(IterableDataset[Sample]):
        """Hands out the same iterator each time."""

        def __init__(self) -> None:
            self.left = iter(Stream(16))

        @override
        def __iter__(self) -> Iterator[Sample]:
            return self.left

    trainer = make_trainer()
    with pytest.raises(EmptyDatasetError, match="is used up after the first time"):
        train(trainer, Once(), 5)

    assert trainer.num_updates_completed == 2


@pytest.mark.parametrize("event", ["on_train_step_start", "on_eval_epoch_start"])
@pytest.mark.parametrize("kind", [Stream, StreamWithState])
@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_a_run_on_a_stream_resumes_after_any_update(
    tmp_path: Path, kind: type[Any], event: str, accumulation_steps: int
) -> None:
    """It trains on the rest of the stream and goes over it again; with a state, it reads nothing twice."""
    options: dict[str, Any] = {"gradient_accumulation_steps": accumulation_steps, "eval_dataset": samples(8)}
    note, streams = NoteBatches(), list[Any]()

    def run(trainer: Trainer, **resuming: Any) -> Trainer:
        streams.append(kind(44))
        return train(trainer, streams[-1], 8, **options, **resuming)

    whole = run(make_trainer(Trainer, note))
    per_epoch = math.ceil(6 / accumulation_steps)
    within = {1, per_epoch - 1, per_epoch, 7}
    for update in within if event == "on_train_step_start" else range(per_epoch, 8, per_epoch):
        resumed, before, after = killed_and_resumed(run, tmp_path / str(update), update, event)
        assert before + after == note.trained
        torch.testing.assert_close(weights(resumed), weights(whole), rtol=0, atol=0)
        assert resumed.num_epochs_completed == whole.num_epochs_completed
        if kind is StreamWithState:
            assert streams[-1].num_read == sum(map(len, after))


def test_a_run_on_a_stream_is_made_longer(tmp_path: Path) -> None:
    """The samples of the stream that are left come first; then it begins again."""
    note = NoteBatches()
    train(make_trainer(Trainer, note), Stream(44), 9)

    def run(trainer: Trainer, updates: int, **resuming: Any) -> None:
        train(trainer, Stream(44), updates, resume_missing="start", **resuming)

    assert batches_of_longer_and_longer_runs(run, tmp_path, 2, 5, 6, 9) == note.trained


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("accumulation_steps", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(18, 7), (0, 9)])
def test_streams_of_processes_need_not_be_equally_long(sizes: tuple[int, int], accumulation_steps: int) -> None:
    """An update is the mean over all samples that any process still has; the epoch ends when none has any."""
    sizes = sizes if num_processes() == 2 else (sum(sizes), 0)
    data, starts = samples(sum(sizes)), (0, sizes[0])
    share = TensorDataset(*(tensor[starts[rank()] :][: sizes[rank()]] for tensor in data.tensors))
    at_once = 4 * accumulation_steps
    updates = math.ceil(max(sizes) / at_once)

    trainer = train(
        make_trainer(lr=1e-2),
        Share(share),
        2 * updates,
        per_device_batch_size=4,
        gradient_accumulation_steps=accumulation_steps,
    )

    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for first in [*range(0, max(sizes), at_once)] * 2:
        indices = [
            start + number
            for start, size in zip(starts, sizes, strict=True)
            for number in range(first, min(first + at_once, size))
        ]
        inputs, targets = data[indices]
        optimizer.zero_grad()
        loss: Any = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(weights(trainer), model.state_dict()["weight"], rtol=1e-12, atol=0)
    assert (trainer.num_updates_completed, trainer.num_epochs_completed) == (2 * updates, 2)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_the_share_of_another_process_is_refused() -> None:
    """A stream that is split for three processes would lose samples on one or two."""
    stream = Share(samples(8))
    stream.num_replicas = 3
    with pytest.raises(ConfigurationError, match="split for a different set of processes"):
        train(make_trainer(), stream, 2)


class DividedStream(Stream):
    """Each worker yields a share of its own."""

    @override
    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        number, of = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return (self.data[index] for index in range(number, len(self.data), of))


@pytest.mark.parametrize(("kind", "warns"), [(Stream, True), (DividedStream, False)])
def test_workers_that_all_read_the_whole_stream_are_warned_of(
    kind: type[Stream], warns: bool, recwarn: pytest.WarningsRecorder
) -> None:
    """A stream that asks for its worker is left alone; one that does not would yield each sample twice."""
    trainer = train(make_trainer(), kind(8), 1, train_dataloader_kwargs={"num_workers": 2})

    texts = [str(warning.message) for warning in recwarn if "get_worker_info" in str(warning.message)]
    assert trainer.num_updates_completed == 1
    assert len(texts) == warns
    assert all("Each of the 2 workers iterates over Stream" in text for text in texts)


def test_a_stream_with_a_state_gets_no_worker_by_default() -> None:
    """A worker would keep its position to itself, and a resumed run would read all of it again."""
    assert default_num_workers(StreamWithState(8), local_processes=1) == 0


SAMPLES = [16, 40, 24]
UPDATES = [2, 5, 3]


def train_stages(trainer: Trainer, num_epochs: int = 3, **options: Any) -> Trainer:
    """Train on batches of 8 on all processes together, in epochs of 2, 5 and 3 updates."""
    torch.manual_seed(1)
    settings: dict[str, Any] = {"per_device_batch_size": 8 // num_processes(), "order": Stages(SAMPLES)}
    trainer.train(samples(40), num_epochs, **{**settings, **options})
    return trainer


@pytest.mark.parametrize("are_equal", [True, False])
@pytest.mark.parametrize("accumulation_steps", [1, 3])
def test_what_is_counted_is_what_the_epochs_add_up_to(are_equal: bool, accumulation_steps: int) -> None:
    """Updates before an epoch, epochs of an update and ends of epochs agree with a count by hand."""
    steps = [7] * 6 if are_equal else [7, 2, 1, 9, 4, 5]
    lengths = EpochLengths(steps.__getitem__, accumulation_steps, are_equal=are_equal)
    updates = [math.ceil(number / accumulation_steps) for number in steps]

    assert [lengths.updates_before(epoch) for epoch in range(7)] == [sum(updates[:epoch]) for epoch in range(7)]
    by_hand = [epoch for epoch, number in enumerate(updates, start=1) for _ in range(number)]
    assert [lengths.epochs_for(update) for update in range(1, sum(updates) + 1)] == by_hand
    ends = [update for update in range(1, sum(updates) + 1) if lengths.is_end_of_epoch(update)]
    assert ends == [sum(updates[:epoch]) for epoch in range(1, 7)]
    assert lengths.mean_updates(4) == math.ceil(sum(updates[:4]) / 4)
    assert lengths.mean_steps(4) == math.ceil(sum(steps[:4]) / 4)


def test_equal_epochs_are_asked_for_once() -> None:
    """An order whose epochs are equal is asked for its first epoch alone, however many there are."""
    asked: list[int] = []

    def num_steps(epoch: int) -> int:
        asked.append(epoch)
        return 10

    lengths = EpochLengths(num_steps, are_equal=True)

    assert lengths.updates_before(1_000_000) == 10_000_000
    assert (lengths.epochs_for(95), lengths.is_end_of_epoch(100)) == (10, True)
    assert asked == [0]


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_run_has_the_updates_of_all_its_epochs() -> None:
    """The config has their sum and their mean, the placeholders too, and that many updates are made."""
    schedule = partial(
        StepLR, step_size=TrainerPlaceholderValues.NUM_EPOCHS * TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
    )

    trainer = train_stages(make_trainer(), create_scheduler_fn=schedule)

    config = trainer.run_config
    assert (config.num_epochs, config.max_num_train_steps, config.num_update_steps_per_epoch) == (3, 10, 4)
    assert isinstance(trainer.scheduler, StepLR)
    assert trainer.scheduler.step_size == 12
    assert (trainer.num_updates_completed, trainer.num_epochs_completed) == (10, 3)
    assert [trainer.epoch_lengths.updates_of(epoch) for epoch in range(3)] == UPDATES
    assert updates_of(trainer, "train_loss_epoch") == [2, 7, 10]


def test_displays_show_the_length_of_each_epoch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The line of an epoch names its batches, also of the one that is cut short; the first line the sum of updates."""
    trainers = [make_trainer(Trainer, display) for display in (PrintProgressCallback, ProgressBarCallback)]
    for trainer in trainers:
        train_stages(trainer)
    whole = capsys.readouterr().out
    for trainer in trainers:
        train_stages(trainer, num_epochs=1, max_num_train_steps=5)
    cut = capsys.readouterr().out

    assert "Training starts: 3 epochs of 4 updates on average, 10 updates, 8 samples per update" in whole
    assert [line.split(",")[0] for line in whole.splitlines() if " batches," in line] == [
        "Epoch 1: 2/2 batches",
        "Epoch 2: 5/5 batches",
        "Epoch 3: 3/3 batches",
    ]
    assert "Training starts: 2 epochs of 4 updates, at most 5 updates" in cut
    assert "Epoch 2: 3/3 batches" in cut

    saving = SaveTrainingStateCallback(tmp_path, save_every_n_steps=1)
    with pytest.raises(KilledError):
        train_stages(make_trainer(Trainer, saving, KillAt(4, "on_train_step_start")))
    resumed = make_trainer(Trainer, ProgressBarCallback())
    train_stages(resumed, num_epochs=1, max_num_train_steps=6, resume_from=tmp_path)
    assert "Epoch 2: 4/4 batches" in capsys.readouterr().out


def test_a_run_resumes_after_any_update_of_any_epoch(tmp_path: Path) -> None:
    """Killed after each of its updates, it trains on the rest of that epoch and of all others: the same batches."""
    note = NoteBatches()
    whole = train_stages(make_trainer(Trainer, note))
    for update in range(1, 10):
        resumed, before, after = killed_and_resumed(train_stages, tmp_path / str(update), update)
        assert before + after == note.trained
        torch.testing.assert_close(weights(resumed), weights(whole), rtol=0, atol=0)
        assert updates_of(resumed, "train_loss_epoch") == [2, 7, 10]


@pytest.mark.parametrize("order", [None, Stages(SAMPLES)])
def test_a_run_that_is_made_longer_again_and_again_trains_all_of_each_epoch(
    tmp_path: Path, order: Order | None
) -> None:
    """Each time it ends within an epoch, also in one that it was resumed in; then come the samples that are left."""
    note = NoteBatches()
    train_stages(make_trainer(Trainer, note), num_epochs=1, max_num_train_steps=9, order=order)

    def run(trainer: Trainer, updates: int, **resuming: Any) -> None:
        train_stages(trainer, 1, max_num_train_steps=updates, order=order, resume_missing="start", **resuming)

    assert batches_of_longer_and_longer_runs(run, tmp_path, 1, 4, 6, 9) == note.trained


def test_an_epoch_without_samples_is_refused_before_the_first_step() -> None:
    """The error says which epoch it is; nothing was trained."""
    note = NoteBatches()
    with pytest.raises(EmptyDatasetError, match="0 samples in epoch 1, counted from 0"):
        train_stages(make_trainer(Trainer, note), order=Stages([8, 0]))

    assert note.trained == []
