"""Bad input: an error that says what was given, what was expected and what to do, and a trainer that still works."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler, TensorDataset
from tqdm import tqdm
from typing_extensions import override

from pa_core import (
    DEFAULT_CALLBACKS,
    AnyTrainer,
    BatchOutputError,
    CallbackHandler,
    CheckpointError,
    ConfigurationError,
    EmptyDatasetError,
    MetricNotFoundError,
    SaveBestModelCallback,
    TerminateOnNaNCallback,
    Trainer,
    TrainerCallback,
)
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification

TRAIN_DATA = make_classification(16)
EVAL_DATA = make_classification(8, seed=1)
EMPTY = TensorDataset(torch.empty(0, 4), torch.empty(0, dtype=torch.long))

Net: TypeAlias = "Trainer[TinyClassifier]"


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars are drawn as on a terminal, so that one that stays open can be seen."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")


class Permissive(Trainer[TinyClassifier]):
    """A trainer whose steps and loaders can be replaced by bad ones, and put back."""

    train_step: Callable[[Any], Any] | None = None
    eval_step: Callable[[Any], Any] | None = None
    train_loader: Callable[[], Any] | None = None
    eval_loader: Callable[[], Any] | None = None

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        return output if self.train_step is None else self.train_step(output)

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        return output if self.eval_step is None else self.eval_step(output)

    @override
    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> Any:
        if self.train_loader is not None:
            return self.train_loader()
        return super().create_train_dataloader(batch_size, train_dl_kwargs)

    @override
    def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: dict[str, Any] | None = None) -> Any:
        if self.eval_loader is not None:
            return self.eval_loader()
        return super().create_eval_dataloader(batch_size, eval_dl_kwargs)


def make_trainer(*callbacks: Any) -> Permissive:
    """A trainer with the callbacks that users have by default, and one that notes the events."""
    torch.manual_seed(0)
    model = TinyClassifier(batch_norm=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    everything = (*DEFAULT_CALLBACKS, RecordingCallback, *callbacks)
    return Permissive(model, nn.CrossEntropyLoss(), optimizer, callbacks=everything)


def train(trainer: Trainer[Any], *, epochs: int = 2, data: Any = TRAIN_DATA, **kwargs: Any) -> None:
    """A good run, but for what is passed."""
    arguments: dict[str, Any] = {"eval_dataset": EVAL_DATA, **kwargs}
    trainer.train(data, epochs, **arguments)


def assert_explained(error: BaseException, *words: str) -> None:
    """The text has all three parts, and names what matters."""
    text = str(error)
    for part in ("given", "expected"):
        assert part in text.lower()
    _, _, instruction = text.partition("do:") if "do:" in text else text.partition("Expected")[-1].partition(". ")
    assert len(instruction.strip()) > 10
    for word in words:
        assert word in text


def assert_no_bar_is_open() -> None:
    """Nothing will be drawn over what the user prints next."""
    open_bars: Any = vars(tqdm)["_instances"]
    assert not open_bars


def assert_still_works(trainer: Trainer[Any], model: nn.Module) -> None:
    """Nothing is wrapped, no bar is open, and the next run is as it would have been."""
    assert trainer.model is model
    assert "forward" not in vars(model)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert_no_bar_is_open()
    recorder = next(one for one in trainer.callback_handler.callbacks if isinstance(one, RecordingCallback))
    recorder.events.clear()
    train(trainer)
    assert recorder.events.count("on_optimizer_step_end") == 4
    assert recorder.events[-1] == "on_training_run_end"
    assert "on_exception" not in recorder.events
    assert len(list(trainer.run_history.get_metric_values("train_loss_epoch"))) == 2
    assert trainer.run_history.current_epoch == 3
    assert_no_bar_is_open()


class Unsized(Dataset[Any]):
    """A dataset that forgot its length."""

    @override
    def __getitem__(self, index: int) -> Any:
        return TRAIN_DATA[index]


class Stream(IterableDataset[Any]):
    """A dataset that can only be iterated, and does not say how long."""

    @override
    def __iter__(self) -> Iterator[Any]:
        return (TRAIN_DATA[index] for index in range(len(TRAIN_DATA)))


class SizedStream(Stream):
    """One that does."""

    def __len__(self) -> int:
        return len(TRAIN_DATA)


class EmptyStream(SizedStream):
    """One with nothing in it."""

    @override
    def __len__(self) -> int:
        return 0


def no_samples() -> BatchSampler:
    """A sampler of nothing."""
    return BatchSampler(SequentialSampler([]), batch_size=4, drop_last=False)


def attribute(name: str, value: Any) -> Callable[[Permissive], None]:
    """Train after an attribute of the trainer was set to something bad, and put it right again."""

    def act(trainer: Permissive) -> None:
        before = getattr(trainer, name)
        setattr(trainer, name, value)
        try:
            train(trainer)
        finally:
            setattr(trainer, name, before)

    return act


@dataclass(frozen=True)
class Mistake:
    """Something a user may do, the error that it gives, and what the error names."""

    act: Callable[[Permissive], None]
    error: type[Exception]
    words: tuple[str, ...] = ()


def mistake(error: type[Exception], *words: str, **kwargs: Any) -> Mistake:
    """Training with bad arguments."""
    return Mistake(partial(train, **kwargs), error, words)


def scheduler_of(trainer: AnyTrainer) -> lr_scheduler.StepLR:
    """A scheduler where a function that makes one is expected."""
    return lr_scheduler.StepLR(trainer.optimizer, 1)


def forgets_to_return(optimizer: Optimizer) -> None:
    """A factory without a return statement."""


BEFORE_THE_RUN: dict[str, Mistake] = {
    "empty training data": mistake(EmptyDatasetError, "TensorDataset", "0 samples", data=EMPTY),
    "empty evaluation data": mistake(EmptyDatasetError, "0 samples", eval_dataset=EMPTY),
    "empty data to evaluate": Mistake(lambda trainer: trainer.evaluate(EMPTY), EmptyDatasetError, ("0 samples",)),
    "an empty list": mistake(EmptyDatasetError, "list", data=[]),
    "less than a batch with drop_last": mistake(
        EmptyDatasetError,
        "16 samples",
        "global batches of 32",
        "drop_last=False",
        per_device_batch_size=32,
        train_dataloader_kwargs={"drop_last": True},
    ),
    "less than a batch to evaluate with drop_last": mistake(
        EmptyDatasetError,
        "8 samples",
        "drop_last=False",
        per_device_batch_size=16,
        eval_dataloader_kwargs={"drop_last": True},
    ),
    "a batch sampler of nothing": mistake(
        EmptyDatasetError, "create_train_dataloader", train_dataloader_kwargs={"batch_sampler": no_samples()}
    ),
    "an iterable dataset without samples": mistake(EmptyDatasetError, "create_train_dataloader", data=EmptyStream()),
    "an iterable dataset without a length": mistake(
        ConfigurationError, "create_train_dataloader", "__len__", data=Stream()
    ),
    "an iterable dataset to evaluate without a length": mistake(
        ConfigurationError, "create_eval_dataloader", "__len__", eval_dataset=Stream()
    ),
    "a dataset without a length": mistake(ConfigurationError, "Unsized", "__len__", data=Unsized()),
    "a loader without a length": Mistake(
        attribute("train_loader", lambda: iter([])),
        ConfigurationError,
        ("list_iterator", "create_train_dataloader", "make the loader a list"),
    ),
    "no loader": Mistake(
        attribute("train_loader", lambda: None), ConfigurationError, ("NoneType", "create_train_dataloader")
    ),
    "no loader for the evaluation": Mistake(
        attribute("eval_loader", lambda: None), ConfigurationError, ("NoneType", "create_eval_dataloader")
    ),
    "a loader of nothing": Mistake(
        attribute("train_loader", list), EmptyDatasetError, ("list", "create_train_dataloader")
    ),
    **{
        f"{name}={value}": mistake(ConfigurationError, f"{name}={value}", **{name: value})
        for name in ("per_device_batch_size", "gradient_accumulation_steps", "max_num_train_steps")
        for value in (0, -1, 1.5)
    },
    **{
        f"num_epochs={value}": mistake(ConfigurationError, f"num_epochs={value}", epochs=value)
        for value in (0, -1, 0.5)
    },
    **{
        f"{name}={value}": mistake(ConfigurationError, f"{name}={value}", **{name: value})
        for name in ("gradient_clip_value", "gradient_clip_norm")
        for value in (0, -1.0, float("nan"))
    },
    "batch_size=0 for a loader": mistake(ConfigurationError, "batch_size=0", train_dataloader_kwargs={"batch_size": 0}),
    "a batch size of 0 to evaluate": Mistake(
        lambda trainer: trainer.evaluate(EVAL_DATA, per_device_batch_size=0),
        ConfigurationError,
        ("per_device_batch_size=0",),
    ),
    "a scheduler instead of a factory": Mistake(
        lambda trainer: train(trainer, create_scheduler_fn=scheduler_of(trainer)),
        TypeError,
        ("StepLR", "functools.partial(StepLR", "lambda optimizer"),
    ),
    "a name instead of a factory": mistake(TypeError, "create_scheduler_fn", "str", create_scheduler_fn="cosine"),
    "a factory that returns nothing": mistake(
        TypeError, "create_scheduler_fn", "returned None", create_scheduler_fn=forgets_to_return
    ),
    "an optimizer of another model": Mistake(
        attribute("optimizer", SGD(nn.Linear(1, 1).parameters(), lr=0.1)),
        ConfigurationError,
        ("SGD", "2 other parameters", "TinyClassifier"),
    ),
    "no optimizer": Mistake(attribute("optimizer", None), ConfigurationError, ("optimizer=None",)),
}


@pytest.mark.parametrize("name", BEFORE_THE_RUN)
def test_a_run_that_cannot_start_says_why_and_costs_nothing(name: str) -> None:
    """The weights, the history and the config of the last run are as they were, and the next run works."""
    mistake = BEFORE_THE_RUN[name]
    trainer = make_trainer()
    train(trainer)
    model, config = trainer.model, trainer.run_config
    history, epoch = list(trainer.run_history.get_metric_values("train_loss_epoch")), trainer.run_history.current_epoch
    weights = [value.clone() for value in model.state_dict().values()]

    with pytest.raises(mistake.error) as caught:
        mistake.act(trainer)

    assert_explained(caught.value, *mistake.words)
    assert trainer.run_config is config or "create_scheduler_fn" in str(caught.value)
    assert list(trainer.run_history.get_metric_values("train_loss_epoch")) == history
    assert trainer.run_history.current_epoch == epoch
    assert all(map(torch.equal, weights, model.state_dict().values()))
    assert_still_works(trainer, model)


def replaced(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A step that returns other values than it should."""
    return lambda output: {**output, **values}


