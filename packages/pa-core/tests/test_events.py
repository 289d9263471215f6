"""The callback handler: who is called, in which order, what is refused or warned about, and what a recorder notes."""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import (
    DEFAULT_CALLBACKS,
    AnyTrainer,
    CallbackHandler,
    LogMetricsCallback,
    TerminateOnNaNCallback,
    Trainer,
    TrainerCallback,
    get_default_callbacks,
)
from pa_core.callbacks import CallbackLike
from pa_core.engine.any_trainer import EVENT_NAMES
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification, make_regression
from tests.support.explained import assert_explained
from tests.support.pa_core.good_run import EVAL_DATA, assert_still_works, make_trainer, train
from tests.support.trainers import classifier_trainer

calls: list[tuple[object, ...]] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    """Each test begins without calls."""
    calls.clear()


class First(TrainerCallback):
    """Notes that it was called, for our events and for one of a user's own."""

    @override
    def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        calls.append((type(self).__name__, "on_train_epoch_start"))

    def verify_batch(self, trainer: AnyTrainer, size: int, *, strict: bool = False) -> None:
        """An event of a user's own, with arguments of its own."""
        calls.append((type(self).__name__, "verify_batch", trainer, size, strict))


class Second(First):
    """The same under another name; its constructor does not call that of the base class."""

    def __init__(self) -> None:
        self.name = "second"


class Deaf(TrainerCallback):
    """Listens to nothing."""


@pytest.mark.parametrize("order", [(First, Second), (Second, First), (Second(), First), (First(), Second())])
def test_callbacks_are_called_in_the_order_given(order: tuple[Any, ...]) -> None:
    """Classes and instances may be mixed; a class is constructed."""
    names = [one.__name__ if isinstance(one, type) else type(one).__name__ for one in order]
    trainer = classifier_trainer(Trainer, *order)

    train(trainer, epochs=1)

    assert calls == [(name, "on_train_epoch_start") for name in names]
    for given, registered in zip(order, trainer.callback_handler.callbacks, strict=True):
        assert type(registered) is given if isinstance(given, type) else registered is given


def test_callbacks_may_come_from_a_generator() -> None:
    """It is read once."""
    trainer = classifier_trainer(Trainer)
    trainer.callback_handler.add_callbacks(one for one in (First, Second))
    train(trainer, epochs=1)
    assert [name for name, _ in calls] == ["First", "Second"]


def test_a_function_that_is_set_on_a_callback_is_called() -> None:
    """Adapters that add functions at run time work."""

    def note(trainer: AnyTrainer, **kwargs: Any) -> None:
        calls.append((trainer,))

    adapter = Deaf()
    vars(adapter)["on_train_epoch_start"] = note
    trainer = classifier_trainer(Trainer, adapter)
    train(trainer, epochs=2)
    assert calls == [(trainer,)] * 2


def test_every_event_of_a_run_reaches_a_callback_that_implements_it() -> None:
    """Between them, a training run, an evaluation, a prediction and an error fire each but those that are asked for."""
    trainer = make_trainer()
    recorder = trainer.callback_handler.callbacks[-1]
    assert isinstance(recorder, RecordingCallback)
    train(trainer)
    trainer.evaluate(EVAL_DATA)
    list(trainer.predict(EVAL_DATA))
    trainer.train_step = lambda output: output["nothing"]
    with pytest.raises(KeyError):
        train(trainer)
    assert set(recorder.events) == EVENT_NAMES - {
        "on_stop_training_error",
        "on_train_steps_skipped",
        "on_training_state_request",
        "on_training_state_save",
        "on_training_state_saved",
        "on_preemption",
        "on_preemption_check",
    }


def test_the_default_callbacks_are_those_of_the_page() -> None:
    """A trainer that was given none has the five of docs/callbacks.md, in their order."""
    model = TinyClassifier()
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1))
    page = (Path(__file__).parents[3] / "docs" / "callbacks.md").read_text()
    assert [type(one).__name__ for one in trainer.callback_handler.callbacks] == re.findall(
        r"^\| `(\w+)`.* \| yes", page, re.MULTILINE
    )


def test_the_default_callbacks_may_come_without_the_bar() -> None:
    """The others keep their order."""
    assert get_default_callbacks(progress_bar=False) == (*DEFAULT_CALLBACKS[:3], *DEFAULT_CALLBACKS[4:])


def test_an_event_of_ones_own_is_called_by_name_or_by_method() -> None:
    """Arguments reach the callbacks that implement it as they were given, and no others."""
    handler = CallbackHandler([First, Deaf, Second])
    trainer = classifier_trainer(Trainer)

    handler.call_event("verify_batch", trainer, size=3)
    handler.call_event(First.verify_batch, trainer, 4, strict=True)

    assert calls == [
        ("First", "verify_batch", trainer, 3, False),
        ("Second", "verify_batch", trainer, 3, False),
        ("First", "verify_batch", trainer, 4, True),
        ("Second", "verify_batch", trainer, 4, True),
    ]


