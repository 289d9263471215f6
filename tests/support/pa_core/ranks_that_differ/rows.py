"""The ways in which one process can be given something else than the others, and what comes of each.

The table of `docs/maintainers/failures.md` is made of these rows:
`python -m tests.support.pa_core.ranks_that_differ.table`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR
from torch.utils.data import DataLoader, Dataset, TensorDataset
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    EvaluationSet,
    LimitBatchesCallback,
    TerminateOnNaNCallback,
    Trainer,
    TrainerCallback,
)
from pa_core.testing import make_regression
from pa_data.orders import Sequential, TableOrder, Weighted
from tests.support.pa_core.ranks_that_differ.cases import Case, Door, layers, momentum

When: TypeAlias = Literal[
    "before the run begins",
    "before the first step",
    "before the evaluation",
    "at the end of the epoch",
    "before the next epoch",
    "within seconds",
    "after `max_wait_seconds`",
]


@dataclass(frozen=True)
class Row:
    """One way in which a process differs.

    Attributes:
        what: What differs, as the table says it.
        change: Called on rank 1 alone with what it is given.
        shows: What the message shows of it.
        when: When it comes.
        doors: What the run is started by.
        both: Called on both ranks, to give them what the row is about.
        error: The error that all processes raise, or the one that fails; a part of what is printed.
        seconds: How long the launched script may take, its start included.
    """

    what: str
    change: Callable[[Case], object]
    shows: str
    when: When = "before the run begins"
    doors: tuple[Door, ...] = ("train", "Run")
    both: Callable[[Case], object] = lambda _: None
    error: str = "RanksDifferError"
    seconds: float = 30.0


class Other(TrainerCallback):
    """A callback that one process has."""


class OtherTrainer(Trainer):
    """A trainer of another class."""


class OtherModel(nn.Sequential):
    """A model of another class."""


class OtherData(TensorDataset):
    """A dataset of another class."""


class Stuck(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A dataset that waits for its disk on one process."""

    is_stuck = False

    def __len__(self) -> int:
        return 24

    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.is_stuck:
            sleep_for_ever()
        inputs, targets = make_regression(24)[index]
        return inputs, targets


