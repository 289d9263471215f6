"""How a run ends before its time, or in order: its last events, as the page of failures has them, and what stays."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import TensorDataset

from pa_core import AnyTrainer, NonFiniteLossError, StopTrainingError, TerminateOnNaNCallback, Trainer, TrainerCallback
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification
from tests.launching import Launch
from tests.support.callbacks import CallAt, TellAt
from tests.support.pa_core.events_of_endings import table
from tests.support.trainers import classifier_trainer

BATCH_SIZE = 4
TRAIN_DATA = make_classification(12)
EVAL_DATA = make_classification(8, seed=1)

EVALUATION = ["on_eval_epoch_start", *["on_eval_step_start", "on_eval_step_end"] * 2, "on_eval_epoch_end"]
EPOCH = [
    "on_train_epoch_start",
    *["on_train_step_start", "on_train_step_end", "on_optimizer_step_end"] * 3,
    "on_train_epoch_end",
    *EVALUATION,
    "on_training_run_epoch_end",
]
TRAINING_RUN = ["on_prepare_start", "on_training_run_start", *EPOCH, *EPOCH, "on_training_run_end"]
EVALUATION_RUN = ["on_prepare_start", "on_evaluation_run_start", *EVALUATION, "on_evaluation_run_end"]


class RaiseAt(TrainerCallback):
    """Raises an error at one event of the run, counted from the first."""

    def __init__(self, position: int, error: BaseException) -> None:
        self.countdown = position
        self.error = error
        for event in set(TRAINING_RUN) | set(EVALUATION_RUN):
            setattr(self, event, self._count_down)

    def _count_down(self, _trainer: AnyTrainer, **_: Any) -> None:
        self.countdown -= 1
        if self.countdown == -1:
            raise self.error


def make_trainer(*callbacks: TrainerCallback) -> tuple[Trainer[TinyClassifier], RecordingCallback]:
    """A trainer of a fixed model; what is recorded includes the event at which a later callback raises."""
    torch.manual_seed(0)
    model = TinyClassifier(batch_norm=True)
    recorder = RecordingCallback()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[recorder, *callbacks])
    recorder.events.clear()
    return trainer, recorder


def train(trainer: Trainer[Any], **kwargs: Any) -> None:
    """Two epochs of three updates."""
    arguments: dict[str, Any] = {"num_epochs": 2, "eval_dataset": EVAL_DATA, **kwargs}
    trainer.train(TRAIN_DATA, per_device_batch_size=BATCH_SIZE, **arguments)


def weights_of(trainer: AnyTrainer) -> list[Tensor]:
    """A copy of the state of the model."""
    return [value.detach().clone() for value in trainer.get_model().state_dict().values()]


def assert_as_before(trainer: Trainer[Any], model: nn.Module) -> None:
    """Nothing of the run is left on what belongs to the user, and the next run is complete."""
    assert trainer.model is model
    assert "forward" not in vars(model)
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    recorder = trainer.callback_handler.callbacks[0]
    assert isinstance(recorder, RecordingCallback)
    recorder.events.clear()
    train(trainer)
    assert recorder.events == TRAINING_RUN
    assert trainer.run_history.current_epoch == 3


ENTRIES: dict[str, tuple[Callable[[Trainer[Any]], object], list[str]]] = {
    "train": (train, TRAINING_RUN),
    "evaluate": (lambda trainer: trainer.evaluate(EVAL_DATA, BATCH_SIZE), EVALUATION_RUN),
}


@pytest.mark.runs_on("one_process", "bf16")
@pytest.mark.parametrize(
    ("entry", "position"),
    [(entry, position) for entry, (_, events) in ENTRIES.items() for position in range(1, len(events) - 1)],
)
def test_a_stop_ends_a_run_through_its_last_event(entry: str, position: int) -> None:
    """Wherever a callback stops it, in training or evaluation, the run is told so, and the trainer can train again."""
    run, events = ENTRIES[entry]
    trainer, recorder = make_trainer(RaiseAt(position, StopTrainingError("enough")))
    model = trainer.model

    run(trainer)

    assert recorder.events == [*events[: position + 1], "on_stop_training_error", events[-1]]
    assert str(recorder.arguments[-2]["error"]) == "enough"
    assert_as_before(trainer, model)


HOOKS = {
    "training_run_start": "on_prepare_start",
    "train_epoch_start": "on_training_run_start",
    "calculate_train_batch_loss": "on_train_step_start",
    "backward_step": "on_train_step_end",
    "optimizer_step": "on_train_step_end",
    "scheduler_step": "on_train_step_end",
    "train_epoch_end": "on_optimizer_step_end",
    "eval_epoch_start": "on_train_epoch_end",
    "calculate_eval_batch_loss": "on_eval_step_start",
    "eval_epoch_end": "on_eval_step_end",
    "training_run_epoch_end": "on_eval_epoch_end",
}


@pytest.mark.parametrize(("hook", "last_event"), HOOKS.items())
def test_a_hook_of_the_trainer_stops_the_run_as_a_callback_does(hook: str, last_event: str) -> None:
    """An overridden hook may raise the stop itself; its own event does not fire then."""
    trainer, recorder = make_trainer()

    def stop(*_: Any) -> None:
        raise StopTrainingError(hook)

    setattr(trainer, hook, stop)
    train(trainer, create_scheduler_fn=partial(ExponentialLR, gamma=0.9))

    assert recorder.events[-3:] == [last_event, "on_stop_training_error", "on_training_run_end"]
    model = trainer.model
    delattr(trainer, hook)
    assert_as_before(trainer, model)


@pytest.mark.runs_on("one_process", "bf16")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
@pytest.mark.parametrize("position", range(len(TRAINING_RUN) - 1))
def test_an_exception_leaves_the_run_at_once(position: int, error: type[BaseException]) -> None:
    """The caller gets the error itself; callbacks hear of it, and the run does not end as if it were complete."""
    raised = error("in the middle")
    trainer, recorder = make_trainer(RaiseAt(position, raised))
    model = trainer.model

    with pytest.raises(error) as caught:
        train(trainer)

    assert caught.value is raised
    assert recorder.events == [*TRAINING_RUN[: position + 1], "on_exception"]
    assert recorder.arguments[-1]["exception"] is raised
    assert_as_before(trainer, model)


def test_a_keyboard_interrupt_costs_nothing_that_was_recorded() -> None:
    """After Ctrl-C in the second epoch, the history of the first is there and a further run adds to it."""
    press_ctrl_c = CallAt("on_optimizer_step_end", lambda _trainer: signal.raise_signal(signal.SIGINT), 5)
    trainer, recorder = make_trainer(press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        train(trainer)

    history = trainer.run_history
    assert recorder.events[-1] == "on_exception"
    assert "on_training_run_end" not in recorder.events
    first = list(history.get_metric_values("train_loss_epoch"))
    assert len(first) == 1
    assert (history.current_epoch, history.clock.update, history.clock.samples) == (2, 5, 20)
    seconds = history.clock.seconds
    assert history.clock.seconds == seconds, "time passes only while a run goes on"

    trainer.callback_handler.callbacks.pop()
    trainer.callback_handler.add_callback(TerminateOnNaNCallback)
    train(trainer, num_epochs=1, reset_run_history=False)
    assert list(history.get_metric_values("train_loss_epoch"))[:1] == first
    assert (history.current_epoch, history.clock.update) == (3, 8)


def with_nan_at(index: int, size: int = 12) -> TensorDataset:
    """Samples of which one has an input that is no number."""
    inputs, targets = make_classification(size).tensors
    inputs = inputs.clone()
    inputs[index, 0] = torch.nan
    return TensorDataset(inputs, targets)


IN_ORDER = {"shuffle": False}


def test_a_loss_that_is_nan_is_raised_though_another_callback_stopped_first() -> None:
    """All callbacks see the event, and what matters most is what the script is told."""
    position = TRAINING_RUN.index("on_train_step_end")
    trainer, recorder = make_trainer(RaiseAt(position, StopTrainingError("enough")), TerminateOnNaNCallback())
    with pytest.raises(NonFiniteLossError, match="training loss"):
        trainer.train(with_nan_at(0, size=24), 1, train_dataloader_kwargs=IN_ORDER)
    assert recorder.events[-3:] == ["on_train_step_end", "on_stop_training_error", "on_training_run_end"]


def test_an_evaluation_loss_that_is_nan_raises_after_the_events() -> None:
    """`evaluate()`, and the evaluation in a training run, tell of a loss that is no number."""
    trainer, recorder = make_trainer(TerminateOnNaNCallback())
    model = trainer.model
    with pytest.raises(NonFiniteLossError, match="evaluation loss"):
        trainer.evaluate(with_nan_at(3), per_device_batch_size=BATCH_SIZE)
    assert recorder.events[-3:] == ["on_eval_step_end", "on_stop_training_error", "on_evaluation_run_end"]

    with pytest.raises(NonFiniteLossError, match="evaluation loss"):
        train(trainer, eval_dataset=with_nan_at(3))
    assert recorder.events[-3:] == ["on_eval_step_end", "on_stop_training_error", "on_training_run_end"]
    assert trainer.num_updates_completed == 3
    assert list(trainer.run_history.get_metric_names()) == ["train_loss_epoch"]
    assert_as_before(trainer, model)


@pytest.mark.parametrize("accumulation", [1, 2, 3, 4])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_a_number_of_updates_ends_the_run_exactly_there(limit: int, accumulation: int) -> None:
    """`max_num_train_steps` wins over the epochs, and the events of the last epoch close as of any other."""
    after_updates: list[list[Tensor]] = []
    whole, _ = make_trainer(CallAt("on_optimizer_step_end", lambda one: after_updates.append(weights_of(one))))
    torch.manual_seed(1)
    train(whole, num_epochs=5, gradient_accumulation_steps=accumulation)
    trainer, recorder = make_trainer()
    torch.manual_seed(1)
    train(trainer, num_epochs=1, gradient_accumulation_steps=accumulation, max_num_train_steps=limit)

    updates_of_epoch = -(-3 // accumulation)
    epochs = -(-limit // updates_of_epoch)
    assert trainer.num_updates_completed == trainer.run_history.clock.update == limit
    assert recorder.events.count("on_optimizer_step_end") == limit
    assert recorder.events[-len(EVALUATION) - 3 :] == [
        "on_train_epoch_end",
        *EVALUATION,
        "on_training_run_epoch_end",
        "on_training_run_end",
    ]
    for event in ("on_train_epoch_start", "on_train_epoch_end", "on_eval_epoch_end", "on_training_run_epoch_end"):
        assert recorder.events.count(event) == epochs
    assert trainer.run_config.num_epochs == trainer.num_epochs_completed == epochs
    assert all(map(torch.equal, weights_of(trainer), after_updates[limit - 1]))


@pytest.mark.parametrize(
    "error",
    [
        partial(StopTrainingError, "enough"),
        partial(NonFiniteLossError, "NaN", given="NaN", expected="a number", do="Look."),
        partial(torch.OutOfMemoryError, "no memory"),
        KeyboardInterrupt,
    ],
    ids=["stop", "not_finite", "out_of_memory", "keyboard"],
)
def test_a_run_that_ended_early_keeps_nothing_of_its_last_step(error: Callable[[], BaseException]) -> None:
    """The graph of the last step is freed when the run ends, so that a smaller run fits into the memory."""
    graphs: list[weakref.ref[Tensor]] = []

    def raise_in_step(_trainer: Any, told: Any) -> None:
        graphs.append(weakref.ref(told["batch_output"]["loss"]))
        raise error()

    callbacks = [TellAt("on_train_step_end", raise_in_step)]
    model = TinyClassifier()
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=callbacks)
    gc.disable()  # what stands in a cycle stays in memory
    try:
        with suppress(BaseException):
            trainer.train(TRAIN_DATA, num_epochs=1, per_device_batch_size=BATCH_SIZE)
        assert [graph() for graph in graphs] == [None]
    finally:
        gc.enable()


EVENTS_OF_EVALUATE = {"on_training_run_epoch_end": "on_eval_epoch_end", "on_training_run_end": "on_evaluation_run_end"}
LIMIT = "`max_num_train_steps`"
WITHOUT_UPDATES = ("evaluate", LIMIT)
NOT_FINITE = "a loss that is not finite, with `TerminateOnNaNCallback`"
SIGTERM = "`SIGTERM`, if nobody handles it"


def go_on() -> None:
    """End nothing."""


def raise_error(error: Exception) -> None:
    """Raise an error."""
    raise error


IN_THE_SECOND_STEP: dict[str, Callable[[], object]] = {
    "its last epoch": go_on,
    LIMIT: go_on,
    "`StopTrainingError`": lambda: raise_error(StopTrainingError()),
    NOT_FINITE: go_on,
    "any other exception": lambda: raise_error(OSError()),
    "Ctrl-C, or `SIGINT`": lambda: signal.raise_signal(signal.SIGINT),
    "`sys.exit()`": sys.exit,
}


def samples(way: str) -> TensorDataset:
    """Three batches of four; the loss of the last one may be NaN."""
    inputs, targets = make_classification(12).tensors
    last: Tensor = inputs[-1]
    last.fill_(torch.nan if way == NOT_FINITE else 0.0)
    return TensorDataset(inputs, targets)


def run(entry: str, way: str) -> tuple[list[str], str]:
    """The events of a run that ends in some way, and what `train()` or `evaluate()` does, in words of the table."""
    recorder = RecordingCallback()
    step_end = {"train": "on_train_step_end", "evaluate": "on_eval_step_end"}[entry]
    steps = itertools.count(1)
    act = CallAt(step_end, lambda _trainer: IN_THE_SECOND_STEP[way]() if next(steps) == 2 else None)
    trainer = classifier_trainer(Trainer, recorder, act, TerminateOnNaNCallback)
    try:
        if entry == "train":
            limit = 5 if way == LIMIT else None
            trainer.train(samples(way), 2, make_classification(8), 4, max_num_train_steps=limit)
        else:
            trainer.evaluate(samples(way), 4)
    except OSError:
        return recorder.events, "raises it"
    except BaseException as error:
        return recorder.events, f"raises `{type(error).__name__}`"
    return recorder.events, "returns"


def assert_as_in_the_table(entry: str, way: str, events: list[str], outcome: str) -> None:
    """Each cell of the row says what happened."""
    row = table()[way]
    row.pop("started again, it")  # that is tested with training states
    assert outcome == row.pop("train()")
    epoch_starts = {"train": "on_train_epoch_start", "evaluate": "on_eval_epoch_start"}[entry]
    last_epoch = events[-events[::-1].index(epoch_starts) :]
    for column, cell in row.items():
        event = EVENTS_OF_EVALUATE.get(column, column) if entry == "evaluate" else column
        assert ("yes" if event in last_epoch else "no") == cell, event


def test_the_table_is_complete() -> None:
    """Each way of ending a run that is tested is in the table, and no other."""
    assert table().keys() == {*IN_THE_SECOND_STEP, SIGTERM}


@pytest.mark.parametrize(
    ("entry", "way"),
    [(entry, way) for entry in ("train", "evaluate") for way in IN_THE_SECOND_STEP if (entry, way) != WITHOUT_UPDATES],
)
def test_a_run_ends_through_the_events_of_the_table(entry: str, way: str) -> None:
    """Each cell is what happens, for `train()` and for `evaluate()`."""
    assert_as_in_the_table(entry, way, *run(entry, way))


KILLED = """
import os, signal, sys
from functools import partial
import torch
from pa_core import Trainer, TrainerCallback
from pa_core.engine.any_trainer import EVENT_NAMES
from pa_core.testing import TinyClassifier, make_classification