def test_only_callbacks_that_implement_an_event_are_listeners() -> None:
    """What nobody implements costs nothing when it fires."""
    first = First()
    handler = CallbackHandler([Deaf, first])
    assert handler.listeners("on_train_epoch_start") == [first.on_train_epoch_start]
    assert handler.listeners("on_train_step_end") == []
    assert [name for name in EVENT_NAMES if CallbackHandler([Deaf]).listeners(name)] == []


def test_callbacks_can_be_added_and_removed_between_events() -> None:
    """The next event sees the change, whatever was called before."""
    handler = CallbackHandler([First])
    handler.call_event("on_train_epoch_start", None)
    handler.add_callback(Second)
    handler.call_event("on_train_epoch_start", None)
    handler.remove_callback(handler.callbacks[0])
    handler.call_event("on_train_epoch_start", None)
    assert [name for name, _ in calls] == ["First", "First", "Second", "Second"]

    handler.add_callbacks([First])
    assert [type(callback) for callback in handler.callbacks] == [Second, First]
    with pytest.raises(ValueError, match="not in list"):
        handler.remove_callback(Deaf())


def test_callbacks_can_be_replaced_for_a_while() -> None:
    """Within the context only the others are called, and the registered ones come back even after an error."""
    handler = CallbackHandler([First])
    with handler.replaced_by([Second]):
        handler.call_event("on_train_epoch_start", None)
    handler.call_event("on_train_epoch_start", None)
    assert [name for name, _ in calls] == ["Second", "First"]

    with pytest.raises(TypeError, match="argument"), handler.replaced_by([Second]):
        handler.call_event("on_train_epoch_start")
    assert [type(callback) for callback in handler.callbacks] == [First]

    with pytest.raises(ValueError, match="second callback"), handler.replaced_by([Second, Second]):
        pass
    assert [type(callback) for callback in handler.callbacks] == [First]


def test_two_callbacks_of_one_class_are_refused() -> None:
    """The error names what is registered, and a trainer goes on with the ones it has."""
    with pytest.raises(ValueError, match="TerminateOnNaNCallback") as caught:
        make_trainer(TerminateOnNaNCallback())
    assert_explained(caught.value, "LogMetricsCallback", "subclass")

    trainer = make_trainer()
    before = list(trainer.callback_handler.callbacks)
    with pytest.raises(ValueError, match="second callback of class RecordingCallback"):
        trainer.callback_handler.add_callback(RecordingCallback)
    assert trainer.callback_handler.callbacks == before


@pytest.mark.parametrize("bad", [print, "callback", 3, nn.ReLU, dict])
def test_what_is_no_callback_is_refused(bad: Any) -> None:
    """Anything else than a callback or its class is named in the error."""
    with pytest.raises(TypeError) as caught:
        CallbackHandler([bad])
    assert_explained(caught.value, "TrainerCallback")


