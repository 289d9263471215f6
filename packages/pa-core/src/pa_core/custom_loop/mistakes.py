"""The errors of a custom training loop that cannot work."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from pa_core.errors import ConfigurationError, UnsupportedConfigurationError
from pa_core.steps.default_step import unusable_kind
from pa_data.batches import describe_batch


def unusable_loss(loss: object) -> ConfigurationError:
    """Return the error for a loss that has no gradients.

    Args:
        loss: The argument of ``backward``.
    """
    if not isinstance(loss, Tensor):
        given = f"a loss of type {type(loss).__name__}"
        do = (
            "Pass the tensor that the loss function returned, without item() or float(). If a model returned it, "
            "pass outputs.loss, outputs['loss'] or the element that is the loss; some models have a loss only with "
            "labels."
        )
    elif loss.numel() != 1:
        given, do = f"a loss of shape {tuple(loss.shape)}", "Take its mean over the samples: loss.mean()."
    elif (odd := unusable_kind(loss)) is not None:
        given, do = odd, "Pass a real number: of a complex loss, loss.abs() for example."
    else:
        given = "a tensor that depends on no trainable parameter"
        do = "Compute it outside of torch.no_grad(), from outputs of the model that were not detached."
    return ConfigurationError("No gradients can be computed: a loss is a tensor with one element.", given=given, do=do)


def graph_is_gone(name: str, *, is_of_this_batch: bool) -> ConfigurationError:
    """Return the error for a second backward pass through a graph, whose tensors torch frees in the first pass.

    Args:
        name: The name of the model or optimizer of the second pass.
        is_of_this_batch: Whether the batch has had a backward pass before.
    """
    batch = "this batch" if is_of_this_batch else "an earlier batch"
    do = (
        "Pass retain_graph=True to the earlier call of backward(...), or add the losses up and call it once."
        if is_of_this_batch
        else "Detach tensors that you carry over to the next batch: state = state.detach()."
    )
    return ConfigurationError(
        f"backward(...) for {name!r} goes through a graph of {batch}, which an earlier backward pass has freed. {do}"
    )


def loop_within(what: str, place: str) -> ConfigurationError:
    """Return the error for a loop that cannot be in the body of another loop."""
    return ConfigurationError(
        f"{what} cannot be nested within {place}. Move it out of the body: a loop over epochs contains a single loop "
        "over updates or batches, and evaluations."
    )


def second_loop() -> ConfigurationError:
    """Return the error for a second loop over all epochs."""
    return ConfigurationError(
        "All epochs of the run have ended, so that nothing is left for a second loop. Write for epoch in run.epochs(): "
        "around the loop over updates or batches, which then iterates over a single epoch."
    )


def left_loop() -> ConfigurationError:
    """Return the error for a loop after a break from another loop, which ended the run."""
    return ConfigurationError(
        "A break from a loop over all epochs has ended the run, so that nothing is left for another loop. To end an "
        "epoch only, break from a loop over its updates in the body of run.epochs()."
    )


def no_gradients_left(name: str) -> ConfigurationError:
    """Return the error for gradients that were cleared within an update, or that the loss did not have."""
    return ConfigurationError(
        f"After backward passes of {name!r}, its parameters have no gradients, or only zeros. Remove zero_grad() from "
        "the loop: the step clears gradients. With several models, check model=."
    )


def no_batch(number: int, call: str) -> ConfigurationError:
    """Return the error for a call before there is a batch."""
    return ConfigurationError(
        f"{call} comes before the first batch of update {number}. Write for batch in update: ..., and call it for each "
        "batch."
    )


def unclear_name(name: object, known: Iterable[str], call: str) -> ConfigurationError:
    """Return the error for a call without the name of a model, or with an unknown name."""
    names = ", ".join(map(repr, known))
    return ConfigurationError(f"{call} must name a trained model ({names}), got {name!r}.")


def not_batches(given: object) -> ConfigurationError:
    """Return the error for a single batch, or a dataset, in place of several batches.

    Args:
        given: The argument of ``updates`` or ``batches``.
    """
    return ConfigurationError(
        f"updates(batches) and batches(batches) take several batches, got {describe_batch(given)}. Write "
        "run.batches([batch]) for a single batch, and run.batches(tensor.split(64)) for pieces of it."
    )


def evaluates(what: str) -> ConfigurationError:
    """Return the error for training in the body of an evaluation."""
    return ConfigurationError(
        f"An evaluation does not train: {what} was called in the body of evaluation_batches(...). Move it after the "
        "evaluation."
    )


def evaluates_by_callback() -> ConfigurationError:
    """Return the error for a callback that evaluates a run, because the script itself evaluates in a custom loop."""
    return ConfigurationError(
        "A custom loop evaluates itself, but a callback requested an evaluation. Remove the callback, and iterate over "
        "run.evaluation_batches(dataset) in the loop."
    )


def shared_scaler() -> UnsupportedConfigurationError:
    """Return the error for several optimizers in fp16."""
    return UnsupportedConfigurationError(
        "Several optimizers cannot share the gradient scaler of fp16. Pass mixed_precision='bf16', which needs no "
        "scaler."
    )


def late_model(name: str) -> ConfigurationError:
    """Return the error for a model that is added to a run after its construction."""
    return ConfigurationError(
        f"A run gets all of its models when it is created, not by add_module({name!r}, ...). Write Run({{'model': "
        f"..., {name!r}: ...}}, {{'model': ..., {name!r}: ...}}, ...)."
    )


def update_is_over(number: int, what: str) -> ConfigurationError:
    """Return the error for a call to an update after the loop has continued."""
    return ConfigurationError(
        f"This update has ended: {what} of update {number} was requested after the loop continued. Use the update that "
        "run.updates() yielded last."
    )
