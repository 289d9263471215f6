"""Running on a part of the batches, and evaluating in the middle of an epoch."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from torch.optim.lr_scheduler import LinearLR

from pa_core import (
    ConfigurationError,
    LimitBatches,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
    StepBasedEvaluationCallback,
    StopTrainingError,
)
from pa_core.data.batch_limit import batch_limit_from_environment
from pa_core.testing import RecordingCallback, make_regression
from tests.support.callbacks import AlsoAt, CallAt, FailAt
from tests.support.histories import updates_of
from tests.support.trainers import linear_trainer

VARIABLE = "PT_ACC_LIMIT_BATCHES"


def test_a_limited_run_counts_what_it_really_runs() -> None:
    """Loaders, run config, updates and schedulers agree on the limited number of batches."""
    recorder = RecordingCallback()
    trainer = linear_trainer(LimitBatchesCallback(3), recorder)
    trainer.train(
        make_regression(80),
        num_epochs=2,
        eval_dataset=make_regression(40),
        per_device_batch_size=8,
        create_scheduler_fn=lambda optimizer: LinearLR(optimizer, total_iters=6),
    )
    assert trainer.run_config.num_update_steps_per_epoch == 3
    assert trainer.run_config.max_num_train_steps == 6
    assert recorder.events.count("on_train_step_end") == 6
    assert recorder.events.count("on_eval_step_end") == 6
    assert trainer.num_updates_completed == 6


def test_a_trainer_that_was_made_within_the_context_is_limited_wherever_it_is_trained() -> None:
    """It has the callback, and trains and evaluates on the first batches after the context has ended."""
    recorder = RecordingCallback()
    with LimitBatches(2):
        trainer = linear_trainer(recorder)
    assert [one.num_batches for one in trainer.callback_handler.callbacks if isinstance(one, LimitBatchesCallback)] == [
        2
    ]
    trainer.train(make_regression(80), num_epochs=1, eval_dataset=make_regression(40), per_device_batch_size=8)
    assert recorder.events.count("on_train_step_end") == recorder.events.count("on_eval_step_end") == 2
    trainer.evaluate(make_regression(80), per_device_batch_size=8)
    assert recorder.events.count("on_eval_step_end") == 4


def test_the_variable_limits_the_trainers_that_are_made_while_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that was started with the variable is limited, and stays so when the variable goes."""
    monkeypatch.setenv(VARIABLE, "3")
    trainer = linear_trainer()
    monkeypatch.delenv(VARIABLE)
    trainer.train(make_regression(80), num_epochs=1, per_device_batch_size=8)
    assert trainer.num_updates_completed == 3


@pytest.mark.parametrize("text", ["", " ", "99"])
def test_an_empty_variable_and_one_above_the_length_limit_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a shell script leaves it that sets no number, or where the data is shorter."""
    monkeypatch.setenv(VARIABLE, text)
    trainer = linear_trainer()
    trainer.train(make_regression(80), num_epochs=1, per_device_batch_size=8)
    assert trainer.num_updates_completed == trainer.run_config.max_num_train_steps == 10


def test_predictions_are_not_limited_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Each sample is predicted within a limit too, and the output says that the limit had no effect."""
    trainer = linear_trainer(LimitBatchesCallback(2))
    assert sum(len(batch) for batch in trainer.predict(make_regression(40), per_device_batch_size=8)) == 40
    assert "not limited to 2 batches" in capsys.readouterr().out


@pytest.mark.parametrize("of_the_script", [1, 5])
def test_the_smaller_of_two_limits_counts(of_the_script: int) -> None:
    """A limit of the script and one of the context agree on the fewer batches, whichever has them."""
    with LimitBatches(3):
        trainer = linear_trainer(LimitBatchesCallback(of_the_script))
    trainer.train(make_regression(80), num_epochs=1, per_device_batch_size=8)
    assert trainer.num_updates_completed == min(3, of_the_script)


