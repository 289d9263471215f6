"""A run that was interrupted goes on from its newest state, in a new process or the same one, as if it had not been."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, StepLR
from torch.utils.data import DataLoader
from typing_extensions import override

from pa_checkpoint import Folder, load
from pa_core import (
    AnyTrainer,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    EvaluationSet,
    LimitBatchesCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    Trainer,
    TrainerCallback,
    TrainingPreempted,
    distributed,
    gather_objects,
)
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification
from tests.support.callbacks import CountUpdates, RatesUsed
from tests.support.pa_core.training_states.preempted_runs import SignalAt, preemptible
from tests.support.pa_core.training_states.small_runs import (
    DrawingDataset,
    InterruptAt,
    Interrupted,
    SampleLog,
    fingerprint,
    frozen_trainer,
    interrupting,
    log_of,
    make_trainer,
    train,
)


def saving(folder: Path, **options: Any) -> SaveTrainingStateCallback:
    """States after each second update and after each epoch."""
    settings: dict[str, Any] = {"save_every_n_steps": 2, "save_every_n_epochs": 1, **options}
    return SaveTrainingStateCallback(folder, **settings)


def interrupt(folder: Path, event: str, update: int, *, asynchronous: bool, **options: Any) -> None:
    """Run until a process would have been killed, with states in the folder."""
    states = saving(folder, asynchronous=asynchronous)
    trainer = make_trainer(states, InterruptAt(event, update), best=folder / "best.pt")
    with pytest.raises(Interrupted):
        train(trainer, resume_from=folder, resume_missing="start", **options)


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
@pytest.mark.parametrize(
    ("accumulation", "workers"), [(1, 0), (3, 0), (1, 1), pytest.param(3, 1, marks=pytest.mark.more_cases)]
)
def test_a_resumed_run_ends_as_the_uninterrupted_one(shared_tmp_path: Path, workers: int, accumulation: int) -> None:
    """Weights, optimizer, scheduler, history, samples, draws and streams are equal to the last bit.

    With workers, the states are written while the training continues.
    """
    options: dict[str, Any] = {
        "gradient_accumulation_steps": accumulation,
        "train_dataloader_kwargs": {"num_workers": workers},
        "eval_dataloader_kwargs": {"num_workers": workers},
    }
    whole = make_trainer(saving(shared_tmp_path / "whole"), best=shared_tmp_path / "best.pt")
    expected = train(whole, **options)
    last_of_epoch = whole.run_config.num_update_steps_per_epoch
    places = [
        ("on_train_step_end", last_of_epoch // 2 + 1),
        ("on_train_epoch_end", last_of_epoch),
        ("on_eval_step_end", 2 * last_of_epoch),
        ("on_train_epoch_start", last_of_epoch),
    ]
    for place in places if workers == 0 else places[:1]:
        folder = shared_tmp_path / f"{place[0]}_{place[1]}"
        interrupt(folder, *place, asynchronous=workers == 1, **options)
        resumed = make_trainer(saving(folder), best=folder / "best.pt", seed=99)
        assert train(resumed, resume_from=folder, **options) == expected, place


def test_states_may_be_written_while_the_training_goes_on(tmp_path: Path) -> None:
    """Each holds the moment at which it was captured, whatever the next updates change."""
    expected = train(make_trainer())
    interrupted = make_trainer(
        saving(tmp_path / "states", asynchronous=True, save_every_n_steps=1), InterruptAt("on_train_step_end", 9)
    )
    with pytest.raises(Interrupted):
        train(interrupted)
    records = Folder(tmp_path / "states").records()
    assert {record.update for record in records} == set(range(1, 10))
    for record in records:
        folder = tmp_path / f"{record.path.name}-alone"
        shutil.copytree(record.path, folder)
        assert train(make_trainer(), resume_from=folder) == expected, record


def test_a_state_that_is_asked_for_in_mid_update_is_that_of_the_update(tmp_path: Path) -> None:
    """A callback may ask at any time; nothing of a group of batches is lost, and none is trained twice."""

    class SaveInMidGroup(TrainerCallback):
        @override
        def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            if kwargs["step"] == 5 and trainer.run_history.current_epoch == 2:
                trainer.save_training_state(tmp_path / "state", {"note": [1, 2.5, None]})

    expected = train(make_trainer(), gradient_accumulation_steps=3)
    train(make_trainer(SaveInMidGroup()), gradient_accumulation_steps=3)
    assert load(tmp_path / "state").summary["update"] == 3 + 2

    resumed = make_trainer()
    assert train(resumed, gradient_accumulation_steps=3, resume_from=tmp_path / "state") == expected
    assert resumed.load_training_state(tmp_path / "state") == {"current_epoch": 2, "note": [1, 2.5, None]}


def test_a_callback_behind_the_saving_one_is_in_the_state_of_the_same_update(tmp_path: Path) -> None:
    """A state is captured when all callbacks have been told of the update, whatever their order."""
    with pytest.raises(Interrupted):
        train(make_trainer(saving(tmp_path), CountUpdates(), InterruptAt("on_train_step_end", 8)))
    counting = CountUpdates()
    train(make_trainer(saving(tmp_path), counting), resume_from=tmp_path)
    assert counting.count == 21


def test_the_first_events_are_called_again_and_then_callbacks_get_their_state(tmp_path: Path) -> None:
    """What a callback sets up at the start of a run or an epoch is overwritten by what it had."""

    class StateRecorder(RecordingCallback):
        @override
        def state_dict(self) -> dict[str, int]:
            return {"number": len(self.events)}

        @override
        def load_state_dict(self, state_dict: dict[str, int]) -> None:
            self.events.append("load_state_dict")

    with pytest.raises(Interrupted):
        train(make_trainer(saving(tmp_path), StateRecorder(), InterruptAt("on_train_step_end", 4)))
    recorder = StateRecorder()
    train(make_trainer(saving(tmp_path), recorder), resume_from=tmp_path)
    first = [event for event in recorder.events if event not in {"on_init_end", "on_prepare_start"}]
    assert first[:3] == ["on_training_run_start", "on_train_epoch_start", "on_train_steps_skipped"]
    assert first[3:5] == ["load_state_dict", "on_train_step_start"]


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_complete_run_is_put_back_and_not_run_again(shared_tmp_path: Path) -> None:
    """A script with several stages, each with a folder, can be started again as it is: finished stages are skipped."""

    def script() -> tuple[dict[str, Any], int]:
        trainer = make_trainer(saving(shared_tmp_path / "first"), best=shared_tmp_path / "best.pt")
        train(trainer, num_epochs=2, resume_from=shared_tmp_path / "first", resume_missing="start")
        steps_of_first = len(log_of(trainer).steps)
        trainer.callback_handler.remove_callback(trainer.callback_handler.callbacks[-1])
        trainer.callback_handler.add_callback(saving(shared_tmp_path / "second"))
        second = shared_tmp_path / "second"
        return train(trainer, num_epochs=1, resume_from=second, resume_missing="start"), steps_of_first

    whole, steps = script()
    if distributed.rank() == 0:
        shutil.rmtree(shared_tmp_path / "second")
    gather_objects(None)
    again, steps_again = script()
    assert again == whole
    assert steps_again == steps
    assert script()[0] == whole


@pytest.mark.parametrize(("kind", "limit", "at"), [(LimitBatchesCallback, 5, 8), (StepBasedEvaluationCallback, 2, 11)])
def test_what_a_callback_counts_in_an_epoch_goes_on(tmp_path: Path, kind: Any, limit: int, at: int) -> None:
    """Limited epochs stay as long as they were, and evaluations in mid-epoch are neither lost nor repeated."""
    expected = train(make_trainer(kind(limit)))
    with pytest.raises(Interrupted):
        train(make_trainer(saving(tmp_path), kind(limit), InterruptAt("on_train_step_end", at)))
    assert train(make_trainer(saving(tmp_path), kind(limit)), resume_from=tmp_path) == expected


def test_registered_objects_and_trained_loss_functions_are_part_of_the_state(tmp_path: Path) -> None:
    """Also parameters that only the loss function or the optimizer knows."""

    class Centres(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centres = nn.Parameter(torch.zeros(3, 3))

        @override
        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return ((outputs - self.centres[targets]) ** 2).mean()

    class Counter:
        value = 0

        def state_dict(self) -> dict[str, int]:
            return {"value": self.value}

        def load_state_dict(self, state_dict: dict[str, int]) -> None:
            self.value = state_dict["value"]

    def trainer_and_counter(*callbacks: TrainerCallback) -> tuple[Trainer, Counter, nn.Parameter]:
        torch.manual_seed(0)
        model, loss, temperature = TinyClassifier(), Centres(), nn.Parameter(torch.ones(()))
        optimizer = SGD([*model.parameters(), *loss.parameters(), temperature], lr=0.1, momentum=0.9, weight_decay=0.1)
        temperature.grad = torch.ones(())
        trainer, counter = Trainer(model, loss, optimizer, callbacks=callbacks), Counter()
        trainer.register_for_checkpointing(counter)
        return trainer, counter, temperature

    trainer, counter, temperature = trainer_and_counter(saving(tmp_path))
    counter.value = 41
    trainer.train(make_classification(40), 2)
    resumed, counter_again, temperature_again = trainer_and_counter(saving(tmp_path))
    resumed.train(make_classification(40), 2, resume_from=tmp_path)
    assert counter_again.value == 41
    assert temperature_again.item() == temperature.item()
    losses: list[Any] = [trainer.loss_func, resumed.loss_func]
    assert torch.equal(losses[0].centres, losses[1].centres)
    assert not torch.equal(losses[0].centres, torch.zeros(3, 3))


def test_a_folder_without_states_is_an_error_unless_a_new_run_may_begin(tmp_path: Path) -> None:
    """The message says how a script is the same when it is started and when it is started again."""
    with pytest.raises(FileNotFoundError, match='resume_missing="start"'):
        train(make_trainer(), resume_from=tmp_path / "missing")
    with pytest.raises(ConfigurationError, match='"error", or "start"'):
        train(make_trainer(), resume_from=tmp_path, resume_missing="ignore")
    trainer = make_trainer()
    train(trainer, num_epochs=1, resume_from=tmp_path / "missing", resume_missing="start")
    assert trainer.num_updates_completed == 7


def test_damaged_states_alone_are_an_error(tmp_path: Path) -> None:
    """The run does not begin anew, even where it may if there is no state."""
    train(make_trainer(saving(tmp_path)), num_epochs=1)
    for record in Folder(tmp_path).records():
        (record.path / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="None of the training states is valid"):
        train(make_trainer(), resume_from=tmp_path, resume_missing="start")


def test_messages_about_a_state_to_load_name_the_argument_of_that_call(tmp_path: Path) -> None:
    """A missing or damaged state is described by `input_dir`, without advice for an argument that is not there."""
    trainer = make_trainer(saving(tmp_path))
    train(trainer, num_epochs=1)
    with pytest.raises(CheckpointNotFoundError, match=r"input_dir='.*missing'") as missing:
        trainer.load_training_state(tmp_path / "missing")
    for record in Folder(tmp_path).records():
        (record.path / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="None of the training states is valid") as damaged:
        trainer.load_training_state(tmp_path)
    assert not any("resume" in str(error.value) for error in (missing, damaged))


def test_a_damaged_state_that_was_named_is_told_apart_from_the_others_of_its_folder(tmp_path: Path) -> None:
    """Nobody is told to remove the states that are valid."""
    train(make_trainer(saving(tmp_path, save_every_n_steps=2)), num_epochs=1)
    damaged, *others = Folder(tmp_path).records()
    (damaged.path / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"(?s)The training state is not valid\..*Pass the folder") as raised:
        train(make_trainer(), resume_from=damaged.path)
    assert others
    assert "emove" not in str(raised.value)


def test_what_could_not_be_saved_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    """Not after an hour: the message names the entry."""

    class Unsaveable(TrainerCallback):
        @override
        def state_dict(self) -> dict[str, Any]:
            return {"function": lambda: None}

        @override
        def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

    recorder = RecordingCallback()
    with pytest.raises(CheckpointError, match=r"Unsaveable.*function"):
        train(make_trainer(saving(tmp_path), Unsaveable(), recorder))
    assert "on_train_step_start" not in recorder.events


def test_states_of_callbacks_that_come_or_go_are_warned_of(tmp_path: Path) -> None:
    """A callback that the state does not know begins anew, and a state without a callback is left out."""
    train(make_trainer(saving(tmp_path), best=tmp_path / "best.pt"), num_epochs=1)
    with pytest.warns(UserWarning, match="SaveBestModelCallback .* is ignored: the run has no such callback"):
        train(make_trainer(), num_epochs=2, resume_from=tmp_path)
    train(make_trainer(saving(tmp_path / "without")), num_epochs=1)
    with pytest.warns(UserWarning, match="SaveBestModelCallback has no state .* starts over"):
        train(make_trainer(best=tmp_path / "best.pt"), num_epochs=2, resume_from=tmp_path / "without")


def test_that_there_is_nothing_to_save_is_said_before_what_comes_with_it_is_looked_at(tmp_path: Path) -> None:
    """Entries that could not be stored, or are large, are no matter where nothing is saved."""
    trainer = make_trainer()
    with pytest.raises(ConfigurationError, match="before a training run"):
        trainer.save_training_state(tmp_path / "state", {"function": print})
    trainer.train(DrawingDataset(4), 1)
    trainer.evaluate(DrawingDataset(4))
    with pytest.raises(CheckpointError, match="after a run without training"):
        trainer.save_training_state(tmp_path / "state", {"function": print})


def test_a_state_tells_its_epoch(tmp_path: Path) -> None:
    """It is that of the run history, where the run continues; an entry of the script's own name is the script's."""
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path / "all", save_every_n_steps=1))
    train(trainer, num_epochs=2)
    epochs = {
        one.path.name: trainer.load_training_state(one.path)["current_epoch"]
        for one in Folder(tmp_path / "all").records()
    }
    assert [epochs[name] for name in ("step_1", "step_8", "final")] == [1, 2, trainer.run_history.current_epoch]

    train(trainer, num_epochs=1, reset_run_history=False)
    trainer.save_training_state(tmp_path / "continued")
    assert trainer.load_training_state(tmp_path / "continued")["current_epoch"] == 4
    trainer.save_training_state(tmp_path / "own", {"current_epoch": "mine"})
    assert trainer.load_training_state(tmp_path / "own") == {"current_epoch": "mine"}


def test_loading_a_state_takes_over_the_weights_and_the_optimizer_without_its_run(tmp_path: Path) -> None:
    """A new run then begins at its own first epoch."""
    trainer = make_trainer(saving(tmp_path))
    train(trainer, num_epochs=2)
    other = make_trainer(seed=5)
    assert other.load_training_state(tmp_path) == {"current_epoch": 3}
    assert fingerprint(other)["weights"] == fingerprint(trainer)["weights"]
    assert fingerprint(other)["optimizer"] == fingerprint(trainer)["optimizer"]
    train(other, num_epochs=1)
    assert (other.num_updates_completed, other.run_history.current_epoch) == (7, 2)


def test_large_datasets_are_not_replayed(tmp_path: Path) -> None:
    """A run goes on at the end of a long epoch without fetching what lies before."""

    class CountingDataset(DrawingDataset):
        fetched = 0

        @override
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            self.fetched += 1
            return super().__getitem__(index)

    data = CountingDataset(2000)
    options: dict[str, Any] = {"dataset": data, "num_epochs": 1, "eval_dataset": None}
    with pytest.raises(Interrupted):
        train(make_trainer(saving(tmp_path, save_every_n_steps=40), InterruptAt("on_train_step_end", 245)), **options)
    data.fetched = 0
    train(make_trainer(saving(tmp_path)), **options, resume_from=tmp_path)
    assert data.fetched == 2000 - 240 * 8


VAL, OOD, RARE = DrawingDataset(20), DrawingDataset(12), DrawingDataset(9)
SETS: dict[str, Any] = {"val": VAL, "ood": OOD, "rare": EvaluationSet(RARE, every_n_epochs=2)}
WITHIN_EPOCHS = ["val", "rare"]


class DrawInEvaluations(TrainerCallback):
    """Draws from torch's stream in each batch of an evaluation, and records what it has drawn."""

    def __init__(self) -> None:
        self.drawn = 0.0

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.drawn = 0.0

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.drawn += float(torch.rand(()))

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        trainer.run_history.update_metric("drawn", self.drawn)


