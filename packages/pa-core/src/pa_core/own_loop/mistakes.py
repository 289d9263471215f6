"""The errors of a custom training loop that cannot work."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from pa_core.errors import BatchOutputError, ConfigurationError, UnsupportedConfigurationError
from pa_core.step_output import unusable_kind
from pa_data.batches import describe_batch, is_mapping

__all__ = [
    "backward_after_step",
    "epoch_without_updates",
    "forgotten_step",
    "forgotten_step_of_one",
    "frozen_model",
    "graph_is_gone",
    "left_loop",
    "log_between_batches",
    "loop_within",
    "no_backward_of_last_batch",
    "no_batch",
    "no_callback_evaluates",
    "no_gradients_left",
    "no_length",
    "no_max_updates_per_batch",
    "no_module_beside",
    "no_previous_batch",
    "no_update",
    "not_batches",
    "not_begun",
    "other_items",
    "over",
    "run_within_run",
    "scaler_of_several",
    "scheduler_of_several",
    "second_block",
    "second_loop",
    "second_step",
    "step_before_last_batch",
    "step_by_hand",
    "step_without_backward",
    "too_many_updates",
    "unclear_name",
    "unusable_loss",
    "update_over",
    "updates_between_backward_and_step",
    "within_evaluation",
]

_SEVERAL = "For several updates out of one batch, write for part in run.batches(parts): ... in its body."


def unusable_loss(loss: object) -> ConfigurationError:
    """Return the error of what no gradients can be computed of.

    Args:
        loss: What was passed to ``backward``.
    """
    given = f"a loss of type {type(loss).__name__}"
    if not isinstance(loss, Tensor):
        do = _advice_for(loss)
    elif loss.numel() != 1:
        given, do = f"a loss of shape {tuple(loss.shape)}", "Take its mean over the samples: loss.mean()."
    elif (odd := unusable_kind(loss)) is not None:
        given, do = odd, "Pass a real number: of a complex loss, loss.abs() for example."
    else:
        given = "a tensor that depends on no trainable parameter"
        do = "Compute it outside of torch.no_grad(), from outputs of the model that were not detached."
    return ConfigurationError(
        "There is nothing to compute gradients of.",
        given=given,
        expected="a tensor with one element that depends on trainable parameters",
        do=do,
    )


def _advice_for(loss: object) -> str:
    if isinstance(loss, int | float):
        return "Pass the tensor itself: without item() or float()."
    if isinstance(getattr(loss, "loss", None), Tensor):  # also a mapping, as models of transformers return it
        return "Pass the loss that it holds: outputs.loss."
    if is_mapping(loss) and "loss" in loss:
        return "Pass the loss that it holds: outputs['loss']."
    if isinstance(loss, tuple | list):
        return "Pass the element that is the loss, or the sum of all of them."
    return "Pass the tensor that the loss function returned. Some models return one only if they are given labels."


def frozen_model(name: str) -> ConfigurationError:
    """Return the error of a backward pass of a model without a trainable parameter."""
    return ConfigurationError(
        "There is nothing to train.",
        given=f"backward(...) for {name!r}, every parameter of which has requires_grad=False",
        do="Call requires_grad_() on what is to be trained, before the forward pass.",
    )


def graph_is_gone(name: str, *, is_of_this_batch: bool) -> ConfigurationError:
    """Return the error of a second backward pass through a graph, whose tensors torch frees in the first one.

    Args:
        name: What the second pass was for.
        is_of_this_batch: Whether the batch has had a backward pass before.
    """
    batch = "this batch" if is_of_this_batch else "an earlier batch"
    do = (
        "Pass retain_graph=True to the earlier call of backward(...), or add the losses up and call it once."
        if is_of_this_batch
        else "Detach what is carried over from one batch to the next: state = state.detach()."
    )
    return ConfigurationError(
        "A backward pass goes through a graph that an earlier one has freed.",
        given=f"backward(...) for {name!r}, through a graph of {batch}",
        do=do,
    )


def not_begun(what: str) -> ConfigurationError:
    """Return the error of a call before the block of the run."""
    return ConfigurationError(
        "The run has not begun.",
        given=f"{what} before its block",
        expected=f"{what} in the block of the run",
        do="Write with run: around the loop.",
    )


def over(what: str) -> ConfigurationError:
    """Return the error of a call after the block of the run."""
    return ConfigurationError(
        "The run is over.",
        given=f"{what} after its block",
        expected=f"{what} in the block of the run",
        do="Move the call into the block, or make another Run.",
    )


def second_block(stage: str) -> ConfigurationError:
    """Return the error of a run whose block is entered twice."""
    return ConfigurationError(
        "A run has one block.", given=f"with run: a second time, {stage} its block", do="Make another Run."
    )


def run_within_run() -> ConfigurationError:
    """Return the error of a run in the block of another one."""
    return ConfigurationError(
        "There is one run at a time.",
        given="the block of a run within the block of another one",
        do="End the block of the other run first, or give one run several models by name.",
    )


def loop_within(what: str, place: str) -> ConfigurationError:
    """Return the error of a loop in the body of another one where it has no place."""
    return ConfigurationError(
        "A loop of the run cannot be nested in this place.",
        given=f"{what} within {place}",
        expected="a loop over epochs, in its body one loop over updates or batches, and evaluations",
        do=f"Move {what} out of the body of the other loop.",
    )


def second_loop() -> ConfigurationError:
    """Return the error of a loop over what another loop of the block has been through."""
    return ConfigurationError(
        "All epochs of the run are over.",
        given="a second loop over epochs, updates or batches, for which nothing is left",
        do="Write for epoch in run.epochs(): around the loop over updates or batches, which then has one epoch.",
    )


def left_loop() -> ConfigurationError:
    """Return the error of a loop after one that was left, which has ended the run."""
    return ConfigurationError(
        "A break has ended the run.",
        given="another loop over epochs, updates or batches after one over all epochs that was left early",
        do="Leave the loop over the updates of an epoch, in the body of run.epochs(): that ends one epoch only.",
    )


def log_between_batches(name: object) -> ConfigurationError:
    """Return the error of a logged value that belongs to no batch."""
    return ConfigurationError(
        "There is no batch that the value could belong to.",
        given=f"log({name!r}, ...) outside of a loop over batches, or after the step of an update",
        do="Log it before the step; a value that is not a mean over samples is for run.record(name, value).",
    )


def within_evaluation(what: str) -> ConfigurationError:
    """Return the error of a part of the training in the body of an evaluation."""
    return ConfigurationError(
        "An evaluation does not train.",
        given=f"{what} in the body of a loop over evaluation batches",
        do=f"Move {what} after the evaluation.",
    )


def epoch_without_updates() -> ConfigurationError:
    """Return the error of a loop over epochs that trains nothing."""
    return ConfigurationError(
        "An epoch was left without its updates.",
        given="a loop over run.epochs() whose body takes no updates",
        do="Write for update in run.updates(): ..., or for batch in run.batches(): ..., in the body.",
    )


def no_gradients_left(name: str) -> ConfigurationError:
    """Return the error of gradients that were cleared within an update, or that the loss had none of."""
    return ConfigurationError(
        "The gradients of an update are gone.",
        given=f"backward passes of {name!r}, after which none of its parameters has a gradient",
        do="Remove zero_grad() from the loop: the step clears gradients. With several models, check model=.",
    )


def no_length() -> ConfigurationError:
    """Return the error of a run without a length."""
    return ConfigurationError(
        "Nothing says how long the run is.",
        given="neither num_epochs nor max_num_train_steps",
        do="Pass num_epochs=10, for example; a break ends the run earlier.",
    )


def no_update(what: str) -> ConfigurationError:
    """Return the error of a call outside of the body of the loop."""
    return ConfigurationError(
        "No update is in progress.",
        given=f"run.{what} outside of a loop over updates() or batches()",
        do="Write for batch in run.batches(): ..., and call it for each batch.",
    )


def no_batch(number: int, call: str) -> ConfigurationError:
    """Return the error of a call before there is a batch."""
    return ConfigurationError(
        "There is no batch that this could belong to.",
        given=f"{call} before the first batch of update {number}",
        do="Write for batch in update: ..., and call it for each batch.",
    )


def no_previous_batch() -> UnsupportedConfigurationError:
    """Return the error of a process whose custom loader has no batch while the loaders of others have."""
    return UnsupportedConfigurationError(
        "This process has no batch, while others have one.",
        given="a custom loader without any batch on this process",
        do="Pass a dataset, or a loader with samples for each process.",
    )


def other_items(first: int, second: int) -> BatchOutputError:
    """Return the error of two backward passes over one batch whose losses are means over different numbers of items."""
    return BatchOutputError(
        "The losses of one batch are means over different numbers of items.",
        given=f"num_items={first} in its first backward pass, and num_items={second} in a later one",
        expected="the same number of items in all passes of one model over a batch",
        do="Divide each loss by the same number of items, and pass that number.",
    )


def update_over(what: str, number: int) -> ConfigurationError:
    """Return the error of a call on an update that the loop has left."""
    return ConfigurationError(
        "This update is over.",
        given=f"{what} of update {number}, after the loop had continued",
        do="Use the update that run.updates() yielded last.",
    )


def unclear_name(name: object, known: Iterable[str], call: str) -> ConfigurationError:
    """Return the error of a call that names none of several models, or an unknown one."""
    return ConfigurationError(
        "It is not clear which model is meant." if name is None else "There is no trained model of this name.",
        given="no name" if name is None else repr(name),
        expected=f"one of {', '.join(map(repr, known))}",
        do=f"Write {call} with one of these names.",
    )


def backward_after_step(name: str) -> ConfigurationError:
    """Return the error of a backward pass whose gradients come too late."""
    return ConfigurationError(
        "A backward pass came after the step of its optimizer.",
        given=f"backward(...) for {name!r} after its step in the same update",
        do=f"Step after the last backward pass, or add the losses up and call backward(...) once. {_SEVERAL}",
    )


def step_before_last_batch() -> ConfigurationError:
    """Return the error of a step in the middle of an accumulation group."""
    return ConfigurationError(
        "An update is stepped after its last batch.",
        given="update.step() while batches of the update are left",
        do="Move update.step() after the loop, or call run.step(), which steps after the last batch only.",
    )


def step_by_hand(name: str) -> ConfigurationError:
    """Return the error of an optimizer that the loop steps by itself."""
    return ConfigurationError(
        "The loop has stepped an optimizer that the run steps.",
        given=f"step() of the optimizer {name!r} itself",
        do="Remove optimizer.step() from the loop: update.step() or run.step() agrees, clips, steps and clears.",
    )


def second_step(name: str) -> ConfigurationError:
    """Return the error of a second step in an update."""
    return ConfigurationError(
        "An optimizer was stepped twice in one update.",
        given=f"a second step of {name!r}",
        do=f"Remove one of the two calls. {_SEVERAL}",
    )


def step_without_backward(name: str) -> ConfigurationError:
    """Return the error of a step with nothing to step with."""
    return ConfigurationError(
        "There are no gradients to step with.",
        given=f"a step of {name!r} without its backward pass in this update",
        do="Call update.backward(loss) or run.backward(loss) instead of loss.backward().",
    )


def no_backward_of_last_batch(name: str) -> ConfigurationError:
    """Return the error of a step with gradients that were not exchanged, which would let the processes drift apart."""
    return ConfigurationError(
        "The last batch of an update had no backward pass, with which gradients are exchanged between processes.",
        given=f"a step of {name!r} after backward passes of earlier batches of the update only",
        do="Call backward(loss) for each batch; a loss that should not count can be multiplied by 0.",
    )


def forgotten_step(number: int, *, has_gradients: bool) -> ConfigurationError:
    """Return the error of an update that was not made."""
    return ConfigurationError(
        "An update was left without a step.",
        given=f"update {number}, {'with' if has_gradients else 'without'} a backward pass, and no step",
        do="Call update.step() after the loop over the batches of the update, or run.step() after each batch.",
    )


def forgotten_step_of_one(number: int, name: str) -> ConfigurationError:
    """Return the error of an update with gradients of several models that was made for some of them only."""
    return ConfigurationError(
        "An update was left with gradients that no step has used.",
        given=f"update {number} with a backward pass of {name!r}, and no step of it",
        do=f'Call update.step("{name}") too, or leave its backward pass out of updates in which it does not step.',
    )


def no_callback_evaluates() -> ConfigurationError:
    """Return the error of a callback that requests an evaluation from the run."""
    return ConfigurationError(
        "A custom loop runs its evaluations itself.",
        given="a callback that requests an evaluation",
        do="Remove the callback, and iterate over run.evaluation_batches(dataset) in the loop.",
    )


def no_module_beside(name: str) -> ConfigurationError:
    """Return the error of a module that is given to a run after it was made."""
    return ConfigurationError(
        "A run is given all of its models when it is made.",
        given=f"add_module({name!r}, ...)",
        do=f'Write Run({{"model": ..., {name!r}: ...}}, {{"model": ..., {name!r}: ...}}, ...).',
    )


def scheduler_of_several(names: Iterable[str]) -> ConfigurationError:
    """Return the error of one factory where each optimizer has its own scheduler."""
    return ConfigurationError(
        "It is not clear which optimizer the scheduler is for.",
        given="one create_scheduler_fn, and several optimizers",
        expected=f"factories by the names of the optimizers that have a scheduler: {', '.join(map(repr, names))}",
        do="Write create_scheduler_fn={name: factory}; the same factory may be there for several names.",
    )


def scaler_of_several() -> UnsupportedConfigurationError:
    """Return the error of several optimizers in fp16."""
    return UnsupportedConfigurationError(
        "Several optimizers cannot share the gradient scaler of fp16.",
        given='mixed_precision="fp16" and several optimizers',
        do='Pass mixed_precision="bf16", which needs no scaler.',
    )


def no_max_updates_per_batch() -> ConfigurationError:
    """Return the error of updates of one batch where nothing says how many the run is to count with."""
    return ConfigurationError(
        "Nothing says how many updates the loop makes of a batch, with which the length of the run is counted.",
        given="updates(batches) in a run without max_updates_per_batch",
        do="Pass Run(..., max_updates_per_batch=4), for example; fewer are allowed.",
    )


def too_many_updates(number: int) -> ConfigurationError:
    """Return the error of more updates of one batch than the run counts with."""
    return ConfigurationError(
        "The loop makes more updates of a batch than the run counts with.",
        given=f"update {number + 1} of a batch",
        expected=f"at most {number}",
        do=f"Pass Run(..., max_updates_per_batch={number + 1}) or more.",
    )


def updates_between_backward_and_step(number: int) -> ConfigurationError:
    """Return the error of updates that would also step with the gradients of the one around them."""
    return ConfigurationError(
        "Other updates cannot come between the backward pass of an update and its step.",
        given=f"updates(batches) in update {number}, which has gradients",
        do="Step first, or make the loss of the batch itself one of the updates: run.updates([*batches, batch]).",
    )


def not_batches(given: object) -> ConfigurationError:
    """Return the error of one batch, or a dataset, in place of several batches.

    Args:
        given: What was passed to ``updates`` or ``batches``.
    """
    return ConfigurationError(
        "updates(batches) and batches(batches) take several batches.",
        given=describe_batch(given),
        expected="a list of batches, or another iterable of them",
        do="Write run.batches([batch]) for one batch, and run.batches(tensor.split(64)) for pieces of it.",
    )
