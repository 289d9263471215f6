"""What is refused in a loop of one's own, and how it is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import IterableDataset
from typing_extensions import override

from pa_core import (
    ArgumentTypeError,
    BatchOutputError,
    ConfigurationError,
    ExplainedError,
    Run,
    SaveBestModelCallback,
    StepBasedEvaluationCallback,
    Trainer,
    TrainerCallback,
)
from tests.small_runs import linear, samples
from tests.support.pa_core.custom_loops.loops import make_line, step_through
from tests.support.pa_core.own_schedulers import Bare, OfTwoMetrics, Timm


def _fail(gradient: Tensor) -> None:
    raise RuntimeError("an error of the script")


def test_a_step_that_is_forgotten() -> None:
    """The next update says so, in the nested form and in the flat one."""
    run = make_line()
    with pytest.raises(ConfigurationError, match=r"without a step(.|\n)*update 1, with a backward pass"), run:
        for inputs, _ in run.batches():
            run.backward(run.model(inputs).sum())
    with pytest.raises(ConfigurationError, match=r"update 1, without a backward pass"), make_line() as run:
        for update in run.updates():
            list(update)


def test_a_step_without_a_backward_pass() -> None:
    """Also where ``loss.backward()`` was called, which knows nothing of shares."""
    with pytest.raises(ConfigurationError, match=r"instead of loss\.backward"), make_line() as run:
        for inputs, _ in run.batches():
            torch.autograd.backward(run.model(inputs).sum())
            run.step()


def test_gradients_that_are_zeros_by_themselves() -> None:
    """A loss that counts for nothing, and gradients that are changed in place before the step, are no mistake."""
    with make_line(gradient_accumulation_steps=2) as run:
        for number, (inputs, _) in enumerate(run.batches()):
            run.backward(run.model(inputs).mean() * (number % 2))
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
            run.step()
    assert run.num_updates_completed > 0


def test_a_step_before_the_last_batch() -> None:
    """An update is stepped after the loop over its batches."""
    with pytest.raises(ConfigurationError, match="after the loop"), make_line(gradient_accumulation_steps=2) as run:
        for update in run.updates():
            for inputs, _ in update:
                update.backward(run.model(inputs).sum())
                update.step()


def test_a_step_of_the_optimizer_itself() -> None:
    """One that a port has left in the loop would be a second step in each update; outside of the block it is fine."""
    run = make_line()
    with pytest.raises(ConfigurationError, match=r"Remove optimizer\.step\(\) from"), run:
        for inputs, targets in run.batches():
            run.backward((run.model(inputs) - targets).square().mean())
            run.optimizer.step()
            run.step()
    run.optimizer.step()


def test_training_in_the_body_of_an_evaluation() -> None:
    """Its batches would be those of an update, in eval mode."""
    run = make_line()
    with run:
        for inputs, targets in run.batches():
            run.backward((run.model(inputs * 0.1) - targets).square().mean())
            for _ in run.evaluation_batches(samples(3)):
                with (
                    torch.enable_grad(),
                    pytest.raises(ConfigurationError, match=r"backward\(\.\.\.\) was called in the body"),
                ):
                    run.backward(run.model(inputs).sum())
                uses: list[Callable[[], Any]] = [run.step, run.updates, run.epochs, run.batches]
                for use in uses:
                    with pytest.raises(ConfigurationError, match=r"\(\) was called in the body of evaluation_batches"):
                        list(use())
            run.step()


def test_a_second_step_and_a_backward_pass_after_it() -> None:
    """Neither belongs to an update that has been made."""
    with pytest.raises(ConfigurationError, match="stepped twice"), make_line() as run:
        for inputs, _ in run.batches():
            run.backward(run.model(inputs).sum())
            run.step()
            run.step()
    with pytest.raises(ConfigurationError, match="after the step"), make_line() as run:
        for inputs, _ in run.batches():
            run.backward(run.model(inputs).sum())
            run.step()
            run.backward(run.model(inputs).sum())


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("outputs.sum().item()", "without item"),
        ("outputs", "mean over the samples"),
        ("outputs.sum().detach()", "not detached"),
        ("(outputs.sum(), outputs)", "type tuple(.|\n)*element that is the loss"),
        ("{'loss': outputs.sum()}", r"type dict(.|\n)*\['loss'\]"),
        ("SimpleNamespace(loss=outputs.sum())", r"type SimpleNamespace(.|\n)*\.loss"),
        ("None", "type NoneType(.|\n)*returned"),
    ],
)
def test_a_loss_without_a_graph(loss: str, message: str) -> None:
    """A number, several of them, one that was detached, or what holds the loss."""
    with pytest.raises(ConfigurationError, match=message), make_line() as run:
        for inputs, _ in run.batches():
            run.backward(eval(loss, {"outputs": run.model(inputs), "SimpleNamespace": SimpleNamespace}))


def test_a_graph_that_is_gone() -> None:
    """Torch frees a graph in its first backward pass: the advice is another one where that was another batch's."""
    with pytest.raises(ConfigurationError, match=r"Pass retain_graph=True") as caught, make_line() as run:
        for inputs, _ in run.batches():
            loss = run.model(inputs).square().sum()
            run.backward(loss)
            run.backward(loss)
    assert isinstance(caught.value.__cause__, RuntimeError)
    state = torch.zeros(1, 1, dtype=torch.float64)
    with pytest.raises(ConfigurationError, match=r"Detach tensors"), make_line() as run:
        for inputs, _ in run.batches():
            state = run.model(inputs + state).square().mean()
            run.backward(state)
            run.step()
    with pytest.raises(RuntimeError, match="of the script"), make_line() as run:
        for inputs, _ in run.batches():
            outputs = run.model(inputs)
            outputs.register_hook(_fail)
            run.backward(outputs.sum())


