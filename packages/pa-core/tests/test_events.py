"""The callback handler: who is called, in which order, and what is refused or warned about."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from torch import nn
from torch.optim import SGD
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
from pa_core.any_trainer import EVENT_NAMES
from pa_core.testing import RecordingCallback, TinyClassifier
from tests.support.explained import assert_explained
from tests.support.pa_core.good_run import EVAL_DATA, assert_still_works, make_trainer, train

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


def trainer_with(*callbacks: Any) -> Trainer[TinyClassifier]:
    """A trainer with these callbacks only."""
    model = TinyClassifier()
    return Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=callbacks)


@pytest.mark.parametrize("order", [(First, Second), (Second, First), (Second(), First), (First(), Second())])
def test_callbacks_are_called_in_the_order_given(order: tuple[Any, ...]) -> None:
    """Classes and instances may be mixed; a class is constructed."""
    names = [one.__name__ if isinstance(one, type) else type(one).__name__ for one in order]
    trainer = trainer_with(*order)

    train(trainer, epochs=1)

    assert calls == [(name, "on_train_epoch_start") for name in names]
    for given, registered in zip(order, trainer.callback_handler.callbacks, strict=True):
        assert type(registered) is given if isinstance(given, type) else registered is given


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
        "on_train_steps_passed_over",
        "on_training_state_request",
        "on_training_state_save",
        "on_preemption",
    }


def test_the_default_callbacks_may_come_without_the_bar() -> None:
    """The others keep their order."""
    assert get_default_callbacks(progress_bar=False) == (*DEFAULT_CALLBACKS[:3], *DEFAULT_CALLBACKS[4:])


def test_an_event_of_ones_own_is_called_by_name_or_by_method() -> None:
    """Arguments reach the callbacks that implement it as they were given, and no others."""
    handler = CallbackHandler([First, Deaf, Second])
    trainer = trainer_with()

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
    model = TinyClassifier()
    optimizer = SGD(model.parameters(), lr=0.1)
    trainer = FiresValidation(model, nn.CrossEntropyLoss(), optimizer, callbacks=[listener])
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