class Say(TrainerCallback):
    def __init__(self):
        for event in EVENT_NAMES:
            setattr(self, event, partial(self.say, event))

    def say(self, event, trainer, **kwargs):
        print(event, flush=True)
        if event.endswith("_step_end") and kwargs.get("step") == 2:
            signal.raise_signal(signal.SIGTERM)

for entry in ("train", "evaluate"):
    print(entry, flush=True)
    child = os.fork()
    if child == 0:
        model = TinyClassifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(model, torch.nn.CrossEntropyLoss(), optimizer, callbacks=[Say])
        if entry == "train":
            trainer.train(make_classification(12), 2, make_classification(8), 4)
        else:
            trainer.evaluate(make_classification(12), 4)
        sys.exit()
    print("ended by", os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)
"""


def test_sigterm_ends_the_process(launch: Launch) -> None:
    """Without a handler of somebody's, no event tells of the signal."""
    launched = launch(KILLED)
    assert launched.status == 0
    in_training, in_evaluation = launched.output.split("evaluate\n")
    for entry, output in [("train", in_training), ("evaluate", in_evaluation)]:
        *events, last = output.split("\n")[:-1]
        assert last == f"ended by {signal.SIGTERM.value}"
        assert events[-1].endswith("_step_end")
        assert_as_in_the_table(entry, SIGTERM, events, "ends with the process")
