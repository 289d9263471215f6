"""What a step or a callback of a trainer must leave to the run: backward passes, gradients, optimizers, schedulers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR
from typing_extensions import override

from pa_core import AnyTrainer, ConfigurationError, Run, Trainer, TrainerCallback
from pa_core.testing import make_regression
from tests.support.callbacks import CallAt, FailAt, RatesUsed, TellAt
from tests.support.pa_core.entries import Entry, on_both_entries, train

DATA = make_regression(16)


def make(kind: type[Trainer[nn.Linear]], *callbacks: Any) -> Trainer[nn.Linear]:
    """A trainer of a linear model."""
    model = nn.Linear(4, 1)
    return kind(model, nn.MSELoss(), SGD(model.parameters(), lr=0.01), callbacks)


def goes_backward(trainer: Any, loss: Tensor) -> None:
    """Run a backward pass."""
    cast("Any", loss).backward(retain_graph=True)


def goes_backward_by_function(trainer: Any, loss: Tensor) -> None:
    """Call the function."""
    torch.autograd.backward([loss], retain_graph=True)


def goes_backward_through_copy(trainer: Any, loss: Tensor) -> None:
    """Divide the loss first, as for accumulation."""
    goes_backward(trainer, loss / 1)


def steps_itself(trainer: Any, loss: Tensor) -> None:
    """Do all of an update, as the body of a plain loop does."""
    goes_backward(trainer, loss)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()


def steps_alone(trainer: Any, loss: Tensor) -> None:
    """Step the optimizer with what gradients there are."""
    trainer.optimizer.step()


def nothing(trainer: Any, loss: Tensor) -> None:
    """Do nothing."""


class DoesMore(Trainer[nn.Linear]):
    """Does something with the loss in a step."""

    do: Callable[[Any, Tensor], None]

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        output = super().calculate_train_batch_loss(batch)
        self.do(self, output["loss"])
        return output


@pytest.mark.parametrize("reproducible", [None, "any_processes"])
@pytest.mark.parametrize(
    ("do", "message"),
    [
        (goes_backward, r"its own backward pass(.|\n)*Remove loss\.backward\(\)"),
        (goes_backward_by_function, r"its own backward pass(.|\n)*Remove loss\.backward\(\)"),
        (goes_backward_through_copy, r"its own backward pass(.|\n)*Remove loss\.backward\(\)"),
        (steps_itself, r"called optimizer\.step\(\), which the trainer calls"),
        (steps_alone, r"called optimizer\.step\(\)"),
    ],
)
def test_a_part_of_an_update_of_ones_own(do: Any, message: str, reproducible: Any) -> None:
    """It would double gradients or updates; none is made with them. A run of several micro-batches is fine."""
    model = nn.Linear(4, 1)
    trainer = DoesMore(model, nn.MSELoss(), SGD(model.parameters(), lr=0.01), [], reproducible=reproducible)
    options: dict[str, Any] = {"samples_per_update": 8, "per_device_batch_size": 2} if reproducible else {}
    before = model.weight.detach().clone()
    vars(trainer)["do"] = do
    with pytest.raises(ConfigurationError, match=message):
        trainer.train(DATA, 1, **options)
    assert torch.equal(model.weight, before) or do in (steps_itself, steps_alone)
    vars(trainer)["do"] = nothing
    trainer.train(DATA, 2, **options)


def test_an_update_of_a_callbacks_own() -> None:
    """It would be followed by another one with the same gradients."""
    with pytest.raises(ConfigurationError, match=r"called optimizer\.step\(\)"):
        make(Trainer, CallAt("on_train_step_end", lambda trainer: trainer.optimizer.step())).train(DATA, 1)


class GoesBackwardThroughPenalty(Trainer[nn.Linear]):
    """Adds the gradients of a penalty by itself."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        torch.autograd.backward(self.model.weight.square().sum() * 0.01)
        return super().calculate_train_batch_loss(batch)