def test_a_trainer_that_was_made_outside_is_limited_within_the_context_with_a_warning() -> None:
    """A run within the context is limited and says so, training or evaluation; the next one is not."""
    recorder = RecordingCallback()
    trainer = linear_trainer(recorder)
    with LimitBatches(2), pytest.warns(UserWarning, match="limited to 2 batches") as warned:
        trainer.train(make_regression(80), num_epochs=1, per_device_batch_size=8)
    assert [Path(one.filename).name for one in warned] == [Path(__file__).name]
    assert recorder.events.count("on_train_step_end") == 2
    with LimitBatches(2), pytest.warns(UserWarning, match="limited to 2 batches"):
        trainer.evaluate(make_regression(80), per_device_batch_size=8)
    assert recorder.events.count("on_eval_step_end") == 2
    trainer.train(make_regression(80), num_epochs=1, per_device_batch_size=8)
    assert recorder.events.count("on_train_step_end") == 12


def test_the_context_manager_restores_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable has its former value again, also after an exception and when contexts are nested."""
    monkeypatch.setenv(VARIABLE, "7")
    outer = LimitBatches(3)
    with outer:
        assert batch_limit_from_environment() == 3
        with contextlib.suppress(RuntimeError), LimitBatches(2):
            assert batch_limit_from_environment() == 2
            raise RuntimeError
        with outer:
            assert batch_limit_from_environment() == 3
        assert batch_limit_from_environment() == 3
    assert os.environ[VARIABLE] == "7"
    monkeypatch.delenv(VARIABLE)
    with outer:
        pass
    assert VARIABLE not in os.environ


@pytest.mark.parametrize("text", ["0", "-1", "2.5", "many", "1e3", "²", "0x10"])
def test_a_variable_that_is_no_count_is_refused_when_the_run_starts(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable and its value, before anything is trained."""
    monkeypatch.setenv(VARIABLE, text)
    recorder = RecordingCallback()
    with pytest.raises(ConfigurationError, match=f"{VARIABLE} must be .* got '{text}'"):
        linear_trainer(recorder).train(make_regression(8), num_epochs=1)
    assert "on_train_step_end" not in recorder.events


@pytest.mark.parametrize("number", [0, -1, 2.5, True])
def test_limits_that_are_no_count_are_refused(number: Any) -> None:
    """Each limit says what it expected when it is constructed, not hours later."""
    for make in (LimitBatchesCallback, LimitBatches, StepBasedEvaluationCallback, LimitEvalStepsCallback):
        with pytest.raises(ConfigurationError, match="whole number of at least 1"):
            make(number)


def test_evaluations_come_after_every_nth_update() -> None:
    """With accumulation, updates are counted and not batches; epochs of 5 updates, evaluated every 2."""
    trainer = linear_trainer(StepBasedEvaluationCallback(2))
    data = make_regression(80)
    trainer.train(data, 2, data, per_device_batch_size=8, gradient_accumulation_steps=2)
    assert updates_of(trainer, "intermediate_eval_loss_epoch") == [2, 4, 6, 8]


def test_metrics_have_one_value_an_epoch_also_with_evaluations_within_it() -> None:
    """What is recorded within an epoch, by the trainer or a callback, has names of its own."""
    record = CallAt("on_eval_epoch_end", lambda trainer: trainer.run_history.update_metric("accuracy", 0.5))
    trainer = linear_trainer(StepBasedEvaluationCallback(2), record)
    data = make_regression(80)
    trainer.train(data, 2, data, per_device_batch_size=16)
    for name in ("train_loss_epoch", "eval_loss_epoch", "accuracy"):
        assert updates_of(trainer, name) == [5, 10], name
    for name in ("intermediate_eval_loss_epoch", "intermediate_accuracy"):
        assert updates_of(trainer, name) == [2, 4, 6, 8], name
    assert len(list(trainer.run_history.get_metric_names())) == 5


