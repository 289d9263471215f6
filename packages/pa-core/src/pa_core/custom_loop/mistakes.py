"""The errors of a custom training loop that cannot work."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from pa_core.errors import ConfigurationError, UnsupportedConfigurationError
from pa_core.steps.default_step import unusable_kind
from pa_data.batches import describe_batch


def unusable_loss(loss: object) -> ConfigurationError:
    """Return the error of what no gradients can be computed of.

    Args:
        loss: What was passed to ``backward``.
    """
    if not isinstance(loss, Tensor):
        given = f"a loss of type {type(loss).__name__}"
        do = (
            "Pass the tensor that the loss function returned, without item() or float(). If it is held by something, "
            "pass outputs.loss, outputs['loss'] or the element that is the loss; some models have one only if they are "
            "given labels."
        )
    elif loss.numel() != 1:
        given, do = f"a loss of shape {tuple(loss.shape)}", "Take its mean over the samples: loss.mean()."
    elif (odd := unusable_kind(loss)) is not None:
        given, do = odd, "Pass a real number: of a complex loss, loss.abs() for example."
    else:
        given = "a tensor that depends on no trainable parameter"
        do = "Compute it outside of torch.no_grad(), from outputs of the model that were not detached."
    return ConfigurationError(
        "There is nothing to compute gradients of: a loss is a tensor with one element.", given=given, do=do
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
        f"backward(...) for {name!r} goes through a graph of {batch}, which an earlier backward pass has freed. {do}"
    )


def loop_within(what: str, place: str) -> ConfigurationError:
    """Return the error of a loop in the body of another one where it has no place."""
    return ConfigurationError(
        f"{what} cannot be nested within {place}. Move it out of the body: a loop over epochs has in its body one loop "
        "over updates or batches, and evaluations."
    )


def second_loop() -> ConfigurationError:
    """Return the error of a loop over what another loop of the block has been through."""
    return ConfigurationError(
        "All epochs of the run are over, so that nothing is left for a second loop. Write for epoch in run.epochs(): "
        "around the loop over updates or batches, which then has one epoch."
    )


def left_loop() -> ConfigurationError:
    """Return the error of a loop after one that was left, which has ended the run."""
    return ConfigurationError(
        "A break from a loop over all epochs has ended the run, so that nothing is left for another loop. To end one "
        "epoch only, leave a loop over its updates in the body of run.epochs()."
    )


def no_gradients_left(name: str) -> ConfigurationError:
    """Return the error of gradients that were cleared within an update, or that the loss had none of."""
    return ConfigurationError(
        f"After backward passes of {name!r}, its parameters have no gradients, or only zeros. Remove zero_grad() from "
        "the loop: the step clears gradients. With several models, check model=."
    )


def no_batch(number: int, call: str) -> ConfigurationError:
    """Return the error of a call before there is a batch."""
    return ConfigurationError(
        f"{call} comes before the first batch of update {number}. Write for batch in update: ..., and call it for each "
        "batch."
    )


def unclear_name(name: object, known: Iterable[str], call: str) -> ConfigurationError:
    """Return the error of a call that names none of several models, or an unknown one."""
    names = ", ".join(map(repr, known))
    return ConfigurationError(f"{call} must name one of the trained models, {names}, got {name!r}.")


def not_batches(given: object) -> ConfigurationError:
    """Return the error of one batch, or a dataset, in place of several batches.

    Args:
        given: What was passed to ``updates`` or ``batches``.
    """
    return ConfigurationError(
        f"updates(batches) and batches(batches) take several batches, got {describe_batch(given)}. Write "
        "run.batches([batch]) for one batch, and run.batches(tensor.split(64)) for pieces of it."
    )


def evaluates(what: str) -> ConfigurationError:
    """Return the error of training in the body of an evaluation."""
    return ConfigurationError(
        f"An evaluation does not train: {what} in the body of a loop over evaluation batches. Move it after the "
        "evaluation."
    )


def evaluates_by_callback() -> ConfigurationError:
    """Return the error of a callback that evaluates a run, which a custom loop does itself."""
    return ConfigurationError(
        "A custom loop runs its evaluations itself, and a callback requests one. Remove the callback, and iterate over "
        "run.evaluation_batches(dataset) in the loop."
    )


def shared_scaler() -> UnsupportedConfigurationError:
    """Return the error of several optimizers in fp16."""
    return UnsupportedConfigurationError(
        "Several optimizers cannot share the gradient scaler of fp16. Pass mixed_precision='bf16', which needs no "
        "scaler."
    )


def late_model(name: str) -> ConfigurationError:
    """Return the error of a model that is added to a run which has been made."""
    return ConfigurationError(
        f"A run is given all of its models when it is made, not by add_module({name!r}, ...). Write Run({{'model': "
        f"..., {name!r}: ...}}, {{'model': ..., {name!r}: ...}}, ...)."
    )


def update_is_over(number: int, what: str) -> ConfigurationError:
    """Return the error of a call of an update after the loop has continued."""
    return ConfigurationError(
        f"This update is over: {what} of update {number}, after the loop had continued. Use the update that "
        "run.updates() yielded last."
    )
