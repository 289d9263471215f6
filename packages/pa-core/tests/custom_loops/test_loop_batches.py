"""Updates over batches that the loop itself has are those of a plain loop, on one process and on two."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from typing_extensions import override

from pa_core import (
    ConfigurationError,
    NonFiniteLossError,
    ProgressBarCallback,
    Run,
    SaveTrainingStateCallback,
    TerminateOnNaNCallback,
    TrainerCallback,
    TrainerPlaceholderValues,
    TrainingPreempted,
    gather_objects,
)
from pa_core.distributed import num_processes, rank
from pa_core.testing import RecordingCallback
from tests.small_runs import linear
from tests.support.callbacks import KilledError
from tests.support.histories import moments
from tests.support.loops import updates_of
from tests.support.pa_core.custom_loops.loops import states_in

on_any = pytest.mark.runs_on("one_process", "two_ranks")

LENGTH, CHUNK, PER_BATCH = 10, 4, 4  # three chunks, the last of two steps
SEQUENCES = TensorDataset(torch.sin(torch.arange(9 * LENGTH).double()).reshape(9, LENGTH, 1))  # batches of 4, 4, 1


class Recurrent(nn.Module):
    """A recurrent network, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        torch.default_generator.manual_seed(0)
        self.layer = nn.GRU(1, 4, batch_first=True).double()
        self.head = nn.Linear(4, 1).double()

    @override
    def forward(self, inputs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        outputs, last = self.layer(inputs, state)
        return self.head(outputs), last


def make_run(model: nn.Module, data: Dataset[Any] = SEQUENCES, **options: Any) -> Run[Any, list[Tensor]]:
    """A run over the sequences, of two epochs."""
    settings: dict[str, Any] = {
        "num_epochs": 2,
        "max_updates_per_batch": 3,
        "train_dataloader_kwargs": {"num_workers": 0},
        **options,
    }
    optimizer = Adam(model.parameters(), lr=0.01)
    return Run(model, optimizer, data, per_device_batch_size=PER_BATCH // num_processes(), **settings)


def train_on_chunks(run: Run[Any, list[Tensor]]) -> list[int]:
    """Truncated backpropagation through time; return which updates were made."""
    made: list[int] = []
    with run:
        for (sequences,) in run.batches():
            run.log("amplitude", sequences.abs().mean())
            state: Tensor | None = None
            for update in run.updates(torch.split(sequences, CHUNK, dim=1)):
                for chunk in update:
                    outputs, state = run.model(chunk, state)
                    loss = (outputs - chunk).square().mean()
                    run.log("error", (outputs - chunk).abs().mean())
                    update.backward(loss * math.nan if run.is_padding_batch else loss)
                update.step()
                made.append(update.number)
                state = None if state is None else state.detach()
            run.log("shift", sequences.mean())
    return made


def train_by_hand(model: nn.Module, seed: int | None, *, chunks_per_update: int, norm: float) -> list[float]:
    """The same in plain PyTorch, with all samples of a batch on one process; return the losses."""
    optimizer = Adam(model.parameters(), lr=0.01)
    updates = 2 * 3 * math.ceil(3 / chunks_per_update)
    scheduler = OneCycleLR(optimizer, 0.05, total_steps=updates + 1)
    losses: list[float] = []
    for (sequences,) in updates_of(SEQUENCES, seed, 2, PER_BATCH):
        chunks, state = torch.split(sequences, CHUNK, dim=1), None
        for first in range(0, len(chunks), chunks_per_update):
            group = chunks[first : first + chunks_per_update]
            optimizer.zero_grad()
            for chunk in group:
                outputs, state = model(chunk, state)
                loss = (outputs - chunk).square().mean()
                torch.autograd.backward(loss / len(group), retain_graph=True)
                losses.append(float(loss.detach()) * len(sequences))
            nn.utils.clip_grad_norm_(model.parameters(), norm)
            optimizer.step()
            scheduler.step()
            state = None if state is None else state.detach()
    return losses


@on_any
@pytest.mark.parametrize("chunks_per_update", [1, 2])
def test_several_updates_out_of_one_batch(chunks_per_update: int) -> None:
    """Weights, losses, schedule and clock are those of a plain loop, where a process has no sequence, too."""
    model, expected = Recurrent(), Recurrent()
    per_epoch = TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH
    updates = 2 * 3 * math.ceil(3 / chunks_per_update)
    run = make_run(
        model,
        gradient_clip_norm=0.2,
        gradient_accumulation_steps=chunks_per_update,
        max_updates_per_batch=math.ceil(3 / chunks_per_update),
        create_scheduler_fn=partial(OneCycleLR, max_lr=0.05, total_steps=2 * per_epoch + 1),
    )
    if chunks_per_update == 2:
        train_on_pairs(run)
    else:
        assert train_on_chunks(run) == list(range(1, updates + 1))
    losses = train_by_hand(expected, run.run_config.seed, chunks_per_update=chunks_per_update, norm=0.2)
    exact = num_processes() == 1 and chunks_per_update == 1
    tolerance = 0.0 if exact else 1e-12
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=tolerance)
    assert run.num_updates_completed == run.run_config.max_num_train_steps == updates
    assert (run.run_history.clock.update, run.run_history.clock.samples) == (updates, 18)
    means = [sum(part) / 27 for part in (losses[:9], losses[9:])]
    assert run.run_history.get_metric_values("train_loss_epoch") == pytest.approx(means)
    if chunks_per_update == 1:
        (values,) = SEQUENCES.tensors
        assert run.run_history.get_latest_metric("train_amplitude_epoch") == pytest.approx(float(values.abs().mean()))
        assert run.run_history.get_latest_metric("train_shift_epoch") == pytest.approx(float(values.mean()))


def train_on_pairs(run: Run[Any, list[Tensor]]) -> None:
    """Gradients flow through two chunks, which are batches of one update."""
    with run:
        for (sequences,) in run.batches():
            state: Tensor | None = None
            for update in run.updates(torch.split(sequences, CHUNK, dim=1)):
                for chunk in update:
                    outputs, state = run.model(chunk, state)
                    update.backward((outputs - chunk).square().mean(), retain_graph=True)
                update.step()
                state = None if state is None else state.detach()


POINTS = TensorDataset(torch.linspace(-1, 1, 16).double().reshape(8, 2))


def shares(whole: Tensor) -> list[Tensor]:
    """Batches of this process: on two, the first has three of them, and the other has one or none."""
    pieces = [whole[:3], whole[3:4], whole[2:]]
    if num_processes() == 1:
        return pieces
    return [whole[:1], *pieces[1:]] if rank() == 0 else [whole[1:3]] if whole[0, 0] > 0 else []


def assert_trained_on(model: nn.Module, batches: list[Tensor], errors: Callable[[Tensor], Tensor]) -> None:
    """Weights are those of a plain loop over batches, of which each is an update."""
    expected = linear()
    optimizer = Adam(expected.parameters(), lr=0.01)
    for batch in batches:
        optimizer.zero_grad()
        torch.autograd.backward(errors(expected(batch)).mean())
        optimizer.step()
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=1e-12)