def test_a_step_may_go_backward_through_another_loss() -> None:
    """Its gradients are added, as in a plain loop; those from before the run are no part of it."""
    torch.manual_seed(0)
    trainer = make(GoesBackwardThroughPenalty)
    by_hand = copy.deepcopy(trainer.model)
    torch.autograd.backward(trainer.model(torch.ones(2, 4)).sum())
    optimizer = SGD(by_hand.parameters(), lr=0.01)
    trainer.train(DATA, 1, per_device_batch_size=len(DATA))
    inputs, targets = DATA.tensors
    loss = nn.functional.mse_loss(by_hand(inputs), targets) + by_hand.weight.square().sum() * 0.01
    torch.autograd.backward(loss)
    optimizer.step()
    torch.testing.assert_close(trainer.model.weight, by_hand.weight)


def zero_in_place(trainer: AnyTrainer) -> None:
    """Do it by hand."""
    for parameter in trainer.get_model().parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


CLEARS: dict[str, Callable[[Any], object]] = {
    "optimizer": lambda trainer: trainer.optimizer.zero_grad(),
    "optimizer, to zeros": lambda trainer: trainer.optimizer.zero_grad(set_to_none=False),
    "model": lambda trainer: trainer.get_model().zero_grad(),
    "by hand": zero_in_place,
}


@on_both_entries
@pytest.mark.parametrize("event", ["on_train_step_start", "on_train_step_end"])
@pytest.mark.parametrize("how", CLEARS)
def test_gradients_that_are_cleared_within_an_update(entry: Entry, event: str, how: str) -> None:
    """They would be missing in it; where there are none yet, nothing is lost."""
    model = nn.Linear(4, 1)
    optimizer, clear = SGD(model.parameters(), lr=0.01), [CallAt(event, CLEARS[how])]
    train(entry, model, optimizer, DATA, callbacks=clear)
    found = "cleared the gradients of earlier batches" if entry == "Trainer" else "no gradients, or only zeros"
    with pytest.raises(ConfigurationError, match=rf"{found}(.|\n)*Remove zero_grad\(\) from"):
        train(entry, model, optimizer, DATA, callbacks=clear, gradient_accumulation_steps=2)


