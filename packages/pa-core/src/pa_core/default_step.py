"""The step of a trainer that overrides none: inputs and targets of a batch, or a model that returns its own loss."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn

from pa_core.batch_mismatches import describe_failed_loss, require_pairs
from pa_core.batch_structure import count_samples, lists_of_numbers
from pa_core.errors import ConfigurationError
from pa_core.types import LossFunction
from pa_core.unwrapping import unwrap_model
from pa_data.batches import describe_batch, is_array, is_mapping, keys_of

__all__ = ["calculate_batch_loss", "forward_takes"]

_TARGET_NAMES = ("labels", "label", "targets", "target", "y")


def calculate_batch_loss(
    model: nn.Module, loss_func: LossFunction | None, batch: object, method: str, checked: set[str]
) -> dict[str, Any]:
    """Return the output of a step: the loss of the model's outputs against the targets of the batch.

    Errors of the model and of the loss function leave with notes on what they were called with.

    Args:
        model: The model, as a step calls it.
        loss_func: Called with the model's outputs and the targets. None for a model that returns its own loss when it
            is called with the items of a mapping, ``model(**batch)``.
        batch: Inputs and targets at the indices 0 and 1, or a mapping.
        method: The method that is not overridden, for messages.
        checked: The methods whose first batch of the run was looked at; this one is added.

    Raises:
        ConfigurationError: The batch has no inputs and targets at these indices, or there is no loss.
        BatchMismatchError: Torch would compute the loss of other pairs of outputs and targets than were meant.
    """
    if loss_func is None and is_mapping(batch):
        return _loss_of_model(model, batch)
    if loss_func is None:
        raise ConfigurationError(
            "There is no loss function to calculate the loss with.",
            given=f"loss_func=None, and {describe_batch(batch)} as a batch",
            do="Pass a loss function, override calculate_train_batch_loss and calculate_eval_batch_loss, or let "
            "the batch be a mapping and the model return its own loss.",
        )
    if (batch.__class__ is list or batch.__class__ is tuple) and len(cast("Any", batch)) > 1:
        inputs, targets, *_ = cast("Any", batch)
    else:
        inputs, targets = _inputs_and_targets(model, batch, method)
    try:
        outputs = model(inputs)
        if method not in checked:
            checked.add(method)
            require_pairs(loss_func, outputs, targets)
    except Exception as error:
        _note_other_items(error, model, batch, method)
        raise
    try:
        loss = loss_func(outputs, targets)
    except Exception as error:
        for note in describe_failed_loss(error, loss_func, outputs, targets):
            error.add_note(note)
        _note_other_items(error, model, batch, method)
        raise
    return {"loss": loss, "model_outputs": outputs, "batch_size": _number_of_samples(inputs, targets)}


def forward_takes(model: nn.Module, *args: object, **kwargs: object) -> bool:
    """Whether the model's ``forward`` takes such arguments."""
    plain = unwrap_model(model, keep_torch_compile=False)
    try:
        # that of the class: mixed precision replaces the method of the instance
        inspect.signature(type(plain).forward).bind(plain, *args, **kwargs)
    except TypeError:
        return False
    return True


def _note_other_items(error: Exception, model: nn.Module, batch: Any, method: str) -> None:
    """Show the step for a batch of more than two items, or for a model of several inputs, as an error may need it."""
    last = len(batch) - 1 if issubclass(type(batch), (list, tuple)) else 1
    if last <= 1 and forward_takes(model, None):
        return
    inputs = [f"batch[{index}]" for index in range(last)]
    arguments = ", ".join(inputs) if forward_takes(model, *inputs) else "batch[0]"
    if is_mapping(batch[0]) or isinstance(batch[0], list | tuple):
        arguments = "**batch[0]" if is_mapping(batch[0]) else "*batch[0]"
    error.add_note(
        "The default step calls the model with batch[0], and takes batch[1] for the targets, which may not be meant. "
        f"{_override(arguments, f'batch[{last}]', f'batch[{last}]', method)}"
    )


