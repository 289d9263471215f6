"""Bad input: an error that says what was given, what was expected and what to do, and a trainer that still works."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler, TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, ArgumentTypeError, BatchOutputError, ConfigurationError, Trainer
from pa_core.errors import EmptyDatasetError
from pa_core.testing import RecordingCallback, make_classification
from pa_data.errors import DataError
from tests.support.callbacks import CallAt
from tests.support.explained import assert_explained
from tests.support.pa_core.good_run import EVAL_DATA, TRAIN_DATA, Permissive, assert_still_works, make_trainer, train

EMPTY = TensorDataset(torch.empty(0, 4), torch.empty(0, dtype=torch.long))


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars are drawn as on a terminal, so that one that stays open can be seen."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")


class Unsized(Dataset[Any]):
    """A dataset that forgot its length."""

    @override
    def __getitem__(self, index: int) -> Any:
        return TRAIN_DATA[index]


class EmptyStream(IterableDataset[Any]):
    """A dataset that can only be iterated, with nothing in it."""

    def __len__(self) -> int:
        return 0

    @override
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def no_samples() -> BatchSampler:
    """A sampler of nothing."""
    return BatchSampler(SequentialSampler([]), batch_size=4, drop_last=False)


@dataclass(frozen=True)
class Mistake:
    """Something a user may do, the error that it gives, and what the error names."""

    act: Callable[[Permissive], object]
    error: type[Exception]
    words: tuple[str, ...] = ()


def mistake(error: type[Exception], *words: str, **kwargs: Any) -> Mistake:
    """Training with bad arguments."""
    return Mistake(partial(train, **kwargs), error, words)


def wrong(name: str, value: Any, error: type[Exception], *words: str) -> Mistake:
    """Training after an attribute of the trainer was set to something bad; it is put right again."""

    def act(trainer: Permissive) -> None:
        before = getattr(trainer, name)
        setattr(trainer, name, value)
        try:
            train(trainer)
        finally:
            setattr(trainer, name, before)

    return Mistake(act, error, words)


def scheduler_of(trainer: AnyTrainer) -> lr_scheduler.StepLR:
    """A scheduler where a function that makes one is expected."""
    return lr_scheduler.StepLR(trainer.optimizer, 1)


def forgets_to_return(optimizer: Optimizer) -> None:
    """A factory without a return statement."""


BEFORE_THE_RUN: dict[str, Mistake] = {
    "empty training data": mistake(EmptyDatasetError, "TensorDataset", "0 samples", data=EMPTY),
    "empty evaluation data": mistake(EmptyDatasetError, "0 samples", eval_dataset=EMPTY),
    "empty data to evaluate": Mistake(lambda trainer: trainer.evaluate(EMPTY), EmptyDatasetError, ("0 samples",)),
    "no training data": mistake(DataError, "NoneType", data=None),
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
    "a dataset without a length": mistake(DataError, "Unsized", "__len__", data=Unsized()),
    "a loader without a length": wrong(
        "train_loader", lambda: iter([]), ConfigurationError, "list_iterator", "Pass max_num_train_steps"
    ),
    "an iterator to evaluate": wrong(
        "eval_loader",
        lambda: iter([]),
        ConfigurationError,
        "list_iterator",
        "create_eval_dataloader",
        "Make the loader a list",
    ),
    "no loader": wrong("train_loader", lambda: None, ConfigurationError, "NoneType", "create_train_dataloader"),
    "no loader to evaluate": wrong(
        "eval_loader", lambda: None, ConfigurationError, "NoneType", "create_eval_dataloader"
    ),
    "a loader of nothing": wrong("train_loader", list, EmptyDatasetError, "list", "create_train_dataloader"),
    **{
        f"{name}={value}": mistake(ConfigurationError, name, f"got {value}", **{name: value})
        for name in ("per_device_batch_size", "gradient_accumulation_steps", "max_num_train_steps")
        for value in (0, -1, 1.5)
    },
    **{
        f"num_epochs={value}": mistake(ConfigurationError, "num_epochs", f"got {value}", epochs=value)
        for value in (0, -1, 0.5)
    },
    "no length of the run": mistake(ConfigurationError, "num_epochs=10", "max_num_train_steps=1000", epochs=None),
    **{
        f"{name}={value}": mistake(ConfigurationError, name, f"got {value!r}", **{name: value})
        for name in ("gradient_clip_value", "gradient_clip_norm")
        for value in (0, -1.0, math.nan, "1", True)
    },
    "batch_size=0 for a loader": mistake(DataError, "got 0", train_dataloader_kwargs={"batch_size": 0}),
    "a batch size of 0 to evaluate": Mistake(
        lambda trainer: trainer.evaluate(EVAL_DATA, per_device_batch_size=0),
        ConfigurationError,
        ("per_device_batch_size", "got 0"),
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
    "an optimizer of another model": wrong(
        "optimizer",
        SGD(nn.Linear(1, 1).parameters(), lr=0.1),
        ConfigurationError,
        "SGD",
        "2 other parameters",
        "model.parameters()",
    ),
    "no optimizer": wrong("optimizer", None, ConfigurationError, "optimizer=None"),
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


OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(
        (
            {"mixed_precision": value},
            ConfigurationError,
            rf"must be 'no' \(for float32\), 'bf16', 'fp16', or None .*, got {value!r}\.",
        )
        for value in ("bfloat16", torch.float16, "BF16", "fp32", False, "fp8", "mixed")
    ),
    *(
        ({"max_wait_seconds": value}, ConfigurationError, "max_wait_seconds")
        for value in (0, -1.0, math.inf, math.nan, True, "60")
    ),
    *(({"cpu": value}, ArgumentTypeError, "cpu must be True, or None") for value in ("cuda", 0, "true")),
    ({"reproducible": "any_machine"}, ConfigurationError, "any_machine"),
    ({"create_optimizer_fn": SGD}, ArgumentTypeError, r"lambda model: torch.optim.AdamW\(model.parameters\(\)"),
    (
        {"optimizer": SGD(nn.Linear(1, 1).parameters(), lr=0.1), "create_optimizer_fn": print},
        ConfigurationError,
        "Pass optimizer=None",
    ),
]


@pytest.mark.parametrize(("options", "error", "words"), OPTIONS)
def test_a_trainer_that_cannot_be_made_says_why(options: dict[str, Any], error: type[Exception], words: str) -> None:
    """With what was given, and what would have been right."""
    make_of: Any = Trainer
    with pytest.raises(error, match=words):
        make_of(nn.Linear(1, 1), None, **{"optimizer": None, "callbacks": [], **options})


def replaced(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A step that returns other values than it should."""
    return lambda output: {**output, **values}