def trainer_with(*more: TrainerCallback) -> Any:
    """Evaluates two of the sets within the epochs, and all of them after some."""
    return make_trainer(StepBasedEvaluationCallback(4, eval_names=WITHIN_EPOCHS), DrawInEvaluations(), *more)


def train_with_sets(trainer: Any, **options: Any) -> dict[str, Any]:
    """As ``train``, with the sets."""
    return train(trainer, eval_dataset=SETS, **options)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_sets_that_were_evaluated_before_an_interruption_are_not_evaluated_again(shared_tmp_path: Path) -> None:
    """The resumed run goes on with the set that was interrupted: every value, draw and weight is as without."""
    expected = train_with_sets(trainer_with())
    last_rank = distributed.num_processes() - 1
    for step in (2, 4, 7, 9) if last_rank == 0 else (2, 5, 6):  # in each set, within an epoch and after it
        folder = shared_tmp_path / str(step)
        with pytest.raises(TrainingPreempted):
            train_with_sets(trainer_with(preemptible(folder), SignalAt("on_eval_step_end", step, rank=last_rank)))
        assert train_with_sets(trainer_with(preemptible(folder)), resume_from=folder) == expected, step


def test_a_killed_run_evaluates_the_sets_of_its_epoch_again_as_before(tmp_path: Path) -> None:
    """Resumed from the state of a whole epoch, each set is evaluated in the epochs in which it was."""
    expected = train_with_sets(trainer_with())
    with pytest.raises(Interrupted):
        train_with_sets(
            trainer_with(preemptible(tmp_path, save_every_n_epochs=1), InterruptAt("on_train_step_end", 10))
        )
    assert train_with_sets(trainer_with(preemptible(tmp_path)), resume_from=tmp_path) == expected


