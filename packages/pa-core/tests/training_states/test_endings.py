"""What becomes of a run that has ended in some way when its script is started again, for each row of the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typing_extensions import override

from pa_checkpoint import Folder
from pa_core import (
    AnyTrainer,
    CheckpointError,
    NonFiniteLossError,
    SaveTrainingStateCallback,
    StopTrainingError,
    TerminateOnNaNCallback,
    TrainerCallback,
    TrainingPreempted,
    distributed,
    gather_objects,
)
from tests.launching import Launch
from tests.support.callbacks import AlsoAt, CallAt
from tests.support.pa_core.events_of_endings import table
from tests.support.pa_core.training_states.small_runs import (
    DrawingDataset,
    InterruptAt,
    Interrupted,
    log_of,
    make_trainer,
    train,
)

SCRIPT = """
import json, os, signal, sys
import accelerate, torch, torch._dynamo  # here, as each process that is forked would import them again
from pa_core import (
    NonFiniteLossError, SaveTrainingStateCallback, StopTrainingError, TerminateOnNaNCallback, Trainer, TrainerCallback,
)
from pa_core.testing import TinyClassifier, make_classification

def stop():
    raise StopTrainingError

def fail():
    raise OSError("a disk")

def interrupt():
    signal.raise_signal(signal.SIGINT)

def terminate():
    signal.raise_signal(signal.SIGTERM)

ENDINGS = {
    "its last epoch": None,
    "`max_num_train_steps`": None,
    "`StopTrainingError`": stop,
    "a loss that is not finite, with `TerminateOnNaNCallback`": None,
    "any other exception": fail,
    "Ctrl-C, or `SIGINT`": interrupt,
    "`sys.exit()`": sys.exit,
    "`SIGTERM`, if nobody handles it": terminate,
    "nothing": None,
}

class EndAt(TrainerCallback):
    def __init__(self, end):
        self.end = end

    def on_train_step_end(self, trainer, **kwargs):
        if self.end is not None and trainer.num_updates_completed == 7:
            self.end()

