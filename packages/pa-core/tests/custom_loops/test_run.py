"""A loop of one's own trains as the trainer does, on one process and on two, and resumes as if it had not ended."""

from __future__ import annotations

import json
import warnings
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader
from typing_extensions import override

from pa_checkpoint import Folder
from pa_core import AnyTrainer, BatchOutputError, Run, SaveTrainingStateCallback, StopTrainingError, Trainer
from pa_core.testing import RecordingCallback
from tests.launching import Launch
from tests.small_runs import NoteBatches, linear, samples
from tests.support.callbacks import KilledError
from tests.support.histories import moments
from tests.support.pa_core.custom_loops import on_two_ranks
from tests.support.pa_core.custom_loops.loops import (
    BATCH_SIZE,
    SAMPLES,
    fingerprint,
    make_line,
    make_run,
    make_update,
    seed_all,
    step_through,
    train,
)
from tests.support.pa_core.training_states.small_runs import DrawingDataset, DropoutNetwork, SampleLog, cosine, log_of


def list_of_images(drawn: list[Any]) -> dict[str, Any]:
    """A batch of images that differ in their sizes, so that they are not stacked."""
    return {"images": [torch.ones(3, 5) for _ in drawn], "targets": torch.ones(len(drawn))}


class TestTheEngine:
    """What ``Trainer`` and ``Run`` share."""

    def test_it_trains_as_the_trainer_does_to_the_last_bit(self) -> None:
        """The same samples in the same order, draws, weights, schedule and metrics on the same clock."""
        seed_all(1)
        model = DropoutNetwork()
        trainer = Trainer(model, nn.CrossEntropyLoss(), Adam(model.parameters(), lr=0.01), callbacks=[SampleLog])
        trainer.train(
            DrawingDataset(SAMPLES),
            num_epochs=3,
            per_device_batch_size=BATCH_SIZE,
            gradient_accumulation_steps=2,
            create_scheduler_fn=cosine,
        )
        run = make_run()
        with run:
            for _ in run.epochs():
                run.model.train()
                for inputs, targets in run.batches():
                    run.backward(nn.functional.cross_entropy(run.model(inputs), targets))
                    run.step()

        assert log_of(run).steps == log_of(trainer).steps
        for ours, theirs in zip(run.model.state_dict().values(), model.state_dict().values(), strict=True):
            assert torch.equal(ours, theirs)
        assert run.scheduler is not None
        assert trainer.scheduler is not None
        assert run.scheduler.state_dict() == trainer.scheduler.state_dict()
        assert moments(run) == moments(trainer)
        assert run.num_updates_completed == trainer.num_updates_completed == 12

    def test_losses_that_are_means_over_tokens_count_by_tokens(self) -> None:
        """With ``num_items``, the gradient of an update is that of the mean over its items."""
        run = make_line(number=8, gradient_accumulation_steps=2, train_dataloader_kwargs={"shuffle": False})
        with run:
            for update in run.updates():
                for (inputs, targets), items in zip(update, (3, 1), strict=True):
                    loss = (run.model(inputs[:items]) - targets[:items]).square().mean()
                    update.backward(loss, num_items=items)
                update.step()
        expected, (inputs, targets) = linear(), samples(8).tensors
        rows = torch.tensor([0, 1, 2, 4])
        optimizer = SGD(expected.parameters(), lr=0.1)
        (expected(inputs[rows]) - targets[rows]).square().mean().backward()
        optimizer.step()
        torch.testing.assert_close(run.model.weight, expected.weight, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("accumulation", [1, 2])
    def test_two_backward_passes_count_their_items_once(self, accumulation: int) -> None:
        """Their losses add up, however many batches an update has."""
        options: dict[str, Any] = {"gradient_accumulation_steps": accumulation}
        weights: list[Tensor] = []
        for num_passes in (1, 2):
            run = make_line(8, 0.01, **options)
            with run:
                for inputs, targets in run.batches():
                    for _ in range(num_passes):
                        loss = (run.model(inputs) - targets).square().mean() * (2 / num_passes)
                        run.backward(loss, num_items=len(inputs))
                    run.step()
            weights.append(run.model.weight.detach())
        torch.testing.assert_close(weights[0], weights[1])

    def test_two_backward_passes_with_other_items_are_refused(self) -> None:
        """Their mean could be over one number of items only."""
        run = make_line()
        with pytest.raises(BatchOutputError, match="num_items=4 in its first backward pass, and num_items=3"), run:
            for inputs, _ in run.batches():
                run.backward(run.model(inputs).mean(), num_items=4)
                run.backward(run.model(inputs).mean(), num_items=3)

    def test_a_step_says_whether_it_updated(self) -> None:
        """Within an accumulation group it does nothing, and returns False; the last group of an epoch may be short."""
        run = make_line(gradient_accumulation_steps=2)
        stepped: list[bool] = []
        with run:
            for inputs, targets in run.batches():
                run.backward((run.model(inputs) - targets).square().mean())
                stepped.append(run.step())
        assert stepped == [False, True, True]

    def test_a_batch_whose_tensors_differ_in_length_is_warned_of(self) -> None:
        """Once: losses would be weighted with the wrong number of samples, and nothing else would tell."""
        loader = DataLoader(samples(4), batch_sampler=[[0, 1], [2, 3]], collate_fn=list_of_images)
        model = linear()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("default")
            with Run(model, SGD(model.parameters(), lr=0.01), loader, num_epochs=2) as run:
                for _ in run.batches():
                    run.backward(model(torch.ones(2, 2).double()).square().mean())
                    run.step()
        assert len([one for one in said if "differ in their first dimension" in str(one.message)]) == 1

    def test_a_schedule_follows_a_metric_of_the_epochs(self) -> None:
        """Which the loop evaluates."""
        plateau = make_line(
            create_scheduler_fn=partial(ReduceLROnPlateau, patience=0), watch_metric="eval_loss_epoch", num_epochs=3
        )
        with plateau:
            for _ in plateau.epochs():
                step_through(plateau)
                for _ in plateau.evaluation_batches(samples(4)):
                    plateau.log("loss", 1.0)
        assert plateau.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


class TestEvents:
    """The events that callbacks get of a foreign loop."""

    def test_the_order_of_events(self) -> None:
        """As in train(), with the evaluation where the loop has it."""
        events = RecordingCallback()
        run = make_line(number=8, callbacks=[events])
        with run:
            for _ in run.epochs():
                step_through(run)
                for _ in run.evaluation_batches(samples(4)):
                    run.log("loss", 1.0)
        step = ["on_train_step_start", "on_train_step_end", "on_optimizer_step_end"]
        assert events.events == [
            *("on_init_end", "on_prepare_start", "on_training_run_start", "on_train_epoch_start"),
            *(*step, *step, "on_train_epoch_end"),
            *("on_eval_epoch_start", "on_eval_step_start", "on_eval_step_end", "on_eval_epoch_end"),
            *("on_training_run_epoch_end", "on_training_run_end"),
        ]

    def test_callbacks_get_the_batch_and_its_loss(self) -> None:
        """``on_train_step_end`` has what was passed to backward, ``on_eval_step_end`` what was logged as the loss."""
        losses: list[float] = []

        class NoteLosses(NoteBatches):
            @override
            def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
                super().on_train_step_end(trainer, batch, batch_output, **kwargs)
                losses.append(float(batch_output["loss"]))
                assert batch_output["batch_size"] == len(batch[0])

        notes, expected = NoteLosses(), []
        run = make_line(callbacks=[notes])
        with run:
            for update in run.updates():
                for inputs, targets in update:
                    loss = (run.model(inputs) - targets).square().mean()
                    expected.append(loss.item())
                    update.backward(loss)
                update.step()
            for _ in run.evaluation_batches(samples(6)):
                pass
        assert sorted(number for batch in notes.trained for number in batch) == list(range(10))
        assert notes.evaluated == list(range(6))
        assert losses == expected


class TestEndings:
    """How a loop can end."""

    def test_a_stop_ends_the_block_in_silence(self) -> None:
        """A StopTrainingError of the loop, or of a callback, ends the run through its last events."""
        events = RecordingCallback()
        run = make_line(callbacks=[events], num_epochs=5)
        with run:
            for _ in run.epochs():
                step_through(run)
                raise StopTrainingError("enough")
        assert events.events[-2:] == ["on_stop_training_error", "on_training_run_end"]
        assert run.num_updates_completed == 3

    def test_an_exception_leaves_the_block(self) -> None:
        """Callbacks close what is open; nothing of the run continues."""
        events = RecordingCallback()
        run = make_line(callbacks=[events])
        with pytest.raises(KeyError), run:
            for _ in run.updates():
                raise KeyError("of the script")
        assert events.events[-1] == "on_exception"
        assert all(parameter.grad is None for parameter in run.model.parameters())

    def test_a_break_leaves_the_epoch_or_the_run(self) -> None:
        """Out of the updates, the epoch is over; out of the epochs, the run is."""
        events = RecordingCallback()
        run = make_line(num_epochs=5, callbacks=[events])
        with run:
            for epoch in run.epochs():
                for update in run.updates():
                    make_update(run, update)
                    if update.number == 2:
                        break
                if epoch == 1:
                    break
        assert run.num_updates_completed == 5
        assert run.num_epochs_completed == 1
        assert events.events.count("on_train_epoch_end") == 2
        assert events.events[-1] == "on_training_run_end"

    def test_a_break_between_the_batches_of_an_update_leaves_no_gradients(self) -> None:
        """What was accumulated is dropped with the update."""
        run = make_line(gradient_accumulation_steps=3, num_epochs=2)
        with run:
            for epoch in run.epochs():
                for update in run.updates():
                    for inputs, targets in update:
                        assert epoch or run.model.weight.grad is None
                        update.backward((run.model(inputs) - targets).square().mean())
                        break
                    break
                assert run.num_updates_completed == 0
                assert run.model.weight.grad is not None
        assert run.model.weight.grad is None


def test_a_run_that_accelerate_is_told_to_compile_says_that_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop calls the model that it has; a model that is compiled already is what accelerate asks for."""
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "AOT_EAGER")
    with pytest.warns(UserWarning, match=r"model = torch\.compile\(model\)"), make_line() as run:
        step_through(run)
    model: Any = torch.compile(linear(), backend="aot_eager")
    compiled: Run[Any, Any] = Run(model, SGD(model.parameters(), lr=0.1), samples(4), num_epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with compiled:
            pass


class TestMemory:
    """What a run keeps of its batches."""

    @pytest.mark.parametrize("is_custom", [False, True])
    @pytest.mark.parametrize("breaks", [False, True])
    def test_no_batch_stays_after_its_loop(self, is_custom: bool, breaks: bool) -> None:
        """Nor after the block, although the script has the run and its last update: a batch takes device memory."""
        options: dict[str, Any] = {"gradient_accumulation_steps": 2, "num_epochs": 2}
        if is_custom:
            model = linear()
            run = Run(model, SGD(model.parameters(), lr=0.01), DataLoader(samples(20), batch_size=4), **options)
        else:
            run = make_line(20, lr=0.01, **options)
        batches: list[weakref.ref[Tensor]] = []

        def alive() -> list[int]:
            return [number for number, batch in enumerate(batches) if batch() is not None]

        update = inputs = targets = _ = None
        with run:
            for _ in run.epochs():
                for update in run.updates():
                    for inputs, targets in update:
                        batches.append(weakref.ref(inputs))
                        update.backward((run.model(inputs) - targets).square().mean())
                        if breaks and len(batches) % 3 == 0:
                            break
                    inputs = targets = None
                    if breaks and len(batches) % 3 == 0:
                        break
                    update.step()
                for inputs, _ in run.evaluation_batches(samples(4)):
                    batches.append(weakref.ref(inputs))
                    if breaks:
                        break
                inputs = _ = None
            assert alive() == []
        assert alive() == []
        assert update is not None


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Any]:
    """What an uninterrupted run ends with."""
    run = make_run()
    train(run)
    return fingerprint(run)


@pytest.mark.parametrize("dies_at", [1, 3, 4, 5, 8, 11])
def test_a_loop_that_fails_anywhere_resumes_bit_for_bit(
    tmp_path: Path, uninterrupted: dict[str, Any], dies_at: int
) -> None:
    """Weights, optimizer, schedule, history, samples, draws and random streams are those of the whole run."""
    with pytest.raises(KilledError):
        train(make_run(SaveTrainingStateCallback(tmp_path, save_every_n_steps=1)), dies_at=dies_at)
    assert Folder(tmp_path).records()[-1].update == dies_at - 1 if dies_at > 1 else True

    resumed = make_run(seed=7, resume_from=tmp_path, resume_missing="start")
    train(resumed)
    expected = uninterrupted
    if dies_at == 1:  # nothing was saved: a new run begins, with its own seed
        other = make_run(seed=7)
        train(other)
        expected = fingerprint(other)
    assert fingerprint(resumed) == expected


def test_a_run_that_is_interrupted_again_and_again_comes_to_the_same_end(
    tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """States of resumed runs are as good as those of the first one, with states after epochs and with workers too."""
    workers = {"num_workers": 2}
    for dies_at in (3, 6, 7, 10):
        save = SaveTrainingStateCallback(tmp_path, save_every_n_steps=2, save_every_n_epochs=1, max_checkpoints=2)
        seed = 1 if dies_at == 3 else dies_at
        run = make_run(save, seed=seed, resume_from=tmp_path, resume_missing="start", train_dataloader_kwargs=workers)
        with pytest.raises(KilledError):
            train(run, dies_at=dies_at)
    last = make_run(seed=9, resume_from=tmp_path, train_dataloader_kwargs=workers)
    train(last)
    assert fingerprint(last) == uninterrupted


def test_a_complete_run_is_not_run_again(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    """Its loop has no epoch any more, however often it begins, and everything is as it had ended."""
    train(make_run(SaveTrainingStateCallback(tmp_path)))
    again = make_run(SaveTrainingStateCallback(tmp_path), seed=5, resume_from=tmp_path)
    train(again)
    assert again.was_complete
    assert fingerprint(again) == uninterrupted
    assert [record.path.name for record in Folder(tmp_path).records()] == ["final"]
    with make_run(resume_from=tmp_path) as again:
        for _ in range(2):
            assert list(again.batches()) == []


def test_what_is_registered_before_the_loop_is_restored(tmp_path: Path) -> None:
    """An object that is registered within the block, before the loop, has its state when the loop begins."""
    run = make_run(SaveTrainingStateCallback(tmp_path))
    average = torch.nn.Linear(1, 1)
    with run:
        run.register_for_checkpointing(average)
        for inputs, _ in run.batches():
            run.backward(run.model(inputs).square().mean())
            run.step()
        average.weight.data.fill_(3.0)
    resumed = make_run(resume_from=tmp_path)
    other = torch.nn.Linear(1, 1)
    with resumed:
        resumed.register_for_checkpointing(other)
        assert list(resumed.updates()) == []
    assert other.weight.item() == 3.0


ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the loops end with on one process, and on two."""
    folder = tmp_path_factory.mktemp("ranks")
    launch, script, env = Launch(folder), Path(on_two_ranks.__file__), {"PYTHONPATH": str(ROOT)}
    for ranks in (1, 2):
        launched = launch(script, str(folder / f"{ranks}.json"), str(ranks), ranks=ranks, env=env)
        assert launched.status == 0
    return [json.loads((folder / f"{ranks}.json").read_text()) for ranks in (1, 2)]


def _close(one: Any, other: Any) -> None:
    torch.testing.assert_close(
        [torch.tensor(value, dtype=torch.float64) for value in one],
        [torch.tensor(value, dtype=torch.float64) for value in other],
        rtol=1e-12,
        atol=1e-12,
    )


CRITICS = ["critic, sum", "critic, penalty last", "critic, penalty first"]
NAMES = ["uneven", "one_sample", "one_sample_of_many", "passes", "freezes", *CRITICS]


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_are_one(results: list[dict[str, Any]], name: str) -> None:
    """Weights and metrics are equal to 1e-12, with the same samples on the same clock."""
    one, two = (result[name] for result in results)
    _close(one["weights"], two["weights"])
    assert [record[0] for record in one["history"]] == [record[0] for record in two["history"]]
    assert [record[2:] for record in one["history"]] == [record[2:] for record in two["history"]]
    _close([[record[1]] for record in one["history"]], [[record[1]] for record in two["history"]])


def test_all_ranks_end_alike(results: list[dict[str, Any]]) -> None:
    """Weights, metrics and counts are the same on each rank."""
    assert results[1]["same"]


def test_each_sample_is_seen_once(results: list[dict[str, Any]]) -> None:
    """In each epoch, and in the evaluation, also where a rank gets a batch that weighs nothing."""
    for result in results:
        assert result["uneven"]["seen"] == sorted([number / 10 for number in range(21)] * 2)
        assert result["uneven"]["evaluated"] == [number / 10 for number in range(21)]
    assert [result["uneven"]["empty"] for result in results] == [0, 2]


def test_a_batch_that_stands_in_has_no_rows_in_what_is_gathered(results: list[dict[str, Any]]) -> None:
    """In training as in evaluations, each sample is gathered once, also a number such as the loss."""
    for result in results:
        assert result["uneven"]["gathered"] == sorted([number / 10 for number in range(21)] * 2)
        for name in ("one_sample", "one_sample_of_many"):
            assert result[name]["gathered"] == [[0.0], [0.0], [0.0]] * 2


def test_fewer_samples_than_ranks_are_evaluated(results: list[dict[str, Any]]) -> None:
    """The rank without one has a batch that weighs nothing, which the body can tell and callbacks do not see."""
    for name in ("one_sample", "one_sample_of_many"):
        assert [result[name]["empty"] for result in results] == [0, 2]
        assert [result[name]["steps"] for result in results] == [2, 2]


def test_samples_that_accelerate_repeats_are_warned_of(results: list[dict[str, Any]]) -> None:
    """A stream is split by accelerate, which repeats samples at its end: in a run as in train()."""
    assert results[0]["stream"] == {"warnings": [], "samples": {"run": 21, "trainer": 21}}
    assert results[1]["stream"]["samples"] == {"run": 22, "trainer": 22}
    assert len(results[1]["stream"]["warnings"]) == 2
    assert all("repeats samples" in one for one in results[1]["stream"]["warnings"])


def test_the_passes_of_an_update_may_be_in_any_order(results: list[dict[str, Any]]) -> None:
    """A gradient penalty, which leaves out a bias, is added to the other loss, or has a pass of its own."""
    for result in results:
        for name in CRITICS[1:]:
            for one, other in zip(result[name]["weights"], result[CRITICS[0]]["weights"], strict=True):
                torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("place", on_two_ranks.PLACES)
def test_a_request_to_stop_acts_at_the_same_update(results: list[dict[str, Any]], place: str) -> None:
    """An update is not made if this is asked for before its step, on one process as on two.

    Metrics and events are the same, too.
    """
    one, two = (result[f"asks {place}"] for result in results)
    assert (one["updates"], one["events"]) == (two["updates"], two["events"])
    assert one["updates"] == 2
    _close(one["weights"], two["weights"])
    assert [[record[0], *record[2:]] for record in one["history"]] == [
        [record[0], *record[2:]] for record in two["history"]
    ]