def without(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A step that leaves out a key."""
    return lambda output: {name: value for name, value in output.items() if name != key}


STEPS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "nothing": (lambda output: None, ("None", "a dictionary")),
    "a loss alone": (lambda output: output["loss"], ("Tensor", "a dictionary")),
    "a tuple": (lambda output: (output["loss"], 4), ("tuple", "a dictionary")),
    **{f"no {key}": (without(key), (f"the key {key}",)) for key in ("loss", "model_outputs", "batch_size")},
    "a loss for each sample": (replaced(loss=torch.ones(4, requires_grad=True)), ("(4,)", "one element", "mean")),
    "a number as a loss": (replaced(loss=0.5), ("float", "a tensor")),
    "a batch size that is no number": (replaced(batch_size=torch.ones(4)), ("batch_size=tensor", "whole number")),
    "a negative batch size": (replaced(batch_size=-1), ("batch_size=-1",)),
}


@pytest.mark.parametrize("phase", ["train", "eval"])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_returns_something_else_is_named(name: str, phase: str) -> None:
    """The error says which method returned what, and what it should return."""
    step, words = STEPS[name]
    trainer = make_trainer()
    setattr(trainer, f"{phase}_step", step)
    model = trainer.model
    with pytest.raises(BatchOutputError) as caught:
        train(trainer)

    assert_explained(caught.value, f"calculate_{phase}_batch_loss", *words)
    recorder = trainer.callback_handler.callbacks[-1]
    assert isinstance(recorder, RecordingCallback)
    assert recorder.events[-1] == "on_exception"
    setattr(trainer, f"{phase}_step", None)
    assert_still_works(trainer, model)


def test_a_loss_without_a_gradient_is_refused_in_training_only() -> None:
    """Detached, or of a model that is frozen as a whole, it would train nothing; in evaluation it is usual."""
    trainer = make_trainer()
    trainer.eval_step = lambda output: {**output, "loss": output["loss"].detach()}
    trainer.train_step = lambda output: {**output, "loss": output["loss"].detach()}
    with pytest.raises(BatchOutputError) as caught:
        train(trainer)
    assert_explained(caught.value, "calculate_train_batch_loss", "without a gradient", "detached")
    trainer.train_step = None
    assert_still_works(trainer, trainer.model)

    trainer.model.requires_grad_(requires_grad=False)
    with pytest.raises(BatchOutputError) as caught:
        train(trainer)
    assert_explained(caught.value, "every parameter is frozen")
    trainer.model.requires_grad_()
    assert_still_works(trainer, trainer.model)


def test_an_iterable_dataset_with_a_length_trains() -> None:
    """What the error about a missing length asks for is enough."""
    trainer = make_trainer()
    train(trainer, data=SizedStream(), per_device_batch_size=8)
    assert trainer.num_updates == 4


def test_a_trainer_without_a_loss_function_says_what_to_override() -> None:
    """`loss_func=None` is for those who calculate the loss themselves."""
    model = TinyClassifier()
    trainer = Trainer(model, None, SGD(model.parameters(), lr=0.1), callbacks=[RecordingCallback])
    with pytest.raises(ConfigurationError) as caught:
        train(trainer)
    assert_explained(caught.value, "loss_func=None", "calculate_train_batch_loss")
    trainer.loss_func = nn.CrossEntropyLoss()
    assert_still_works(trainer, model)


def test_there_must_be_something_to_evaluate() -> None:
    """`evaluate()` without a dataset works after a run with one, and says so before."""
    trainer = make_trainer()
    with pytest.raises(ConfigurationError) as caught:
        trainer.evaluate()
    assert_explained(caught.value, "evaluate()", "evaluate(dataset)")
    assert_still_works(trainer, trainer.model)

    trainer.evaluate()
    assert "evaluation_loss" in trainer.run_history.get_metric_names()


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
    """The warning comes when the callback is registered, before hours of training."""
    with pytest.warns(UserWarning, match=r"Misspelt\.on_train_epoch_ends.*on_train_epoch_end\b"):
        make_trainer(Misspelt)


class OnValidation(TrainerCallback):
    """Listens to an event that is not ours, but may be that of the user's own trainer."""

    calls = 0

    def on_validation_batch(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        """Count the calls."""
        self.calls += 1


class FiresValidation(Permissive):
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
    """Only then is it known, and training was not disturbed."""
    listener = OnValidation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = make_trainer(listener)
    with pytest.warns(UserWarning, match=r"OnValidation\.on_validation_batch"):
        train(trainer)
    assert trainer.num_updates == 4
    trainer.callback_handler.remove_callback(listener)
    assert_still_works(trainer, trainer.model)


def test_a_metric_that_was_never_recorded_is_refused_with_those_that_were(tmp_path: Path) -> None:
    """A typo in `watch_metric` ends the first epoch, not the last."""
    watcher = SaveBestModelCallback(tmp_path / "best.pt", watch_metric="eval_los_epoch")
    trainer = make_trainer(watcher)
    with pytest.raises(MetricNotFoundError) as caught:
        train(trainer)
    assert_explained(caught.value, "eval_los_epoch", "eval_loss_epoch", "train_loss_epoch")
    assert trainer.num_epochs_completed == 1
    assert not list(tmp_path.iterdir())
    watcher.watch_metric = "eval_loss_epoch"
    assert_still_works(trainer, trainer.model)


class Payload:
    """What runs when a file is unpickled that should not be trusted."""

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("was_run",))


def truncated(path: Path, trainer: Net) -> None:
    """A file whose second half is missing."""
    trainer.save_checkpoint(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_another_model(path: Path, trainer: Net) -> None:
    """A file with another layer, and another shape."""
    model = TinyClassifier(hidden=16)
    model.register_parameter("further", nn.Parameter(torch.zeros(1)))
    Trainer(model, None, None, callbacks=()).save_checkpoint(path)


def with_code(path: Path, trainer: Net) -> None:
    """A file that wants to run something."""
    torch.save({"model_state_dict": trainer.model.state_dict(), "payload": Payload()}, path)


def plain_pickle(path: Path, trainer: Net) -> None:
    """A file that was not even made by torch."""
    path.write_bytes(pickle.dumps({"model_state_dict": Payload()}, protocol=2))


CHECKPOINTS: dict[Callable[[Path, Net], Any], tuple[str, ...]] = {
    truncated: ("damaged", "cut short", "bytes"),
    of_another_model: (
        "another model",
        "unexpected: further",
        "missing: layers.1.weight",
        "layers.0.weight: (16, 4) in the file, (8, 4) in the model",
        "and 1 more",
    ),
    with_code: ("more than tensors", "mkdir", "weights_only=False"),
    plain_pickle: ("more than tensors", "mkdir", "weights_only=False"),
    lambda path, trainer: path.write_bytes(b""): ("damaged", "0 bytes"),
    lambda path, trainer: path.write_text("hello"): ("damaged", "5 bytes"),
    lambda path, trainer: torch.save([1, 2], path): ("no checkpoint", "list"),
    lambda path, trainer: torch.save(trainer.model.state_dict(), path): (
        "no checkpoint",
        "layers.0.weight",
        "model.load_state_dict",
    ),
}


@pytest.mark.parametrize("make", CHECKPOINTS)
def test_a_checkpoint_that_cannot_be_loaded_changes_nothing(
    make: Callable[[Path, Net], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Truncated, of another model, or in need of code: the error says which, nothing is run and nothing loaded."""
    monkeypatch.chdir(tmp_path)
    trainer = make_trainer()
    train(trainer)
    make(tmp_path / "checkpoint.pt", trainer)
    before: dict[str, Tensor] = {name: value.clone() for name, value in trainer.model.state_dict().items()}

    with pytest.raises(CheckpointError) as caught:
        trainer.load_checkpoint(tmp_path / "checkpoint.pt")

    assert_explained(caught.value, "checkpoint.pt", *CHECKPOINTS[make])
    assert not Path("was_run").exists()
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    assert_still_works(trainer, trainer.model)


def test_a_checkpoint_that_is_not_there_is_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The error is Python's own, and names the path."""
    with pytest.raises(FileNotFoundError, match=r"missing\.pt"):
        make_trainer().load_checkpoint(tmp_path / "missing.pt")