def run(way, attempt, number):
    torch.manual_seed(attempt)
    inputs, targets = make_classification(20).tensors
    if "not finite" in way:
        inputs[3] = torch.nan
    states = SaveTrainingStateCallback(f"states_{number}", save_every_n_steps=3)
    model = TinyClassifier(batch_norm=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    callbacks = [states, TerminateOnNaNCallback, EndAt(ENDINGS[way] if attempt == 1 else None)]
    trainer = Trainer(model, torch.nn.CrossEntropyLoss(), optimizer, callbacks=callbacks)
    trainer.train(
        torch.utils.data.TensorDataset(inputs, targets), 3, make_classification(8), per_device_batch_size=4,
        max_num_train_steps=8 if "max" in way else None, resume_from=f"states_{number}", resume_missing="start",
    )
    return trainer

def attempt(way, number, attempt):
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        outcome, trainer = {}, None
        try:
            trainer = run(way, attempt, number)
            outcome = {"by": "returns", "weights": [value.tolist() for value in trainer.model.state_dict().values()],
                       "updates": trainer.num_updates_completed, "was_complete": trainer.was_complete}
        except BaseException as error:
            outcome = {"by": type(error).__name__, "text": str(error)}
        os.write(writes, json.dumps(outcome).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        written = pipe.read()
    os.waitpid(child, 0)
    return json.loads(written or b'{"by": "killed"}')

ended = {way: [attempt(way, number, one) for one in (1, 2)] for number, way in enumerate(ENDINGS)}
open("ended.json", "w").write(json.dumps(ended))
"""


def test_a_script_that_is_started_again_does_what_the_table_says(launch: Launch, tmp_path: Path) -> None:
    """In processes of their own: it returns at once, resumes to the same weights, or raises the same error."""
    assert launch(SCRIPT).status == 0
    ended: dict[str, list[dict[str, Any]]] = json.loads((tmp_path / "ended.json").read_text())
    whole, _ = ended.pop("nothing")
    rows = table()
    assert ended.keys() == rows.keys()
    for way, (first, again) in ended.items():
        match rows[way]["started again, it"]:
            case "returns at once":
                assert first["by"] == "returns", way
                assert again == {**first, "was_complete": True}, way
            case "raises the same error":
                assert first["by"] == "NonFiniteLossError"
                assert again == first
            case "resumes":
                assert first["by"] != "returns", way
                assert again == whole, way
            case other:
                pytest.fail(f"{way}: {other}")


class Poisoned(DrawingDataset):
    """A dataset that cannot be trained on from the tenth batch on, as its values are not finite."""

    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, target = super().__getitem__(index)
        return (inputs + torch.nan if index == 30 else inputs), target


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("steps", [None, 1])
def test_a_run_that_diverged_is_never_complete(shared_tmp_path: Path, steps: int | None) -> None:
    """Its end is not saved, so that the script raises the same error each time, also where there is no state at all."""
    messages: list[str] = []
    for _ in range(3):
        states = SaveTrainingStateCallback(shared_tmp_path, save_every_n_steps=steps)
        trainer = make_trainer(TerminateOnNaNCallback(), states)
        with pytest.raises(NonFiniteLossError) as raised:
            train(trainer, dataset=Poisoned(52), resume_from=shared_tmp_path, resume_missing="start")
        messages.append(str(raised.value))
        if distributed.rank() == 0:
            assert not any(record.complete for record in Folder(shared_tmp_path).records())
        gather_objects(None)
        if steps is None:
            assert trainer.num_updates_completed < 7
    assert messages == messages[:1] * 3


def test_a_state_asked_for_at_the_end_of_a_run_that_diverged_is_told_of_by_the_error(tmp_path: Path) -> None:
    """It is not saved, and the error that train() raises says so."""
    save = CallAt("on_training_run_end", lambda trainer: trainer.save_training_state(tmp_path / "state"))
    trainer = make_trainer(TerminateOnNaNCallback(), save)
    with pytest.raises(NonFiniteLossError) as raised:
        train(trainer, dataset=Poisoned(52))
    assert "state was requested but not saved" in raised.value.__notes__[0]
    assert not (tmp_path / "state").exists()
    with pytest.raises(CheckpointError, match="after NonFiniteLossError"):
        trainer.save_training_state(tmp_path / "state")


def of_extension(ended: dict[str, Any]) -> dict[str, Any]:
    """What a run that was ended in mid-epoch and extended has in common with one that was not; not its evaluations."""
    return {name: ended[name] for name in ("weights", "optimizer", "scheduler", "samples", "updates")}


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("periods", [{}, {"save_every_n_epochs": 1, "save_at_end": False}])
@pytest.mark.parametrize("limit", [3, 9, 7])
def test_more_updates_go_on_in_the_middle_of_the_epoch(
    shared_tmp_path: Path, periods: dict[str, Any], limit: int
) -> None:
    """No sample of the epoch is left out or trained on twice, whichever state the run goes on from."""
    expected = of_extension(train(make_trainer(), max_num_train_steps=12))
    states = SaveTrainingStateCallback(shared_tmp_path, **periods)
    train(make_trainer(states), max_num_train_steps=limit)
    resumed = make_trainer(seed=7)
    ended = train(resumed, max_num_train_steps=12, resume_from=shared_tmp_path)
    assert of_extension(ended) == expected
    assert resumed.num_epochs_completed == resumed.run_config.num_epochs
    assert resumed.run_history.current_epoch == resumed.num_epochs_completed + 1


def test_a_complete_run_may_be_extended_again_and_again(tmp_path: Path) -> None:
    """Also in the same trainer, and where a state was resumed and saved again without any update between."""
    expected = of_extension(train(make_trainer(), max_num_train_steps=19))

    class SaveAtEachEnd(TrainerCallback):
        runs = 0

        @override
        def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            self.runs += 1
            trainer.save_training_state(tmp_path / f"end_{self.runs}", sequence=self.runs)

    trainer = make_trainer(SaveAtEachEnd())
    ends = [
        train(trainer, max_num_train_steps=limit, resume_from=tmp_path, resume_missing="start")
        for limit in (2, 2, 4, 9, 9, 19)
    ]
    assert of_extension(ends[-1]) == expected


STOPS = {
    "on_optimizer_step_end": 4,
    "on_train_epoch_end": 7,
    "on_eval_epoch_end": 7,
    "on_training_run_epoch_end": 7,
    "on_train_epoch_start": 7,
}


@pytest.mark.parametrize("event", STOPS)
def test_a_run_that_was_stopped_goes_on_with_the_next_sample(tmp_path: Path, event: str) -> None:
    """More epochs are asked of a run that a callback had stopped: each sample comes once an epoch."""

    def stop(_: AnyTrainer) -> None:
        raise StopTrainingError

    whole = make_trainer()
    train(whole, num_epochs=4)
    train(make_trainer(SaveTrainingStateCallback(tmp_path), CallAt(event, stop, STOPS[event])), num_epochs=3)
    assert [record.complete for record in Folder(tmp_path).records()] == [True]
    resumed = make_trainer()
    train(resumed, num_epochs=4, resume_from=tmp_path)
    assert log_of(resumed).indices == log_of(whole).indices
    assert (resumed.num_updates_completed, resumed.run_history.current_epoch) == (28, 5)


class Broken(DrawingDataset):
    """A dataset that fails once, at a sample of the second epoch or so."""

    def __init__(self, error: BaseException, after: int) -> None:
        super().__init__(52)
        self.error: BaseException | None = error
        self.whole = iter(range(after))

    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if next(self.whole, None) is None and self.error is not None:
            error, self.error = self.error, None
            raise error
        return super().__getitem__(index)


@pytest.mark.parametrize("error", [OSError("a sample"), KeyboardInterrupt(), SystemExit(3)])
def test_a_state_saved_after_an_error_between_two_updates_goes_on_from_there(
    tmp_path: Path, error: BaseException
) -> None:
    """Here in fetching a batch, with draws of the script before it saves; it is not complete."""
    expected = train(make_trainer())
    trainer = make_trainer()
    with pytest.raises(type(error)):
        train(trainer, dataset=Broken(error, 52 + 8 * 3 + 2), train_dataloader_kwargs={"num_workers": 0})
    assert trainer.num_updates_completed == 10
    torch.rand(3)
    trainer.save_training_state(tmp_path / "state")
    assert [record.complete for record in Folder(tmp_path).records()] == [False]
    assert train(make_trainer(seed=8), resume_from=tmp_path) == expected
    assert train(trainer, resume_from=tmp_path / "state") == expected


def test_a_state_saved_after_leaving_a_full_disk_or_a_preemption_goes_on_from_there(tmp_path: Path) -> None:
    """Both leave the run where everything belongs to the same update."""
    expected = train(make_trainer())
    (tmp_path / "file").write_text("no folder")

    def save_nowhere(trainer: AnyTrainer) -> None:
        trainer.save_training_state(tmp_path / "file" / "state")

    def preempt(trainer: AnyTrainer) -> None:
        trainer.preemptible = True
        trainer.request_preemption()

    callbacks = CallAt("on_optimizer_step_end", save_nowhere, 9), CallAt("on_eval_step_end", preempt)
    for callback, error in zip(callbacks, (CheckpointError, TrainingPreempted), strict=True):
        trainer = make_trainer(callback)
        with pytest.raises(error):
            train(trainer)
        trainer.save_training_state(tmp_path / error.__name__)
        assert train(make_trainer(seed=8), resume_from=tmp_path / error.__name__) == expected


ADVICE: dict[type[BaseException], str] = {
    Interrupted: "save_every_n_steps",
    KeyboardInterrupt: r'stop_on_signals=\("SIGINT",\)',
    SystemExit: "save_every_n_steps",
}
PLACES = [
    "on_train_step_start",
    "on_train_step_end",
    "on_optimizer_step_end",
    "on_train_epoch_end",
    "on_eval_step_end",
    "on_training_run_epoch_end",
    "on_train_epoch_start",
    "on_training_run_end",
]


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("place", PLACES)
def test_a_state_is_refused_where_the_run_could_not_go_on(shared_tmp_path: Path, place: str) -> None:
    """Weights or statistics are ahead there, or callbacks not told yet: an error says so, and what to do."""
    for error, advice in ADVICE.items():
        trainer = make_trainer(InterruptAt(place, 3, error))
        with pytest.raises(error):
            train(trainer, num_epochs=2)
        with pytest.raises(CheckpointError, match=advice):
            trainer.save_training_state(shared_tmp_path / "state")
        assert not (shared_tmp_path / "state").exists()


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_run_that_failed_at_its_start_is_not_the_complete_one_before_it(shared_tmp_path: Path) -> None:
    """What went well does not make up for what did not."""
    trainer = make_trainer()
    train(trainer, num_epochs=1)
    trainer.callback_handler.add_callback(InterruptAt("on_training_run_start", 0))
    with pytest.raises(Interrupted):
        train(trainer, num_epochs=1)
    with pytest.raises(CheckpointError, match="after Interrupted"):
        trainer.save_training_state(shared_tmp_path / "state")


def test_a_state_asked_for_in_on_exception_is_saved_or_refused(tmp_path: Path) -> None:
    """Never dropped without a word; and callbacks after the one that asks can still close what is open."""
    save = CallAt("on_exception", lambda trainer: trainer.save_training_state(tmp_path / "state"))
    closed: list[AnyTrainer] = []
    expected = train(make_trainer())
    with pytest.raises(CheckpointError, match="after Interrupted") as refused:
        train(make_trainer(InterruptAt("on_train_step_end", 9), save, AlsoAt("on_exception", closed.append)))
    assert isinstance(refused.value.__context__, Interrupted)
    assert len(closed) == 1
    assert not (tmp_path / "state").exists()

    options: dict[str, Any] = {"train_dataloader_kwargs": {"num_workers": 0}}
    with pytest.raises(OSError, match="a sample"):
        train(make_trainer(save), dataset=Broken(OSError("a sample"), 8 * 4), **options)
    assert train(make_trainer(seed=3), resume_from=tmp_path / "state") == expected


def test_a_state_that_was_asked_for_before_the_error_is_told_of_by_the_error(tmp_path: Path) -> None:
    """It was to be saved after the update, which never came."""
    save = CallAt("on_train_step_start", lambda trainer: trainer.save_training_state(tmp_path / "state"), 5)
    with pytest.raises(Interrupted) as raised:
        train(make_trainer(save, InterruptAt("on_train_step_end", 5)))
    assert "state was requested but not saved" in raised.value.__notes__[0]


def test_a_state_is_not_saved_after_an_evaluation_run(tmp_path: Path) -> None:
    """Its seed and its counts are no longer those of the training."""
    trainer = make_trainer()
    train(trainer, num_epochs=1)
    trainer.save_training_state(tmp_path / "state")
    trainer.evaluate(DrawingDataset(20))
    with pytest.raises(CheckpointError, match=r"before calling evaluate\(\)"):
        trainer.save_training_state(tmp_path / "after")
    again = make_trainer(seed=9)
    train(again, num_epochs=2, resume_from=tmp_path / "state")
    assert again.num_updates_completed == 14