class Misspelt(TrainerCallback):
    """A callback whose method would never be called."""

    def on_train_epoch_ends(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Do nothing, as nobody calls this."""


def test_a_misspelt_event_gets_a_warning_with_the_nearest_one() -> None:
    """The warning comes when the callback is registered, before hours of training, and points at the method."""
    with pytest.warns(UserWarning, match=r"Misspelt\.on_train_epoch_ends.*on_train_epoch_end\b") as warned:
        make_trainer(Misspelt)
    line = Misspelt.on_train_epoch_ends.__code__.co_firstlineno
    assert [(one.filename, one.lineno) for one in warned] == [(__file__, line)]


class HalfAState(TrainerCallback):
    """Has a state that could not be restored, because of a typo."""

    @override
    def state_dict(self) -> dict[str, int]:
        return {"updates": 3}

    def load_sate_dict(self, state_dict: dict[str, int]) -> None:
        """Restore it."""


def test_a_state_that_is_saved_and_not_restored_gets_a_warning() -> None:
    """Training states would leave it out without a word; a callback without a state has none of the methods."""
    with pytest.warns(UserWarning, match=r"HalfAState has state_dict\(\) and no load_state_dict\(\)"):
        make_trainer(HalfAState)
    assert not hasattr(First(), "state_dict")


def test_annotations_with_callbacks_may_be_evaluated() -> None:
    """The alias takes a type argument where Python itself looks at it, too."""
    alias: Any = CallbackLike
    assert TrainerCallback[AnyTrainer, Any, Any] in get_args(alias[AnyTrainer])
    assert type[TrainerCallback[AnyTrainer, Any, Any]] in get_args(alias[AnyTrainer])


class OnValidation(TrainerCallback):
    """Listens to an event that is not ours, but may be one of the user's own trainer; has an attribute named so."""

    calls = 0
    on_gpu = False

    def on_validation_batch(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Count the calls."""
        self.calls += 1


class FiresValidation(Trainer[TinyClassifier]):
    """A trainer that fires it."""

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.callback_handler.call_event("on_validation_batch", self)
        return super().calculate_eval_batch_loss(batch)


def test_an_event_of_the_users_own_trainer_gets_no_warning() -> None:
    """A method that starts with `on_` is nothing odd where somebody fires the event."""
    listener = OnValidation()
    trainer = classifier_trainer(FiresValidation, listener)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(trainer, epochs=1)
    assert listener.calls == 1


def test_an_event_that_nobody_fires_gets_a_warning_at_the_end_of_the_run() -> None:
    """Only then is it known, and training was not disturbed; it is said once, and not of what is no method."""
    listener = OnValidation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = make_trainer(listener)
    with pytest.warns(UserWarning, match=r"OnValidation\.on_validation_batch") as warned:
        train(trainer)
    line = OnValidation.on_validation_batch.__code__.co_firstlineno
    assert [(one.filename, one.lineno) for one in warned] == [(__file__, line)]
    assert trainer.num_updates_completed == 4
    assert_still_works(trainer, trainer.model)


def test_a_subclass_counts_as_a_class_of_its_own() -> None:
    """What the error about a second callback advises works."""

    class MyLog(LogMetricsCallback):
        pass

    handler = CallbackHandler([LogMetricsCallback, MyLog])
    assert [type(callback) for callback in handler.callbacks] == [LogMetricsCallback, MyLog]


def test_a_run_is_recorded_event_by_event_with_its_arguments() -> None:
    """Names in their order, and beside each what it was called with."""
    recorder = RecordingCallback()
    classifier_trainer(Trainer, recorder).train(
        make_classification(16), 1, make_classification(4), per_device_batch_size=8
    )

    assert recorder.events == [
        "on_init_end",
        "on_prepare_start",
        "on_training_run_start",
        "on_train_epoch_start",
        *["on_train_step_start", "on_train_step_end", "on_optimizer_step_end"] * 2,
        "on_train_epoch_end",
        "on_eval_epoch_start",
        "on_eval_step_start",
        "on_eval_step_end",
        "on_eval_epoch_end",
        "on_training_run_epoch_end",
        "on_training_run_end",
    ]
    assert len(recorder.arguments) == len(recorder.events)
    by_event = dict(zip(recorder.events, recorder.arguments, strict=True))
    assert by_event["on_optimizer_step_end"] == {"update": 2}
    assert set(by_event["on_train_step_end"]) == {"batch", "batch_output", "step"}
    assert by_event["on_train_step_end"]["step"] == 2
    assert by_event["on_eval_step_end"]["batch_output"]["batch_size"] == 4
    assert by_event["on_train_epoch_end"] == {}


def test_every_event_is_recorded_and_none_is_shared_between_recorders() -> None:
    """Each recorder has a list of its own, copies included."""
    one, other = RecordingCallback(), RecordingCallback()
    for event in sorted(EVENT_NAMES):
        getattr(one, event)(None, note=event)
    assert one.events == sorted(EVENT_NAMES)
    assert one.arguments == [{"note": event} for event in one.events]
    assert (other.events, other.arguments) == ([], [])

    twin = copy.deepcopy(one)
    twin.on_init_end(classifier_trainer(Trainer))
    assert (len(one.events), len(twin.events)) == (len(EVENT_NAMES), len(EVENT_NAMES) + 1)


@pytest.mark.parametrize("make", [make_classification, make_regression])
def test_data_follows_from_its_seed_alone(make: Any) -> None:
    """The same seed gives the same data, another one other data, and no global generator is touched."""
    before = torch.get_rng_state()
    one, same, other = make(10, 3, seed=1), make(10, 3, seed=1), make(10, 3, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(one, TensorDataset)
    assert len(one) == 10
    assert one.tensors[0].shape == (10, 3)
    assert all(map(torch.equal, one.tensors, same.tensors))
    assert not torch.equal(one.tensors[0], other.tensors[0])


@pytest.mark.parametrize("batch_norm", [True, False])
def test_the_model_has_the_sizes_asked_for(batch_norm: bool) -> None:
    """Features, classes, hidden units, and buffers where they are wanted."""
    model = TinyClassifier(5, 2, hidden=7, batch_norm=batch_norm)
    assert model(torch.zeros(3, 5)).shape == (3, 2)
    assert model.layers[0].out_features == 7
    assert bool(list(model.buffers())) is batch_norm