def _inputs_and_targets(model: nn.Module, batch: Any, method: str) -> tuple[Any, Any]:
    """Anything with the indices 0 and 1 is taken apart, unless they are two samples of a single tensor."""
    if not _is_one_thing(batch):
        try:
            return batch[0], batch[1]
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise _not_inputs_and_targets(model, batch, method) from error
    raise _not_inputs_and_targets(model, batch, method)


def _is_one_thing(batch: object) -> bool:
    if batch.__class__ is list or batch.__class__ is tuple:
        return False
    if is_mapping(batch):
        return not {0, 1} <= set(keys_of(batch))
    return is_array(batch) or isinstance(batch, str | bytes)


def _number_of_samples(inputs: Any, targets: Any) -> int:
    """The length of the targets, unless they are several tensors: then the length of the inputs."""
    for one in (targets, inputs):
        if isinstance(one, Tensor) and one.dim() > 0:
            return len(one)
    mapping = next((one for one in (targets, inputs) if is_mapping(one)), None)
    return len(targets) if mapping is None else count_samples(mapping, may_differ=True)


def _loss_of_model(model: nn.Module, batch: Mapping[Any, Any]) -> dict[str, Any]:
    outputs = model(**batch)
    if is_mapping(outputs):
        loss = outputs["loss"] if "loss" in keys_of(outputs) else None
    else:
        loss = getattr(outputs, "loss", None)
    if not isinstance(loss, Tensor):
        plain = type(unwrap_model(model, keep_torch_compile=False))
        raise ConfigurationError(
            "There is no loss: loss_func is None, and the model did not return one.",
            given=f"{describe_batch(batch)}; {plain.__name__} returned {describe_batch(outputs)}",
            do=f"Add the targets to the batch under the name that they have in {plain.__name__}.forward"
            f"{inspect.signature(plain.forward)}, or return the loss from it as {{'loss': loss}}.",
        )
    return {"loss": loss, "model_outputs": outputs, "batch_size": count_samples(batch, may_differ=True)}


def _not_inputs_and_targets(model: nn.Module, batch: object, method: str) -> ConfigurationError:
    inputs, targets = _expressions(batch)
    do = _override(inputs, targets, inputs, method)
    names = {str(key): None for key in keys_of(batch)} if is_mapping(batch) else {}
    if "labels" in names and forward_takes(model, **names):
        do = "Pass loss_func=None to the trainer: the model takes the labels, and returns the loss itself."
    elif lists_of_numbers(batch):
        do = 'Let the dataset return tensors instead of lists: one of `datasets` does after with_format("torch").'
    return ConfigurationError(
        "The default step cannot take this batch apart into inputs and targets, the items at index 0 and 1.",
        given=describe_batch(batch),
        do=do,
    )


def _override(arguments: str, targets: str, samples: str, method: str) -> str:
    """The lines that call the model and the loss function with parts of a batch."""
    lines = [
        "Override the step in a subclass of Trainer, for example:",
        f"def {method}(self, batch):",
        f"    outputs = self.model({arguments})",
        f'    return {{"loss": self.loss_func(outputs, {targets}), "model_outputs": outputs, '
        f'"batch_size": len({samples})}}',
    ]
    if method == "calculate_train_batch_loss":
        lines.append("calculate_eval_batch_loss = calculate_train_batch_loss")
    return f"\n{' ' * 14}".join(lines)


def _expressions(batch: object) -> tuple[str, str]:
    """What are probably the inputs and the targets of a batch; for an autoencoder they are the same."""
    parts: dict[str, str] = {}
    if is_mapping(batch):
        parts = {str(key): f"batch[{key!r}]" for key in keys_of(batch)}
    elif dataclasses.is_dataclass(batch):
        parts = {field.name: f"batch.{field.name}" for field in dataclasses.fields(batch)}
    elif isinstance(batch, list | tuple) and batch:
        return "batch[0]", "batch[0]"
    if not parts:
        return "batch", "batch"
    target = next((name for name in _TARGET_NAMES if name in parts), list(parts)[-1])
    return next((parts[name] for name in parts if name != target), parts[target]), parts[target]