def test_the_names_are_those_of_an_epoch_again_when_an_evaluation_within_it_fails() -> None:
    """A run that follows a failure records under the names of always."""
    trainer = linear_trainer(StepBasedEvaluationCallback(2), FailAt("on_eval_step_end", KeyError()))
    data = make_regression(80)
    with pytest.raises(KeyError):
        trainer.train(data, 1, data)
    assert trainer.run_history.metric_name_prefix == ""


def test_the_end_of_an_epoch_is_not_evaluated_twice() -> None:
    """Where the update that is due ends the epoch or the run, the epoch's own evaluation is the only one."""
    trainer = linear_trainer(StepBasedEvaluationCallback(5))
    data = make_regression(80)
    trainer.train(data, 2, data, per_device_batch_size=8, max_num_train_steps=15)
    assert updates_of(trainer, "intermediate_eval_loss_epoch") == [5]
    assert updates_of(trainer, "eval_loss_epoch") == [10, 15]


def test_step_based_evaluation_needs_something_to_evaluate() -> None:
    """A run without an evaluation dataset is refused before the first step."""
    recorder = RecordingCallback()
    with pytest.raises(ConfigurationError, match="eval_dataset"):
        linear_trainer(StepBasedEvaluationCallback(2), recorder).train(make_regression(8), num_epochs=1)
    assert "on_train_step_end" not in recorder.events


@pytest.mark.parametrize(("intermediate_only", "batches"), [(True, [2, 2, 10, 10]), (False, [2, 2, 2, 2])])
def test_only_evaluations_within_an_epoch_are_limited(intermediate_only: bool, batches: list[int]) -> None:
    """By default the evaluation after the epoch is complete, and ``evaluate()`` too."""
    counted: list[int] = []
    count = CallAt("on_eval_epoch_start", lambda _: counted.append(0))
    also = AlsoAt("on_eval_step_end", lambda _: counted.append(counted.pop() + 1))
    limit = LimitEvalStepsCallback(2, limit_intermediate_only=intermediate_only)
    trainer = linear_trainer(limit, StepBasedEvaluationCallback(4), count, also)
    data = make_regression(80)
    trainer.train(data, 1, data, per_device_batch_size=8)
    trainer.evaluate(per_device_batch_size=8)
    assert counted == batches


@pytest.mark.parametrize("error", [StopTrainingError("enough"), RuntimeError("broken")])
def test_the_whole_loader_comes_back_when_an_evaluation_is_broken_off(error: Exception) -> None:
    """After a stop or an exception within a limited evaluation, the trainer has its whole loader again."""
    fail = FailAt("on_eval_step_end", error)
    trainer = linear_trainer(LimitEvalStepsCallback(1), StepBasedEvaluationCallback(2), fail)
    data = make_regression(80)
    with contextlib.suppress(RuntimeError):
        trainer.train(data, 1, data, per_device_batch_size=8)
    assert trainer.eval_dataloader is not None
    assert len(trainer.eval_dataloader) == 10


@pytest.mark.runs_on("two_ranks")
def test_ranks_agree_on_the_limit_where_their_loaders_differ() -> None:
    """Of three steps the last has a sample for one rank only; a limit of two ends both after two updates."""
    trainer = linear_trainer(LimitBatchesCallback(2))
    trainer.train(make_regression(33), num_epochs=2)
    assert trainer.run_config.max_num_train_steps == 4
    assert trainer.num_updates_completed == 4


@pytest.mark.runs_on("two_ranks")
def test_ranks_evaluate_together_within_an_epoch() -> None:
    """Limited evaluations after every second update run on both ranks, the last step of one rank included."""
    recorder = RecordingCallback()
    trainer = linear_trainer(StepBasedEvaluationCallback(2), LimitEvalStepsCallback(1), recorder)
    trainer.train(make_regression(65), 1, make_regression(35))
    assert recorder.events.count("on_eval_epoch_end") == 3
    assert recorder.events.count("on_eval_step_end") == 1 + 1 + 3