def without(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A step that leaves out a key."""
    return lambda output: {name: value for name, value in output.items() if name != key}


def of_loss(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A step that makes another loss of its own."""
    return lambda output: {**output, "loss": change(output["loss"])}


STEPS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "nothing": (
        lambda output: None,
        ("nothing: None", "Return {'loss': ..., 'model_outputs': ..., 'batch_size': ...} from"),
    ),
    "a loss alone": (lambda output: output["loss"], ("Tensor", "'batch_size': ...")),
    "a tuple": (lambda output: (output["loss"], 4), ("tuple", "'batch_size': ...")),
    **{f"no {key}": (without(key), (f"without {key}",)) for key in ("loss", "model_outputs", "batch_size")},
    "a loss for each sample": (
        replaced(loss=torch.ones(4, requires_grad=True)),
        ("a loss of shape (4,)", "loss.mean(), or a loss function without"),
    ),
    "a number as a loss": (replaced(loss=0.5), ("a loss of type float", "without item() or float()")),
    "a batch size that is no number": (
        replaced(batch_size=torch.ones(4)),
        ("batch_size=tensor", "for example len(targets)"),
    ),
    "a negative batch size": (replaced(batch_size=-1), ("batch_size=-1",)),
    "a truth as the batch size": (replaced(batch_size=True), ("batch_size=True", "the number of samples")),
    "a complex batch size": (replaced(batch_size=4j), ("batch_size=4j", "the number of samples")),
    "a complex loss": (of_loss(lambda loss: loss + 0j), ("torch.complex64", "real", "loss.abs()")),
    "a truth as the loss": (of_loss(lambda loss: loss > 0), ("torch.bool", "real")),
    "a sparse loss": (of_loss(lambda loss: loss.reshape(1).to_sparse()), ("torch.sparse_coo", "real")),
    "a loss without a number": (of_loss(lambda loss: loss.to("meta")), ("meta", "real")),
    "items that are not a number": (replaced(num_items_in_batch=torch.tensor(math.nan)), ("tensor(nan)", "whole")),
    "infinitely many items": (replaced(num_items_in_batch=torch.tensor(math.inf)), ("tensor(inf)", "whole")),
    "less than no item": (replaced(num_items_in_batch=-1), ("num_items_in_batch", "whole")),
    "a part of an item": (replaced(num_items_in_batch=torch.tensor(2.5)), ("tensor(2.5000)", "whole")),
    "a truth as the number of items": (replaced(num_items_in_batch=torch.tensor(True)), ("tensor(True)", "whole")),
    "complex items": (replaced(num_items_in_batch=torch.tensor(3j)), ("tensor(0.+3.j)", "whole")),
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
    assert_explained(caught.value, "every parameter of TinyClassifier is frozen", "requires_grad_()")
    trainer.model.requires_grad_()
    assert_still_works(trainer, trainer.model)


def test_there_must_be_something_to_evaluate() -> None:
    """`evaluate()` without a dataset works after a run with one, and says so before."""
    trainer = make_trainer()
    with pytest.raises(ConfigurationError) as caught:
        trainer.evaluate()
    assert_explained(caught.value, "evaluate()", "evaluate(dataset)")
    assert_still_works(trainer, trainer.model)

    trainer.evaluate()
    assert "evaluation_loss" in trainer.run_history.get_metric_names()


def evaluate_other(trainer: Trainer[Any], *_: object) -> None:
    """Evaluate another dataset than that of the run."""
    trainer.evaluate(make_classification(4, seed=2))


def train_more(trainer: Trainer[Any]) -> None:
    """Train on something else."""
    train(trainer, epochs=1)


EVENTS = [
    "on_prepare_start",
    "on_training_run_start",
    "on_train_step_end",
    "on_optimizer_step_end",
    "on_train_epoch_end",
    "on_eval_step_end",
    "on_eval_epoch_end",
    "on_training_run_epoch_end",
    "on_training_run_end",
]


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(("call", "name"), [(evaluate_other, "evaluate"), (train_more, "train")])
def test_a_run_in_a_callback_is_refused_by_name(event: str, call: Callable[..., Any], name: str) -> None:
    """The error leaves train(), and says what to do instead; the trainer is as usable as before."""
    callback = CallAt(event, call)
    trainer = make_trainer(callback)
    with pytest.raises(ConfigurationError, match=rf"{name}\(\) within train\(\)") as refused:
        train(trainer, per_device_batch_size=4)
    assert ("run_evaluation_epoch(is_intermediate=True)" in refused.value.do) == (name == "evaluate")
    assert (trainer.train_dataset, trainer.eval_dataset) == (TRAIN_DATA, EVAL_DATA)

    trainer.callback_handler.remove_callback(callback)
    train(trainer, per_device_batch_size=4)
    assert trainer.num_epochs_completed == 2


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("call", [evaluate_other, train_more])
def test_a_run_in_an_evaluation_is_refused_by_name(call: Callable[..., Any]) -> None:
    """As within training."""
    trainer = make_trainer(CallAt("on_evaluation_run_end", call))
    with pytest.raises(ConfigurationError, match=r"\(\) within evaluate\(\)"):
        trainer.evaluate(EVAL_DATA)


def test_a_run_in_a_step_or_a_hook_is_refused_by_name() -> None:
    """Methods of the trainer are parts of the run too."""
    for method in ("calculate_train_batch_loss", "training_run_end"):
        trainer = make_trainer()
        vars(trainer)[method] = partial(evaluate_other, trainer)
        with pytest.raises(ConfigurationError, match=r"evaluate\(\) within train\(\)"):
            train(trainer, epochs=1)


@pytest.mark.parametrize(
    ("call", "event"),
    [
        ("train", "on_training_run_start"),
        ("evaluate", "on_evaluation_run_start"),
        ("predict", "on_prediction_run_start"),
    ],
)
def test_one_of_two_threads_has_the_run(call: str, event: str) -> None:
    """The other one is refused though both were about to begin, and the trainer is as usable as before."""
    both_are_about_to_begin = threading.Barrier(2)
    waited, is_refused = {threading.get_ident()}, threading.Event()

    class Waiting(TensorDataset):
        """Is looked at before a run begins."""

        def __getattr__(self, name: str) -> Any:
            if threading.get_ident() not in waited:
                waited.add(threading.get_ident())
                both_are_about_to_begin.wait(20)
            raise AttributeError(name)

        @override
        def __len__(self) -> int:
            hasattr(self, "length")
            return super().__len__()

    def start(*_: object) -> Exception | None:
        arguments: dict[str, Any] = {"num_epochs": 1} if call == "train" else {}
        try:
            list(getattr(trainer, call)(data, per_device_batch_size=4, **arguments) or ())
        except ConfigurationError as error:
            is_refused.set()
            return error
        return None

    trainer = make_trainer(CallAt(event, lambda _: is_refused.wait(20)))
    data = Waiting(*TRAIN_DATA.tensors)
    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(start, range(2)))
    (refused,) = filter(None, outcomes)
    assert f"{call}() within {call}()" in str(refused)
    assert "each thread" in str(refused)
    assert start() is None
