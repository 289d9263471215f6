"""What a subclass defines and the loop would not call, or would miss, is said where the class is defined."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any, cast

import pytest
import torch
from torch import nn
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback, TrainerWithTimmScheduler
from pa_core.errors import OverrideError
from tests.small_runs import make_trainer, samples

MISSPELT = {
    "calculate_eval_batch_los": "calculate_eval_batch_loss",
    "calculate_train_batchloss": "calculate_train_batch_loss",
    "train_epoch_strat": "train_epoch_start",
    "training_epoch_start": "train_epoch_start",
    "create_train_data_loader": "create_train_dataloader",
    "optimiser_step": "optimizer_step",
    "training_run_ends": "training_run_end",
    "get_default_train_dl_kwarg": "get_default_train_dl_kwargs",
    "create_schedular": "create_scheduler",
    "_clip_gradient": "_clip_gradients",
    "training_step": "calculate_train_batch_loss",
    "validation_step": "calculate_eval_batch_loss",
    "compute_loss": "calculate_train_batch_loss",
    "calculate_eval_loss": "calculate_eval_batch_loss",
    "predict_step": "predict_batch",
    "val_dataloader": "create_eval_dataloader",
}

HELPERS = (
    "calculate_accuracy",
    "calculate_batch_loss",
    "calculate_loss",
    "calculate_train_metrics",
    "calculate_test_batch_loss",
    "create_optimizer",
    "create_scheduler_fn",
    "create_test_dataloader",
    "eval_step",
    "evaluate_model",
    "on_my_event",
    "run_epoch",
    "run_train_epoch",
    "save_checkpoints",
    "train_epoch",
    "train_epoch_time",
    "train_step",
    "_create_model",
    "_run_batch",
    "_run_test_epoch",
)


def defined(**methods: Any) -> list[warnings.WarningMessage]:
    """The warnings that defining a subclass with some methods gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        type("MyTrainer", (Trainer,), methods)
    return caught


def nothing(*_: object) -> None:
    """A method."""


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_override_is_named_with_what_was_meant(name: str) -> None:
    """The loop would never call it, and its default would run without a word."""
    (caught,) = defined(**{name: nothing})
    assert f"MyTrainer.{name} is never called. " in str(caught.message)
    assert f"is {MISSPELT[name]}: rename" in str(caught.message)
    assert defined(**{MISSPELT[name]: nothing}) == []


def test_the_warning_points_at_the_class() -> None:
    """The line is that of the class statement, in the file of the user."""
    with pytest.warns(UserWarning, match="calculate_eval_batch_los ") as caught:

        class MyTrainer(Trainer):
            def calculate_eval_batch_los(self, batch: Any) -> Any: ...

    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Derived(MyTrainer):  # pyright: ignore[reportUnusedClass]  # defining it is the test
            @override
            def calculate_eval_batch_los(self, batch: Any) -> Any: ...


@pytest.mark.parametrize("name", HELPERS)
def test_a_helper_may_have_a_name_of_its_own(name: str) -> None:
    """Names that scripts have for their helpers give no warning."""
    assert defined(**{name: nothing}) == []


def test_a_helper_beside_the_override_is_a_helper() -> None:
    """Who overrides the method as well has not misspelt it; what is no method is not meant to be called."""
    assert defined(calculate_train_batch_losses=nothing, calculate_train_batch_loss=nothing) == []
    assert defined(train_epoch_starts=[1, 2]) == []


def test_a_method_that_makes_optimizers_has_its_arguments_named() -> None:
    """The trainer and `train()` take what Lightning's method returns."""
    (caught,) = defined(configure_optimizers=nothing)
    assert "Pass the optimizer to the trainer, and create_scheduler_fn to train()" in str(caught.message)


def test_a_method_that_another_one_calls_is_a_helper() -> None:
    """Scripts that were ported keep their steps, and call them from the methods that the loop calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Ported(Trainer):  # pyright: ignore[reportUnusedClass]  # defining it is the test
            def __init__(self, model: nn.Module) -> None:
                super().__init__(model, None, self.configure_optimizers(model))

            def configure_optimizers(self, model: nn.Module) -> torch.optim.Optimizer:
                return torch.optim.SGD(model.parameters(), lr=0.1)

            @override
            def calculate_eval_batch_loss(self, batch: Any) -> Any:
                return self.training_step(batch)

            def training_step(self, batch: Any) -> Any: ...


def test_an_event_of_callbacks_is_no_method_of_a_trainer() -> None:
    """Only callbacks have events, unless a class is both."""
    (caught,) = defined(on_train_epoch_end=nothing)
    assert "override train_epoch_end instead, or move it to a TrainerCallback" in str(caught.message)
    (caught,) = defined(on_train_step_end=nothing)
    assert "move it to a TrainerCallback, and pass that to the trainer" in str(caught.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        type("Both", (Trainer, TrainerCallback), {"on_train_epoch_end": nothing})
        type("Timm", (TrainerWithTimmScheduler,), {"calculate_loss": nothing})


def test_the_guard_knows_every_private_attribute_of_a_trainer() -> None:
    """A private attribute that the trainer sets is declared in the body of its class, or the guard would miss it."""

    def step_size(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.StepLR(optimizer, 1)

    trainer = make_trainer()
    trainer.train(samples(8), 1, samples(4), per_device_batch_size=4, create_scheduler_fn=step_size)
    declared = {name for cls in type(trainer).__mro__ for name in vars(cls).get("__annotations__", {})}
    assert {name for name in vars(trainer) if name.startswith("_")} <= declared


def test_a_name_of_a_part_is_refused_in_the_body_of_a_class() -> None:
    """A method or a class attribute of such a name would be hidden by the part, or replace it."""
    for name in ("_session", "_setup", "_run_epoch"):
        with pytest.raises(OverrideError, match=rf"Mine\.{name} would replace .* Rename {name}\."):
            type("Mine", (Trainer,), {name: False})


def test_attributes_of_a_subclass_are_its_own() -> None:
    """Private attributes of other names may be set anywhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Mine(Trainer):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                self._before: Any = None
                super().__init__(*args, **kwargs)
                self._after: Any = None

            @override
            def train_epoch_start(self) -> None:
                super().train_epoch_start()
                self._before = self._after = object()

    trainer = make_trainer(Mine)
    trainer.train(samples(8), 2, samples(4), per_device_batch_size=4)
    assert vars(trainer)["_before"] is vars(trainer)["_after"]


def test_what_every_trainer_offers_is_declared_once() -> None:
    """Documentation of a method is in one place, and what it does is the same for every kind of trainer."""
    public = {name for name in vars(AnyTrainer) if not name.startswith("_")}
    assert public & set(vars(Trainer)) == {"run_evaluation_epoch"}  # the trainer that has a loop says what it does


def test_a_mixin_may_be_abstract() -> None:
    """A class that is abstract by itself, or annotated as a trainer, can be mixed into one on either side."""

    class Logs(AnyTrainer):
        pass

    class Saves(ABC):
        @abstractmethod
        def save(self) -> None: ...

    for bases in ((Saves, Trainer), (Trainer, Saves), (Logs, Trainer), (Trainer, Logs)):
        make_trainer(cast("type[Trainer]", type("Mixed", bases, {"save": print})))