@on_any
@pytest.mark.parametrize("of_kind", [list[Tensor], iter])
def test_processes_with_different_numbers_of_batches_or_none(of_kind: Any) -> None:
    """An update is the mean over the samples of all processes; one without any gets a batch that weighs nothing."""
    model, empty = linear(), 0
    with make_run(model, POINTS) as run:
        for (points,) in run.batches():
            whole = run.gather(points)
            for batch in run.batches(of_kind(shares(whole))):
                empty += run.is_padding_batch
                run.backward((run.model(batch).square() + run.model(batch)).mean())
                run.step()
    parts: list[Tensor] = []
    for (whole,) in updates_of(POINTS, run.run_config.seed, 2, PER_BATCH):
        parts += [whole[:3] if num_processes() == 1 or whole[0, 0] > 0 else whole[:1], whole[3:4], whole[2:]]
    assert_trained_on(model, parts, lambda outputs: outputs.square() + outputs)
    assert run.num_updates_completed == 12
    assert empty >= 8 * rank()


Pair = dict[str, nn.Linear]


def make_pair() -> tuple[Pair, dict[str, SGD]]:
    """Two models and their optimizers."""
    models = {name: linear() for name in ("actor", "critic")}
    return models, {name: SGD(model.parameters(), lr=0.1) for name, model in models.items()}