def test_values_that_cannot_be_logged() -> None:
    """Also as the loss of an evaluation: single numbers only, and each once."""
    values: list[Any] = [[1], "low", torch.ones(2), None, 1j]
    for value in values:
        for name in ("loss", "kl"):
            with pytest.raises(ConfigurationError, match="single number"), make_line() as run:
                for _ in run.evaluation_batches(samples(4)):
                    run.log(name, value)
    with pytest.raises(ConfigurationError, match="twice in the same step"), make_line() as run:
        for _ in run.evaluation_batches(samples(4)):
            run.log("loss", 1.0)
            run.log("loss", 1.0)


def test_a_run_outside_of_its_block() -> None:
    """Before ``with``, after it, and a second time: each says what to do."""
    run = make_line()
    with pytest.raises(ConfigurationError, match="with run:"):
        next(iter(run.updates()))
    with run:
        step_through(run)
    for use in (run.epochs, run.updates, run.batches, lambda: run.evaluation_batches(samples(2))):
        with pytest.raises(ConfigurationError, match="after its block"):
            next(iter(use()))
    with pytest.raises(ConfigurationError, match="after its block"):
        run.step()
    with pytest.raises(ConfigurationError, match="Make another Run"), run:
        pass


def test_a_run_within_a_run() -> None:
    """One run at a time: a second block, and a second loop over the epochs."""
    with pytest.raises(ConfigurationError, match="the block of another run is open"), make_line(), make_line():
        pass
    with pytest.raises(ConfigurationError, match="within an epoch"), make_line() as run:
        for _ in run.epochs():
            for _ in run.epochs():
                pass
    with pytest.raises(ConfigurationError, match="within an update"), make_line() as run:
        for _ in run.updates():
            for _ in run.updates():
                pass
    with make_line():  # an error in a block leaves nothing behind
        pass


def test_a_second_loop_without_epochs() -> None:
    """A loop over all epochs is the whole run: another one would silently do nothing."""
    run = make_line(num_epochs=2)
    with pytest.raises(ConfigurationError, match=r"run\.epochs\(\)"), run:
        for _ in range(2):
            step_through(run)
    assert run.num_updates_completed == 6