def test_other_sets_may_be_evaluated_from_an_interruption_on(tmp_path: Path) -> None:
    """A set that is no longer there is left out; without any of those that were left, all that are due run."""
    with pytest.raises(TrainingPreempted):
        train_with_sets(make_trainer(preemptible(tmp_path), SignalAt("on_eval_step_end", 4)))  # in ood, epoch 1
    for sets, recorded in (
        ({"val": VAL, "ood": OOD}, {"val": 3, "ood": 3}),
        ({"val": VAL, "new": RARE}, {"val": 4, "new": 3}),
        ({"ood": OOD, "new": RARE}, {"ood": 3, "new": 2}),
    ):
        trainer = make_trainer()
        train(trainer, eval_dataset=sets, resume_from=tmp_path)
        for name, number in recorded.items():
            assert trainer.run_history.count_metric_values(f"eval_{name}_loss_epoch") == number, (sets, name)


def test_loaders_of_ones_own_go_on_where_they_were(tmp_path: Path) -> None:
    """The generator of each set's own DataLoader is part of the state, under the name of the set."""

    def sets() -> dict[str, Any]:
        return {
            name: DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(seed))
            for seed, (name, data) in enumerate({"val": VAL, "ood": OOD}.items())
        }

    def run(*callbacks: TrainerCallback, **options: Any) -> dict[str, Any]:
        return train(
            make_trainer(*callbacks),
            eval_dataset=sets(),
            eval_dataloader_kwargs=None,
            resume_missing="start",
            **options,
        )

    expected = run()
    with pytest.raises(TrainingPreempted):
        run(preemptible(tmp_path), SignalAt("on_train_step_end", 10))
    assert run(preemptible(tmp_path), resume_from=tmp_path) == expected