class Growing(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A dataset that can be made longer."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._data = make_regression(100)

    def __len__(self) -> int:
        return self.length

    @override
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = self._data[index]
        return inputs, targets


class Unseeded(TableOrder):
    """An order that draws from a generator of its own."""

    name = "unseeded-v1"

    @override
    def indices_of_epoch(self, num_samples: int, epoch: int) -> torch.Tensor:
        return torch.arange(num_samples) if self._is_first else torch.arange(num_samples).flip(0)

    _is_first = True


def draw_another_order(case: Case) -> None:
    """Let the order of this process come out in another way, as by an unseeded generator."""
    vars(case.arguments["order"])["_is_first"] = False


def argument(name: str, value: object) -> Callable[[Case], object]:
    """Another argument of `train()` or `Run`."""
    return lambda case: case.arguments.update({name: value})


def loader_argument(**kwargs: object) -> Callable[[Case], object]:
    """Another argument of the training loader."""
    return lambda case: case.arguments.update(train_dataloader_kwargs=kwargs)


def of_evaluation(**kwargs: object) -> Callable[[Case], object]:
    """Another argument of `evaluate()`."""
    return lambda case: case.eval_arguments.update(kwargs)


def given(**values: Any) -> Callable[[Case], object]:
    """Another value of a field of the case."""
    return lambda case: vars(case).update(values)


def callbacks(*some: object) -> Callable[[Case], object]:
    """Other callbacks."""
    return lambda case: case.callbacks.extend(some)


def optimizer(make: Callable[..., Any], **kwargs: Any) -> Callable[[Case], object]:
    """Another optimizer of all parameters."""

    def make_optimizer(of: nn.Module) -> Optimizer:
        return make(of.parameters(), **kwargs)  # type: ignore[no-any-return]

    return given(optimizer=make_optimizer)


def optimizer_of(choose: Callable[[list[nn.Parameter]], list[nn.Parameter]]) -> Callable[[Case], object]:
    """An optimizer of some parameters, or in another order."""

    def make_optimizer(of: nn.Module) -> Optimizer:
        return SGD(choose(list(of.parameters())), lr=0.1, momentum=0.9)

    return given(optimizer=make_optimizer)


def exponential(gamma: float) -> Callable[[Case], object]:
    """A schedule that is made by a function of the user's own."""

    def make_schedule(of: Optimizer) -> ExponentialLR:
        return ExponentialLR(of, gamma=gamma)

    return argument("create_scheduler_fn", make_schedule)


def add_teacher(trainer: Any) -> None:
    """Add a frozen module beside the model."""
    trainer.add_module("teacher", nn.Linear(4, 4).eval())


def in_event(event: str, act: Callable[[Any], object]) -> Callable[[Case], object]:
    """Something that this process alone does in an event."""
    return lambda case: case.acts.update({event: act})


def with_layer(index: int, layer: nn.Module) -> Callable[[Case], object]:
    """The model with another layer in one place."""

    def change(case: Case) -> None:
        made = layers()
        made[index] = layer
        case.model = nn.Sequential(*made)

    return change


def freeze(case: Case) -> None:
    """Freeze the first layer."""
    next(iter(case.model.children())).requires_grad_(False)


def two_groups(first: float, second: float) -> Callable[[Case], object]:
    """An optimizer of two groups with these rates."""

    def make(of: nn.Module) -> SGD:
        parameters = list(of.parameters())
        return SGD([{"params": parameters[:2], "lr": first}, {"params": parameters[2:], "lr": second}])

    return given(optimizer=make)


def set_rate(trainer: AnyTrainer) -> None:
    """Change the learning rate, as a callback may do."""
    trainer.optimizer.param_groups[0]["lr"] = 0.01


def grow_in_second_epoch(trainer: AnyTrainer) -> None:
    """Make the dataset longer once the lengths have been compared."""
    if trainer.num_epochs_completed == 1:
        vars(trainer.train_dataset)["length"] = 30


def fail(trainer: AnyTrainer) -> None:
    """Raise an exception of the user's own."""
    message = "it fails here"
    raise ValueError(message)


def add_group(trainer: AnyTrainer) -> None:
    """Give the optimizer one more group, as a callback may do."""
    trainer.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def sleep_for_ever() -> None:
    """Do not return."""
    time.sleep(1000)


def after_updates(act: Callable[[], object]) -> Callable[[Case], object]:
    """Something that this process alone does after some updates."""

    def after_fourth(trainer: AnyTrainer) -> None:
        if trainer.num_updates_completed == 4:
            act()

    return in_event("on_optimizer_step_end", after_fourth)


def evaluate_instead(case: Case) -> None:
    """Call `evaluate()` where the others call `train()`."""
    case.door = "evaluate"


def loader(length: int = 24) -> Callable[[Case], object]:
    """A DataLoader of the user's own."""

    def change(case: Case) -> None:
        case.data = DataLoader(make_regression(length), batch_size=4)
        case.arguments.pop("per_device_batch_size", None)

    return change


cosine = partial(CosineAnnealingLR, T_max=12)
EVALUATION: When = "before the evaluation"
FIRST_STEP: When = "before the first step"
NEXT_EPOCH: When = "before the next epoch"
AT_ONCE: When = "within seconds"
END_OF_EPOCH: When = "at the end of the epoch"


def shard(case: Case) -> None:
    """Split the weights of the model over the processes, before the optimizer is made."""

    def momentum_of_sharded(model: nn.Module) -> Optimizer:
        from accelerate import PartialState
        from torch.distributed.fsdp import fully_shard

        PartialState(cpu=True)  # joins the other processes, as a script would do that shards its model itself
        fully_shard(model)
        return momentum(model)

    case.optimizer = momentum_of_sharded
    case.max_wait_seconds = 4.0


TRAIN: tuple[Door, ...] = ("train",)
EVALUATE: tuple[Door, ...] = ("evaluate",)
OWN: tuple[Door, ...] = ("Run",)
IMPATIENT = given(max_wait_seconds=4.0)


def overdue(
    what: str,
    change: Callable[[Case], object],
    shows: str,
    doors: tuple[Door, ...] = ("train", "Run"),
    both: Callable[[Case], object] = IMPATIENT,
) -> Row:
    """A row of what one process does while the other one waits for it, as long as it is told to."""
    error = "A process has waited for another one"
    return Row(what, change, shows, "after `max_wait_seconds`", doors, both, error, seconds=90.0)


def at_first_step(
    what: str,
    change: Callable[[Case], object],
    shows: str,
    doors: tuple[Door, ...] = ("train", "Run"),
    both: Callable[[Case], object] = lambda _: None,
) -> Row:
    """A row of what is found before the first step."""
    return Row(what, change, shows, FIRST_STEP, doors, both)


ARGUMENTS = [
    Row("number of epochs", argument("num_epochs", 3), "num_epochs: 2 on rank 0, 3 on rank 1"),
    Row("number of updates", argument("max_num_train_steps", 3), "max_num_train_steps: None on rank 0, 3 on rank 1"),
    Row("batch size", argument("per_device_batch_size", 6), "per_device_batch_size: 4 on rank 0, 6 on rank 1"),
    Row(
        "accumulation",
        argument("gradient_accumulation_steps", 2),
        "gradient_accumulation_steps: 1 on rank 0, 2 on rank 1",
    ),
    Row("clipping by norm", argument("gradient_clip_norm", 1.0), "gradient_clip_norm: None on rank 0, 1 on rank 1"),
    Row(
        "a schedule on only one rank",
        argument("create_scheduler_fn", cosine),
        "create_scheduler_fn: None on rank 0, partial(CosineAnnealingLR, T_max=12) on rank 1",
    ),
    Row(
        "`watch_metric`",
        argument("watch_metric", "accuracy"),
        "scheduler is stepped: after each update on rank 0, after each epoch, with accuracy on rank 1",
    ),
    Row("precision", given(precision="bf16"), "mixed_precision: no on rank 0, bf16 on rank 1"),
    Row(
        "whether there is an evaluation",
        given(eval_data=None),
        "eval_dataset: a dataset on rank 0, None on rank 1",
        doors=TRAIN,
    ),
    Row(
        "order of the evaluation sets",
        given(eval_data={"test": make_regression(8), "val": make_regression(8)}),
        "evaluation sets: val, test on rank 0, test, val on rank 1",
        doors=("train", "evaluate"),
        both=given(eval_data={"val": make_regression(8), "test": make_regression(8)}),
    ),
    Row(
        "how often a set is evaluated",
        given(eval_data={"val": EvaluationSet(make_regression(8), every_n_epochs=2)}),
        "evaluation sets: val on rank 0, val every 2 on rank 1",
        doors=TRAIN,
        both=given(eval_data={"val": make_regression(8)}),
    ),
    Row("a `DataLoader` or a dataset", loader(), "train_dataset: a dataset on rank 0, a DataLoader on rank 1"),
    Row("`drop_last`", loader_argument(drop_last=True), "train_dataset, drop_last: nothing on rank 0, True on rank 1"),
    Row("`shuffle`", loader_argument(shuffle=False), "train_dataset, shuffle: nothing on rank 0, False on rank 1"),
    Row("order of the samples", argument("order", Sequential()), "order: None on rank 0, sequential-v1 on rank 1"),
    Row(
        "values from which the order was created",
        argument("order", Weighted([*[1.0] * 23, 2.0])),
        f"order: {Weighted([1.0] * 24).fingerprint} on rank 0, {Weighted([*[1.0] * 23, 2.0]).fingerprint} on rank 1",
        both=argument("order", Weighted([1.0] * 24)),
    ),
    Row("`collate_fn`", argument("collate_fn", list), "collate_fn: None on rank 0, list on rank 1"),
    Row(
        "whether the run is resumed",
        lambda case: case.arguments.update(resume_from="states", resume_missing="start"),
        "resume_from: None on rank 0, states on rank 1",
    ),
    Row("`resume_allow`", argument("resume_allow", ("shuffle",)), "resume_allow: () on rank 0, ('shuffle') on rank 1"),
    Row(
        "`reset_run_history`",
        argument("reset_run_history", False),
        "reset_run_history: True on rank 0, False on rank 1",
        doors=TRAIN,
    ),
    Row(
        "`train()` or `evaluate()`",
        evaluate_instead,
        "call: Trainer.train() on rank 0, Trainer.evaluate() on rank 1",
        doors=TRAIN,
    ),
    Row(
        "class of the trainer",
        given(trainer_class=OtherTrainer),
        "call: Trainer.train() on rank 0, OtherTrainer.train() on rank 1",
        doors=TRAIN,
    ),
    Row(
        "a setting of the loss function",
        given(loss_func=nn.MSELoss(reduction="sum")),
        "loss_func: MSELoss(reduction='mean') on rank 0, MSELoss(reduction='sum') on rank 1",
        doors=TRAIN,
    ),
    Row(
        "order of the callbacks",
        lambda case: case.callbacks.reverse(),
        "Other, TerminateOnNaNCallback on rank 0, Meanwhile, TerminateOnNaNCallback, Other on rank 1",
        both=callbacks(Other(), TerminateOnNaNCallback()),
    ),
    Row(
        "a limit on the number of batches",
        callbacks(LimitBatchesCallback(1)),
        "LimitBatchesCallback(num_batches=1) on rank 1",
    ),
    Row(
        "batch size of `evaluate()`",
        of_evaluation(per_device_batch_size=2),
        "per_device_batch_size: 8 on rank 0, 2 on rank 1",
        doors=EVALUATE,
    ),
    Row(
        "loader arguments of `evaluate()`",
        of_evaluation(dataloader_kwargs={"drop_last": True}),
        "dataset, drop_last: nothing on rank 0, True on rank 1",
        doors=EVALUATE,
    ),
]

PARTS = [
    at_first_step(
        "length of the dataset", given(data=make_regression(22)), "training dataset, length: 24 on rank 0, 22 on rank 1"
    ),
    at_first_step(
        "class of the dataset",
        given(data=OtherData(*make_regression(24).tensors)),
        "training dataset: TensorDataset on rank 0, OtherData on rank 1",
    ),
    at_first_step(
        "an order that is drawn without the seed of the run",
        draw_another_order,
        "first samples: (0, 1, 2, 3, 4, 5, 6, 7) on rank 0, (23, 22, 21, 20, 19, 18, 17, 16) on rank 1",
        both=lambda case: case.arguments.update(order=Unseeded()),
    ),
    at_first_step(
        "length of the evaluation dataset",
        given(eval_data=make_regression(6)),
        "evaluation dataset, length: 8 on rank 0, 6 on rank 1",
        doors=("train", "evaluate"),
    ),
    Row(
        "length of the evaluation dataset in a custom loop",
        given(eval_data=make_regression(6)),
        "evaluation dataset, length: 8 on rank 0, 6 on rank 1",
        EVALUATION,
        doors=OWN,
    ),
    Row(
        "batch size of an evaluation in a custom loop",
        of_evaluation(per_device_batch_size=2),
        "evaluation loader, batch_size: 4 on rank 0, 2 on rank 1",
        EVALUATION,
        doors=OWN,
    ),
    at_first_step(
        "length of the dataset of a `DataLoader`",
        loader(length=16),
        "training loader, length: 6 on rank 0, 4 on rank 1",
        both=loader(),
    ),
    at_first_step(
        "a setting of a layer",
        with_layer(2, nn.Dropout(0.5)),
        "model.2: Dropout(p=0.1, inplace=False) on rank 0, Dropout(p=0.5, inplace=False) on rank 1",
    ),
    at_first_step(
        "a buffer",
        with_layer(1, nn.BatchNorm1d(4, affine=True, track_running_stats=False)),
        "model.1.running_mean: float32 (4,) on rank 0, nothing on rank 1",
    ),
    at_first_step(
        "class of the model", given(model=OtherModel(*layers())), "model: Sequential() on rank 0, OtherModel on rank 1"
    ),
    at_first_step(
        "size of a layer",
        with_layer(0, nn.Linear(3, 4)),
        "model.0.weight: float32 (4, 4) on rank 0, float32 (4, 3) on rank 1",
    ),
    at_first_step(
        "frozen weights", freeze, "model.0.weight: float32 (4, 4) on rank 0, float32 (4, 4), frozen on rank 1"
    ),
    at_first_step("optimizer", optimizer(Adam, lr=0.1), "optimizer: SGD on rank 0, Adam on rank 1"),
    at_first_step("learning rate", optimizer(SGD, lr=0.2, momentum=0.9), "lr: 0.1 on rank 0, 0.2 on rank 1"),
    at_first_step(
        "order of the parameters",
        optimizer_of(lambda some: some[::-1]),
        "model.4.weight, model.4.bias on rank 0, model.4.bias, model.4.weight",
    ),
    at_first_step(
        "learning rate of a group",
        two_groups(0.1, 0.3),
        "optimizer, group 1, lr: 0.2 on rank 0, 0.3 on rank 1",
        both=two_groups(0.1, 0.2),
    ),
    at_first_step(
        "a schedule with different settings",
        exponential(0.9),
        "scheduler, gamma: 0.5 on rank 0, 0.9 on rank 1",
        both=exponential(0.5),
    ),
    at_first_step(
        "an added module on only one rank",
        given(before=add_teacher),
        "teacher: nothing on rank 0, Linear(in_features=4, out_features=4, bias=True) on rank 1",
        doors=TRAIN,
    ),
    at_first_step(
        "a value that a callback sets when the run starts",
        in_event("on_training_run_start", set_rate),
        "optimizer, lr: 0.1 on rank 0, 0.01 on rank 1",
    ),
    at_first_step(
        "whether an evaluation can be interrupted",
        in_event("on_training_run_start", lambda trainer: setattr(trainer, "preemptible", True)),
        "preemptible: False on rank 0, True on rank 1",
    ),
]

COURSE = [
    Row(
        "a learning rate that a callback changes",
        in_event("on_optimizer_step_end", set_rate),
        "optimizer, lr: 0.1 on rank 0, 0.01 on rank 1",
        END_OF_EPOCH,
    ),
    Row(
        "a group that a callback adds",
        in_event("on_train_epoch_end", add_group),
        "optimizer, number of groups: 1 on rank 0, 2 on rank 1",
        END_OF_EPOCH,
    ),
    Row(
        "a dataset that a callback makes longer",
        in_event("on_training_run_epoch_end", lambda trainer: setattr(trainer.train_dataset, "length", 30)),
        "training dataset, length: 24 on rank 0, 30 on rank 1",
        END_OF_EPOCH,
        both=given(data=Growing(24)),
    ),
    Row(
        "weights that a callback freezes",
        in_event("on_training_run_epoch_end", lambda trainer: next(trainer.model.parameters()).requires_grad_(False)),
        "model, trained parameters: 6 of 6 on rank 0, 5 of 6 on rank 1",
        END_OF_EPOCH,
    ),
    Row(
        "an evaluation in a custom loop on only one rank",
        given(eval_data=None),
        "the run is: in an evaluation, after 3 updates on rank 0, at the end of an epoch, after 3 updates on rank 1",
        EVALUATION,
        doors=OWN,
        both=given(model=nn.Linear(4, 1)),
    ),
]

ALONE = [
    Row(
        "a dataset that grows when an epoch starts",
        in_event("on_train_epoch_start", grow_in_second_epoch),
        "30 samples of Growing",
        NEXT_EPOCH,
        both=given(data=Growing(24)),
        error="DataError",
    ),
    Row(
        "an empty dataset",
        given(data=TensorDataset(torch.zeros(0, 4), torch.zeros(0, 1))),
        "a dataset of type TensorDataset with 0 samples",
        FIRST_STEP,
        error="EmptyDatasetError",
    ),
    Row("an invalid argument", argument("num_epochs", 0), "num_epochs must be", error="ConfigurationError"),
    Row(
        "an exception in a callback",
        in_event("on_optimizer_step_end", fail),
        "ValueError: it fails here",
        AT_ONCE,
        error="ends with status 1",
    ),
]
"""What one process notices by itself: it ends with its own error, and the launcher ends the others."""

MEANWHILE = [
    overdue(
        "a dataset that does not return a sample",
        lambda case: setattr(case.data, "is_stuck", True),
        "rank 1 was in cases.py",
        both=given(data=Stuck(), max_wait_seconds=4.0),
    ),
    overdue(
        "a callback that evaluates",
        in_event("on_optimizer_step_end", lambda trainer: trainer.run_evaluation_epoch(is_intermediate=True)),
        "in an evaluation, after 1 update",
        doors=TRAIN,
    ),
    overdue(
        "a callback that saves a training state",
        in_event("on_optimizer_step_end", lambda trainer: trainer.save_training_state("states")),
        "rank 1 waited in all_gather (cases.py",
    ),
    overdue(
        "a callback that waits for all processes",
        in_event("on_optimizer_step_end", lambda trainer: trainer.wait_for_everyone()),
        "rank 1 waited in all_gather, in on_optimizer_step_end of Meanwhile",
    ),
    overdue(
        "a callback that calls a sharded model",
        in_event("on_optimizer_step_end", lambda trainer: trainer.get_model()(torch.ones(2, 4))),
        "in on_optimizer_step_end of Meanwhile",
        both=shard,
    ),
    Row(
        "a process that ends without an error message",
        after_updates(lambda: os._exit(0)),
        "here, torch says: Connection",
        AT_ONCE,
        error="OtherProcessError: Another process is gone",
        seconds=90.0,
    ),
]
"""What one process does alone: the others wait for it, but not for ever."""

ROWS = [*ARGUMENTS, *PARTS, *COURSE, *ALONE, *MEANWHILE]