def test_a_loop_after_one_that_a_break_has_left() -> None:
    """The break has ended the run, whether it was over epochs or over batches."""
    with pytest.raises(ConfigurationError, match="break"), make_line(num_epochs=2) as run:
        for _ in run.epochs():
            step_through(run)
            break
        for _ in run.epochs():
            step_through(run)
    with pytest.raises(ConfigurationError, match="break"), make_line(num_epochs=2) as run:
        for _ in range(2):
            for inputs, targets in run.batches():
                run.backward((run.model(inputs) - targets).square().mean())
                run.step()
                break


def test_an_epoch_without_training() -> None:
    """A loop over epochs that takes no updates would do nothing."""
    with pytest.raises(ConfigurationError, match=r"run\.updates"), make_line() as run:
        for _ in run.epochs():
            pass


def test_an_update_of_before() -> None:
    """An update that was kept is over when the loop continues."""
    with pytest.raises(ConfigurationError, match="has ended"), make_line() as run:
        kept = []
        for update in run.updates():
            kept.append(update)
            for inputs, _ in update:
                kept[0].backward(run.model(inputs).sum())
            update.step()


def _words_for_a_trainer(error: BaseException) -> list[str]:
    words = ("trainer", "Trainer", "train()", "calculate_", "num_items_in_batch", "verride", "dataloader")
    return [word for word in words if word in str(error)]


class _Stream(IterableDataset[Tensor]):
    @override
    def __iter__(self) -> Iterator[Tensor]:
        yield torch.ones(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_dataset": _Stream()}, "Pass max_num_train_steps"),
        ({"train_dataset": 5}, "__getitem__"),
        ({"optimizer": None}, "no optimizer"),
        ({"mixed_precision": "fp8"}, "precision"),
        ({"step_scheduler": "epoch"}, "Pass create_scheduler_fn to Run"),
        ({"create_scheduler_fn": ReduceLROnPlateau}, "to Run: it is then stepped with each epoch"),
        ({"create_scheduler_fn": Bare}, "Derive it from StatefulSchedulerBase"),
        ({"create_scheduler_fn": OfTwoMetrics}, "Give its step"),
        (
            {"create_scheduler_fn": Timm},
            "needs calls after updates and after epochs(.|\n)*Wrap it in a StatefulSchedulerBase",
        ),
    ],
)
def test_messages_of_a_run_do_not_speak_of_the_trainer(options: dict[str, Any], message: str) -> None:
    """What both refuse is said in the words of the one that is used."""
    model = linear()
    settings: dict[str, Any] = {
        "optimizer": SGD(model.parameters(), lr=0.1),
        "train_dataset": samples(4),
        "num_epochs": 1,
        **options,
    }
    with pytest.raises((ConfigurationError, ArgumentTypeError), match=message) as caught, Run(model, **settings):
        pass
    assert _words_for_a_trainer(caught.value) == []


def test_messages_of_a_loop_do_not_speak_of_the_trainer() -> None:
    """Counts of items in some batches alone, values that are logged without an update, and a name that is taken."""
    with pytest.raises(ConfigurationError, match="before the step") as of_others, make_line() as run:
        run.log("kl", 1.0)
    with pytest.raises(BatchOutputError, match="num_items=3 in this step") as of_items, make_line() as run:
        for number, (inputs, _) in enumerate(run.batches()):
            run.backward(run.model(inputs).mean(), num_items=3 if number else None)
            run.step()
    with pytest.raises(ConfigurationError, match="before the step") as of_values, make_line() as run:
        for inputs, _ in run.batches():
            run.backward(run.model(inputs).mean())
            run.step()
            run.log("kl", 1.0)
    with pytest.raises(ConfigurationError, match="except 'loss'") as of_names, make_line() as run:
        for _ in run.batches():
            run.log("loss", 1.0)
    assert [_words_for_a_trainer(one.value) for one in (of_items, of_others, of_values, of_names)] == [[]] * 4


def test_a_module_beside_the_models() -> None:
    """All models are given when the run is made."""
    with pytest.raises(ConfigurationError, match="gets all of its models when it is created"):
        make_line().add_module("teacher", linear())