def decay(update: int) -> float:
    """A factor of the learning rate."""
    return 1 / (1 + update)


SCHEDULERS: dict[str, Callable[[Optimizer], Any] | None] = {
    "none": None,
    "OneCycleLR": partial(OneCycleLR, max_lr=0.05, total_steps=40),
    "CosineAnnealingLR": partial(CosineAnnealingLR, T_max=30),
    "LambdaLR": partial(LambdaLR, lr_lambda=decay),
    "StepLR": partial(StepLR, step_size=4, gamma=0.5),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_same_trainer_resumes_as_a_new_process_does(tmp_path: Path, scheduler: str) -> None:
    """Rates, schedule, optimizer, history and samples to the last bit, after several interruptions in a row."""
    options: dict[str, Any] = {"create_scheduler_fn": SCHEDULERS[scheduler]}
    expected = train(make_trainer(), **options)
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=2))
    options |= {"resume_from": tmp_path, "resume_missing": "start"}
    for update in (5, 6, 11, 19):
        with interrupting(trainer, update):
            train(trainer, **options)
    assert train(trainer, **options) == expected


@pytest.mark.parametrize("scheduler", [name for name in SCHEDULERS if name != "OneCycleLR"])
def test_the_same_trainer_extends_a_complete_run_as_a_new_process_does(tmp_path: Path, scheduler: str) -> None:
    """The rates go on where the run ended, and are not taken for what the script asks."""
    options: dict[str, Any] = {"create_scheduler_fn": SCHEDULERS[scheduler], "resume_missing": "start"}
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path / "states"))
    train(trainer, num_epochs=2, resume_from=tmp_path / "states", **options)
    copy = make_trainer(seed=5)
    expected = train(copy, num_epochs=4, resume_from=tmp_path / "states", **options)
    assert train(trainer, num_epochs=4, resume_from=tmp_path / "states", **options) == expected