class Own(Trainer[nn.Linear]):
    """Goes backward in its step, and knows that the trainer does not; steps twice with the same gradients."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> Any:
        output = super().calculate_train_batch_loss(batch)
        output["loss"].backward()
        return output

    @override
    def backward_step(self, loss: Tensor) -> None:
        pass

    @override
    def optimizer_step(self) -> None:
        self.optimizer.step()
        self.optimizer.step()


class KeepsZeros(Trainer[nn.Linear]):
    """Clears gradients to zeros."""

    @override
    def optimizer_zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)


def test_ways_of_ones_own_are_left_alone() -> None:
    """Overridden methods decide, and gradients as values, or of a run before, are no backward pass of a step."""
    make(Own).train(DATA, 2)
    make(KeepsZeros).train(DATA, 3, gradient_accumulation_steps=2)

    class Penalised(Trainer[nn.Linear]):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            output = super().calculate_train_batch_loss(batch)
            (slope,) = torch.autograd.grad(output["loss"], self.model.weight, create_graph=True)
            return {**output, "loss": output["loss"] + slope.square().sum()}

    trainer = make(Penalised)
    trainer.train(DATA, 2, gradient_accumulation_steps=2)
    trainer.optimizer.step()  # after the run it is the script's again


class StepsTheScheduler(TrainerCallback):
    """Steps the scheduler in one event, as a plain loop does."""

    def __init__(self, event: str) -> None:
        vars(self)[event] = self._step

    def _step(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        scheduler: Any = trainer.scheduler
        scheduler.step()


step_lr = partial(StepLR, step_size=2)


@on_both_entries
@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")
@pytest.mark.parametrize("event", ["on_train_step_start", "on_train_step_end", "on_optimizer_step_end"])
def test_a_scheduler_that_is_stepped_twice_in_an_update(entry: Entry, event: str) -> None:
    """Its schedule would end in the middle of the run: found by the second update."""
    model, updates = nn.Linear(4, 1), RatesUsed()
    options: dict[str, Any] = {"callbacks": [StepsTheScheduler(event), updates], "create_scheduler_fn": step_lr}
    with pytest.raises(ConfigurationError, match=r"'scheduler' is stepped by the script, too(.|\n)*after each update"):
        train(entry, model, SGD(model.parameters(), lr=0.01), DATA, 2, **options)
    assert len(updates.rates) <= 2


def test_a_custom_loop_that_steps_the_scheduler() -> None:
    """The run steps it already."""
    model = nn.Linear(4, 1)
    run = Run(model, SGD(model.parameters(), lr=0.01), DATA, num_epochs=3, create_scheduler_fn=step_lr)

    def train_by_hand() -> None:
        with run:
            for inputs, targets in run.batches():
                run.backward((model(inputs) - targets).square().mean())
                run.step()
                scheduler: Any = run.scheduler
                scheduler.step()

    with pytest.raises(ConfigurationError, match="is stepped by the script, too"):
        train_by_hand()


@pytest.mark.parametrize("event", ["on_optimizer_step_end", "on_train_epoch_end", "on_training_run_epoch_end"])
@pytest.mark.parametrize("after", ["update", "epoch"])
def test_a_scheduler_that_is_stepped_after_each_epoch_as_well(event: str, after: Any) -> None:
    """Found at the end of the first epoch, or in the first update of the second one."""
    trainer = make(Trainer, StepsTheScheduler(event))
    with pytest.raises(ConfigurationError, match="is stepped by the script, too"):
        trainer.train(DATA, 3, create_scheduler_fn=step_lr, step_scheduler=after)
    assert trainer.num_epochs_completed <= 2


def test_schedulers_that_are_stepped_once_are_fine() -> None:
    """After updates, after epochs, with a metric, in several runs, and in a way of one's own."""
    constant = partial(LambdaLR, lr_lambda=lambda _epoch: 1.0)
    trainer = make(Trainer)
    trainer.train(DATA, 3, create_scheduler_fn=constant)
    trainer.train(DATA, 3, create_scheduler_fn=constant, step_scheduler="epoch")
    scheduler: Any = trainer.scheduler
    scheduler.step()  # between two runs
    trainer.train(DATA, 2)
    trainer.train(DATA, 3, DATA, create_scheduler_fn=ReduceLROnPlateau, watch_metric="eval_loss_epoch")

    class OnceAnEpoch(Trainer[nn.Linear]):
        @override
        def scheduler_step(self) -> None:
            pass

        @override
        def training_run_epoch_end(self) -> None:
            scheduler: Any = self.scheduler
            scheduler.step(self.run_history.get_latest_metric("train_loss_epoch"))

    trainer = make(OnceAnEpoch)
    trainer.train(DATA, 3, create_scheduler_fn=ReduceLROnPlateau)
    scheduler = trainer.scheduler
    assert scheduler.last_epoch == 3


def test_a_batch_that_a_callback_changes_in_place_is_named() -> None:
    """Torch speaks of a tensor of some shape; a note says which one it is, who may have changed it, and what to do."""
    with pytest.raises(RuntimeError, match="inplace operation") as caught:
        make(Trainer, TellAt("on_train_step_end", lambda _, told: told["batch"][0].mul_(2))).train(DATA, 1)
    (note,) = caught.value.__notes__
    assert note.startswith("In training step 1, batch[0] was changed in place")
    assert note.endswith("The callbacks are TellAt. Change a copy: batch[0].clone().")


def test_a_model_that_changes_its_own_tensors_is_not_blamed_on_the_batch() -> None:
    """Torch's error is all that is known."""

    class InPlace(nn.Linear):
        @override
        def forward(self, input: Tensor) -> Tensor:
            outputs = super().forward(input).exp()
            outputs.add_(1)
            return outputs

    model = InPlace(4, 1)
    with pytest.raises(RuntimeError, match="inplace operation") as caught:
        Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.01), callbacks=[]).train(DATA, 1)
    assert not getattr(caught.value, "__notes__", [])


def test_an_optimizer_is_left_alone_however_the_run_ends() -> None:
    """After an error in the first update, it is the script's again, and another trainer's."""
    trainer = make(Trainer, FailAt("on_optimizer_step_end", LookupError("in mid-run"), 1))
    with pytest.raises(LookupError):
        trainer.train(DATA, 1)
    trainer.optimizer.step()
    Trainer(trainer.model, nn.MSELoss(), trainer.optimizer, callbacks=[]).train(DATA, 1)