def test_how_long_it_trains_has_to_be_said() -> None:
    """Before the block."""
    with pytest.raises(ConfigurationError, match="num_epochs"):
        make_line(num_epochs=None)


def test_an_optimizer_that_needs_a_closure() -> None:
    """Nothing gives it one but an overridden step of a trainer: whoever has no such step is told so at the start."""

    def step(closure: Callable[[], float]) -> float:
        return closure()

    model = linear()
    of_a_library = SGD(model.parameters(), lr=0.1)
    vars(of_a_library)["step"] = step
    for optimizer in (LBFGS(model.parameters()), of_a_library):
        with pytest.raises(ConfigurationError, match=rf"{type(optimizer).__name__}(.|\n)*Trainer(.|\n)*optimizer_step"):
            Run(model, optimizer, samples(4), num_epochs=1)
        with pytest.raises(ConfigurationError, match="optimizer_step"):
            Trainer(model, nn.MSELoss(), optimizer, callbacks=[]).train(samples(4), num_epochs=1)
    trainer = Trainer(model, nn.MSELoss(), None, callbacks=[], create_optimizer_fn=lambda one: LBFGS(one.parameters()))
    with pytest.raises(ConfigurationError, match="optimizer_step"):
        trainer.train(samples(4), num_epochs=1)
    with pytest.raises(ConfigurationError, match="optimizer_step"):
        trainer.add_module("other", (other := linear()), LBFGS(other.parameters()))


def test_callbacks_that_evaluate_are_told_where_to() -> None:
    """A run has no evaluation dataset of its own: the loop evaluates."""
    with pytest.raises(ConfigurationError, match="evaluation_batches"), make_line() as run:
        run.run_evaluation_epoch()


@pytest.mark.parametrize("callback", [StepBasedEvaluationCallback(2), SaveBestModelCallback("best.pt")])
def test_callbacks_that_need_an_evaluation_say_what_to_do_in_a_loop(callback: TrainerCallback) -> None:
    """What a trainer is given to evaluate is no advice for a loop, which evaluates itself."""
    message = r"Trainer\.train\(\)(.|\n)* custom training loop"
    with pytest.raises(ExplainedError, match=message), make_line(callbacks=[callback]) as run:
        step_through(run)


@pytest.mark.parametrize("number", [True, -1, 2.5, float("nan"), "3", 1j, torch.tensor(float("inf")), torch.ones(2)])
def test_items_are_counted_in_whole_numbers(number: Any) -> None:
    """With a loss that is trained on, and with a value that is logged; a sum that is a float is no mistake."""
    with pytest.raises(BatchOutputError, match=r"num_items in backward\(\.\.\.\) must be .*, got "), make_line() as run:
        for inputs, _ in run.batches():
            run.backward(run.model(inputs).mean(), num_items=number)
    with (
        pytest.raises(BatchOutputError, match=r'num_items in log\("error", \.\.\.\) must be .*, got '),
        make_line() as run,
    ):
        for _ in run.batches():
            run.log("error", 1.0, num_items=number)
    items: Any = torch.tensor(3.0)
    with make_line() as run:
        for inputs, _ in run.batches():
            run.backward(run.model(inputs).mean(), num_items=items)
            run.step()
    assert isinstance(run.run_history.get_latest_metric("train_loss_epoch"), float)


ODD_LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "dtype torch.complex": lambda loss: loss + 0j,
    "dtype torch.bool": lambda loss: loss > 0,
    "layout torch.sparse_coo": lambda loss: loss.reshape(1).to_sparse(),
    "device 'meta'": lambda loss: loss.to("meta"),
}


@pytest.mark.parametrize("given", ODD_LOSSES)
def test_a_loss_is_a_real_number(given: str) -> None:
    """What torch cannot compute gradients of is named before torch is asked."""
    with pytest.raises(ConfigurationError, match=given), make_line() as run:
        for inputs, _ in run.batches():
            run.backward(ODD_LOSSES[given](run.model(inputs).mean()))