def losses_of(pair: Pair, batch: Tensor) -> dict[str, Tensor]:
    """What each of them learns from."""
    values = pair["critic"](batch)
    return {"critic": (values - 1).square().mean(), "actor": (pair["actor"](batch) - values).square().mean()}


def trained_in(update: int) -> list[str]:
    """The actor learns in every second update."""
    return ["critic"] if update % 2 else ["critic", "actor"]


@on_any
def test_two_models_learn_from_a_buffer_that_grows() -> None:
    """The buffer is the same on all processes, each trains on its share; an optimizer steps in some updates only."""
    models, optimizers = make_pair()
    settings: dict[str, Any] = {"num_epochs": 2, "per_device_batch_size": PER_BATCH // num_processes()}
    buffer = torch.empty(0, 2).double()
    noted: list[int] = []
    with Run(models, optimizers, POINTS, max_updates_per_batch=4, **settings) as run:
        for (points,) in run.batches():
            buffer = torch.cat([buffer, run.gather(points)])
            samples = (buffer[start::3][rank() :: num_processes()] for start in range(3) if len(buffer) > PER_BATCH)
            for update in run.updates(samples):
                for batch in update:
                    losses = losses_of(models, batch)
                    for name in trained_in(update.number):
                        update.backward(losses[name], model=name, retain_graph=name == "critic")
                for name in trained_in(update.number):
                    update.step(name)
            noted.append(run.num_updates_completed)
    assert noted == [0, 3, 6, 9]
    torch.testing.assert_close(
        weights_of(models), weights_of(replayed_by_hand(run.run_config.seed)), rtol=0, atol=1e-12
    )


def weights_of(pair: Pair) -> dict[str, dict[str, Tensor]]:
    """The weights of both."""
    return {name: model.state_dict() for name, model in pair.items()}


def replayed_by_hand(seed: int | None) -> Pair:
    """The same in plain PyTorch, on one process."""
    models, optimizers = make_pair()
    buffer, update = torch.empty(0, 2).double(), 0
    for (points,) in updates_of(POINTS, seed, 2, PER_BATCH):
        buffer = torch.cat([buffer, points])
        for start in range(3 if len(buffer) > PER_BATCH else 0):
            update += 1
            losses = losses_of(models, buffer[start::3])
            for name in trained_in(update):
                torch.autograd.backward(losses[name], inputs=list(models[name].parameters()), retain_graph=True)
            for name in trained_in(update):
                optimizers[name].step()
                optimizers[name].zero_grad()
    return models


def learn(run: Run[Any, Any], batch: Tensor) -> None:
    """One update with a loss."""
    run.backward((run.model(batch) - 1).square().mean())
    run.step()


@on_any
def test_the_batch_itself_may_make_an_update_too() -> None:
    """Before those of other batches, or after them; gradients do not mix, and all of them count."""
    model = linear()
    with make_run(model, POINTS, num_epochs=1) as run:
        for (points,) in run.batches():
            if run.num_updates_completed == 0:
                learn(run, points)
            for other in run.batches([points * 2, points * 3]):
                learn(run, other)
            if run.num_updates_completed == 5:
                learn(run, points)
    (first,), (second,) = updates_of(POINTS, run.run_config.seed, 1, PER_BATCH)
    parts = [first, first * 2, first * 3, second * 2, second * 3, second]
    assert_trained_on(model, parts, lambda outputs: (outputs - 1).square())
    assert (run.num_updates_completed, run.run_history.clock.samples) == (6, 8)


@on_any
def test_the_run_ends_with_its_last_update_wherever_that_is() -> None:
    """The loop over the batches of the script ends, and so does the run; the rest of the body is run."""
    ends: list[int] = []
    with make_run(linear(), POINTS, max_num_train_steps=4) as run:
        for (points,) in run.batches():
            for other in run.batches([points, points, points]):
                learn(run, other)
            ends.append(run.num_updates_completed)
    assert ends == [3, 4]


class Endless(IterableDataset[tuple[Tensor]]):
    """Episodes without end."""

    @override
    def __iter__(self) -> Iterator[tuple[Tensor]]:
        while True:
            yield (torch.rand(2).double(),)


def test_batches_of_a_stream_make_several_updates_each() -> None:
    """A run of a given number of updates takes as much of the stream as it needs."""
    batches = 0
    with make_run(linear(), Endless(), max_num_train_steps=7) as run:
        for (points,) in run.batches():
            batches += 1
            for other in run.batches([points, points, points]):
                learn(run, other)
    assert (batches, run.num_updates_completed) == (3, 7)


@on_any
def test_a_break_leaves_the_batches_of_the_script_only() -> None:
    """The gradients of an update without a step are gone, and the next batch comes."""
    model = linear()
    with make_run(model, POINTS, num_epochs=1) as run:
        for (points,) in run.batches():
            for number, other in enumerate(run.batches([points, points, points])):
                if number == 1:
                    run.backward((run.model(other) - 100).square().mean())
                    break
                learn(run, other)
    parts = [points for (points,) in updates_of(POINTS, run.run_config.seed, 1, PER_BATCH)]
    assert_trained_on(model, parts, lambda outputs: (outputs - 1).square())
    assert run.num_updates_completed == 2


@on_any
@pytest.mark.parametrize(("when", "updates"), [("before backward", 1), ("before step", 1), ("after step", 2)])
def test_one_process_may_ask_to_stop(when: str, updates: int) -> None:
    """Before a step it keeps the update from being made, after it the next one, on any number of processes."""
    with make_run(linear(), POINTS) as run:
        for (points,) in run.batches():
            for number, other in enumerate(run.batches([points, points, points])):
                asks = number == 1 and rank() == num_processes() - 1
                if asks and when == "before backward":
                    run.request_stop()
                run.backward(run.model(other).mean())
                if asks and when == "before step":
                    run.request_stop()
                run.step()
                if asks and when == "after step":
                    run.request_stop()
    assert gather_objects(run.num_updates_completed) == [updates] * num_processes()


def test_a_request_to_stop_outside_of_the_block_is_warned_of() -> None:
    """There is no run to stop, neither before the block nor after it."""
    run = make_run(linear(), POINTS, num_epochs=1)
    with pytest.warns(UserWarning, match=r"request_stop\(\) has no effect outside"):
        run.request_stop()
    with run:
        for (points,) in run.batches():
            learn(run, points)
    assert run.num_epochs_completed == 1
    with pytest.warns(UserWarning, match=r"request_stop\(\) has no effect outside"):
        run.request_stop()


@on_any
def test_a_loss_that_is_not_finite_keeps_its_update_from_being_made() -> None:
    """In the middle of a batch, and on one process alone."""
    model = linear()
    weights: list[Tensor] = []
    run = make_run(model, POINTS, callbacks=[TerminateOnNaNCallback])
    with pytest.raises(NonFiniteLossError), run:
        for (points,) in run.batches():
            for number, other in enumerate(run.batches([points, points, points])):
                is_bad = number == 1 and rank() == num_processes() - 1
                run.backward(run.model(other * (math.nan if is_bad else 1)).mean())
                run.step()
                weights.append(model.weight.detach().clone())
    torch.testing.assert_close([model.weight.detach()], weights, rtol=0, atol=0)


def test_callbacks_are_told_of_each_batch_of_the_script() -> None:
    """In place of the batch around them, which has trained nothing itself."""
    recorder = RecordingCallback()
    with make_run(linear(), POINTS, num_epochs=1, callbacks=[recorder]) as run:
        for (points,) in run.batches():
            for other in run.batches(torch.split(points, 3)[: 2 if run.num_updates_completed == 0 else 0]):
                learn(run, other)
    assert [event for event in recorder.events if "_step_" in event] == [
        "on_train_step_start",
        *["on_train_step_end", "on_optimizer_step_end"] * 2,
        "on_train_step_start",
    ]
    ends = [told for told in recorder.arguments if "batch" in told]
    sizes = [(len(end["batch"]), end["batch_output"]["batch_size"], end["step"]) for end in ends]
    assert sizes == [(3, 3, 1), (1, 1, 1)]


def test_the_progress_bar_has_no_end_that_it_would_pass(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """How many batches the loop has is known only when they have been."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.delenv("TERM", raising=False)
    with make_run(linear(), POINTS, num_epochs=1, callbacks=[ProgressBarCallback]) as run:
        for (points,) in run.batches():
            for other in run.batches([points] * 3):
                learn(run, other)
    shown = capfd.readouterr().err
    assert "6/?" in shown
    assert "/2" not in shown


def test_samples_are_counted_as_the_script_says() -> None:
    """Where the first dimension is that of time: losses are weighed by the number that is passed."""
    with make_run(linear(), POINTS, num_epochs=1, max_num_train_steps=2) as run:
        for (points,) in run.batches():
            for number, other in enumerate([points[:1], points]):
                for batch in run.batches([other], num_samples=1 + 2 * number):
                    run.backward(run.model(batch).mean() * 0 + number)
                    run.step()
    assert run.run_history.get_latest_metric("train_loss_epoch") == 0.75


def _go_over(run: Run[Any, Any], batches: Any, *, steps: bool = False, **options: Any) -> None:
    for _ in run.batches():
        for batch in run.batches(batches, **options):
            if steps:
                learn(run, batch)


def _between(run: Run[Any, Any]) -> None:
    for (points,) in run.batches():
        run.backward(run.model(points).mean())
        list(run.batches([points]))


def _two_steps(run: Run[Any, Any]) -> None:
    for (points,) in run.batches():
        for part in torch.split(points, 2):
            learn(run, part)


def _without_a_batch(run: Run[Any, Any]) -> None:
    list(run.batches([ONES]))


def _nothing(run: Run[Any, Any]) -> None:
    list(run.batches())


ONES = torch.ones(4, 2).double()
MISTAKES: dict[str, tuple[Callable[[Run[Any, Any]], None], str]] = {
    "a tensor": (partial(_go_over, batches=ONES), r"run\.batches\(\[batch\]\)"),
    "a mapping": (partial(_go_over, batches={"inputs": ONES}), r"run\.batches\(\[batch\]\)"),
    "a dataset": (partial(_go_over, batches=POINTS), "several batches"),
    "too many": (
        partial(_go_over, batches=[ONES] * 4, steps=True),
        r"Update 4 of a batch[\s\S]*max_updates_per_batch=4\)",
    ),
    "a step that is forgotten": (partial(_go_over, batches=[ONES, ONES]), "without a step"),
    "no samples": (partial(_go_over, batches=[ONES], num_samples=0), "num_samples"),
    "between a backward pass and its step": (_between, "between the backward pass and the step of update"),
    "outside of a batch": (_without_a_batch, "No update is in progress"),
    "no step at all": (_nothing, "without a step"),
    "a step of each part": (_two_steps, r"several updates from a batch(.|\n)*run\.batches\(parts\)"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_with_their_remedy(name: str) -> None:
    """What would count, add up or train other than the script says."""
    mistake, message = MISTAKES[name]
    with pytest.raises(ConfigurationError, match=message), make_run(linear(), POINTS) as run:
        mistake(run)


def test_how_many_updates_come_of_a_batch_is_to_be_said() -> None:
    """The length of the run is counted with it, and that of schedules."""
    run = make_run(linear(), POINTS, max_updates_per_batch=None)
    with pytest.raises(ConfigurationError, match=r"max_updates_per_batch=4\)"), run:
        _go_over(run, [])
    with pytest.raises(ConfigurationError, match=r"max_updates_per_batch must be .* got 0"):
        make_run(linear(), POINTS, max_updates_per_batch=0)


class Buffer:
    """What was seen so far, and a stream of draws of its own."""

    def __init__(self) -> None:
        self.rows = torch.empty(0, LENGTH, 1).double()
        self.generator = torch.Generator()

    def sample(self, number: int) -> Tensor:
        """Draw rows."""
        return self.rows[torch.randint(len(self.rows), (number,), generator=self.generator)]

    def state_dict(self) -> dict[str, Any]:
        """Return all of it."""
        return {"rows": self.rows, "generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it over."""
        self.rows = state_dict["rows"]
        self.generator.set_state(state_dict["generator"])


def replay(run: Run[Any, list[Tensor]], *, dies_at: int | None = None, is_preempted_at: int | None = None) -> Any:
    """A loop with a buffer that grows, which draws, and fails in the middle of a batch; return what it ended with."""
    buffer = Buffer()
    run.register_for_checkpointing(buffer)
    with run:
        for (sequences,) in run.batches():
            buffer.rows = torch.cat([buffer.rows, sequences + torch.rand(())])
            for batch in run.batches(buffer.sample(3) for _ in range(3)):
                outputs, _ = run.model(batch, None)
                run.backward((outputs - batch * torch.rand(())).square().mean())
                run.step()
                if run.num_updates_completed == dies_at:
                    raise KilledError
                if run.num_updates_completed == is_preempted_at:
                    run.request_preemption()
    return {
        "weights": [value.tolist() for value in run.model.state_dict().values()],
        "optimizer": str(run.optimizer.state_dict()),
        "history": moments(run),
        "buffer": buffer.rows.tolist(),
        "draws": (torch.get_rng_state().tolist(), buffer.generator.get_state().tolist()),
    }


def _replaying(*callbacks: TrainerCallback, seed: int = 1, **options: Any) -> Run[Any, list[Tensor]]:
    model = Recurrent()
    torch.default_generator.manual_seed(seed)
    return make_run(model, callbacks=callbacks, **options)


@pytest.mark.parametrize("dies_at", [4, 8, 10, 11, 18])
def test_a_loop_that_fails_within_a_batch_resumes_bit_for_bit(tmp_path: Path, dies_at: int) -> None:
    """From the last state before the batch, with the buffer as it was; after an epoch as in the middle of one."""
    expected = replay(_replaying())
    with pytest.raises(KilledError):
        replay(_replaying(SaveTrainingStateCallback(tmp_path, save_every_n_steps=2)), dies_at=dies_at)
    assert states_in(tmp_path)
    resumed = _replaying(seed=7, resume_from=tmp_path)
    assert replay(resumed) == expected
    assert replay(_replaying(SaveTrainingStateCallback(tmp_path), seed=3, resume_from=tmp_path)) == expected


def test_a_preemption_waits_for_the_end_of_the_batch(tmp_path: Path) -> None:
    """Whichever update asks for it: only there does a state have all that the loop goes on with."""
    expected = replay(_replaying())
    for asked_at, saved_at in ((1, 3), (8, 9), (12, 12)):
        run = _replaying(SaveTrainingStateCallback(tmp_path), resume_from=tmp_path, resume_missing="start")
        with pytest.raises(TrainingPreempted):
            replay(run, is_preempted_at=asked_at)
        assert run.num_updates_completed == saved_at
    assert replay(_replaying(seed=5, resume_from=tmp_path)) == expected