def test_another_trainer_of_the_same_optimizer_resumes_as_a_new_process_does(tmp_path: Path) -> None:
    """A notebook whose cell that makes the trainer is run again, and that of the optimizer is not."""
    expected = train(make_trainer())
    first = make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=2))
    with interrupting(first, 5):
        train(first)
    second = Trainer(first.model, first.loss_func, first.optimizer, callbacks=[SampleLog()])
    assert train(second, resume_from=tmp_path) == expected


def rates_of(trainer: Trainer, **options: Any) -> list[float]:
    """The learning rate of each update that is made."""
    used = RatesUsed()
    trainer.callback_handler.add_callback(used)
    train(trainer, **options)
    trainer.callback_handler.remove_callback(used)
    return used.rates


@pytest.mark.parametrize(
    ("scheduler", "is_new"),
    [
        *((scheduler, True) for scheduler in ("none", "CosineAnnealingLR", "StepLR", "LambdaLR")),
        ("CosineAnnealingLR", False),
        *(pytest.param(scheduler, False, marks=pytest.mark.more_cases) for scheduler in ("none", "StepLR", "LambdaLR")),
    ],
)
def test_a_rate_that_is_changed_between_the_runs_is_used(
    tmp_path: Path, scheduler: str, is_new: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """In proportion to what the script asked for at first, also in a new process; then it is what was asked."""
    options: dict[str, Any] = {"create_scheduler_fn": SCHEDULERS[scheduler]}
    whole = rates_of(make_trainer(), **options)
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=2))
    with interrupting(trainer, 6):
        train(trainer, **options)
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=2)) if is_new else trainer
    trainer.optimizer.param_groups[0]["lr"] = 0.002
    assert rates_of(trainer, resume_from=tmp_path, **options) == pytest.approx([rate / 5 for rate in whole[6:]])
    assert ["group", "0:", "lr", "0.01", "0.002", "0.002"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
    again = make_trainer(seed=3)
    again.optimizer.param_groups[0]["lr"] = 0.002
    train(again, resume_from=tmp_path, **options)
    assert "group" not in capsys.readouterr().out


def test_a_second_run_of_a_script_is_resumed_as_it_was_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script with two runs, the second of which goes on with the rate at which the first one ended."""

    def script(*more: TrainerCallback) -> dict[str, Any]:
        trainer = make_trainer(*more)
        for stage, epochs, scheduler in (("first", 2, SCHEDULERS["StepLR"]), ("second", 1, None)):
            states = SaveTrainingStateCallback(tmp_path / stage, save_every_n_steps=2)
            trainer.callback_handler.add_callback(states)
            folder: dict[str, Any] = {"resume_from": tmp_path / stage, "resume_missing": "start"}
            train(trainer, num_epochs=epochs, create_scheduler_fn=scheduler, **folder)
            trainer.callback_handler.remove_callback(states)
        return fingerprint(trainer)

    class InterruptSecond(TrainerCallback):
        runs = 0

        @override
        def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            self.runs += 1

        @override
        def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
            if self.runs == 2 and trainer.num_updates_completed == 3:
                raise Interrupted

    with pytest.raises(Interrupted):
        script(InterruptSecond())
    again = script()
    assert "group" not in capsys.readouterr().out
    for folder in ("first", "second"):
        (tmp_path / folder).rename(tmp_path / f"{folder}_kept")
    assert script() == again


def test_loading_weights_before_the_run_is_resumed_asks_for_no_other_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rate in a file is that of its moment, and nothing that a script asks for."""
    expected = train(make_trainer())
    trainer = make_trainer(SaveTrainingStateCallback(tmp_path / "states", save_every_n_steps=2))
    with interrupting(trainer, 9):
        train(trainer)
    trainer.save_checkpoint(tmp_path / "checkpoint.pt")
    for loading in (trainer, make_trainer(seed=4)):
        loading.load_checkpoint(tmp_path / "checkpoint.pt", load_scheduler=False)
        loading.load_training_state(tmp_path / "states")
    loading = make_trainer(seed=4)
    loading.load_training_state(tmp_path / "states")
    assert train(loading, resume_from=tmp_path / "states") == expected
    assert train(trainer, resume_from=tmp_path / "states") == expected
    assert "group" not in capsys.readouterr().out


@pytest.mark.parametrize("is_new", [False, True])
def test_groups_that_the_interrupted_run_added_are_added_again_in_their_time(tmp_path: Path, is_new: bool) -> None:
    """With their momentum, in the same trainer or a new one; also where the state is older than the new group."""

    def weights(trainer: Trainer) -> dict[str, Any]:
        return {name: value.tolist() for name, value in trainer.model.state_dict().items()}

    whole = frozen_trainer()
    whole.train(make_classification(40), 3)
    states = SaveTrainingStateCallback(tmp_path, save_every_n_steps=4)
    trainer = frozen_trainer(states)
    for update in (7, 12):
        with interrupting(trainer, update):
            trainer.train(make_classification(40), 3, resume_from=tmp_path, resume_missing="start")
        trainer = frozen_trainer(states) if is_new else trainer
    trainer.train(make_classification(40), 3, resume_from=tmp_path)
    assert weights(trainer) == weights(whole)
    assert len(trainer.optimizer.param_groups) == 2


def test_rates_that_are_tensors_stay_the_same_tensors(tmp_path: Path) -> None:
    """A captured optimizer reads its rate where it was when it was captured."""

    def tensor_trainer(*callbacks: TrainerCallback) -> Trainer:
        torch.manual_seed(0)
        model = TinyClassifier()
        optimizer = Adam(model.parameters(), lr=torch.tensor(0.1))
        return Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks)

    def run(trainer: Trainer, **options: Any) -> list[float]:
        trainer.train(make_classification(40), 3, create_scheduler_fn=SCHEDULERS["StepLR"], **options)
        return [float(group["lr"]) for group in trainer.optimizer.param_groups]

    expected = run(tensor_trainer())
    trainer = tensor_trainer(SaveTrainingStateCallback(tmp_path, save_every_n_steps=4))
    with interrupting(trainer, 9):
        run(trainer)
    assert run(trainer, resume_from=tmp_path) == expected
    assert isinstance(trainer.optimizer.param_groups[0]["lr"], torch.Tensor)
