"""The step of a trainer that overrides none: inputs and targets of a batch, or a model that returns its own loss."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from pa_core.batch_mismatches import explain_failed_layer, explain_failed_loss, explain_silent_mismatch
from pa_core.batch_structure import lists_of_numbers
from pa_core.errors import BatchMismatchError, ConfigurationError
from pa_core.types import LossFunction
from pa_core.unwrapping import unwrap_model
from pa_data.batches import describe_batch, is_array, is_mapping, keys_of

__all__ = ["calculate_batch_loss"]

_ERRORS_OF_MISMATCHES = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)
"""What torch raises; derived classes, such as the one for a lack of memory, are other errors."""

_TARGET_NAMES = ("labels", "label", "targets", "target", "y")


def calculate_batch_loss(
    model: nn.Module, loss_func: LossFunction | None, batch: object, method: str, checked: set[str]
) -> dict[str, Any]:
    """Return the output of a step: the loss of the model's outputs against the targets of the batch.

    Args:
        model: The model, as a step calls it.
        loss_func: Called with the model's outputs and the targets. None for a model that returns its own loss when it
            is called with the items of a mapping, ``model(**batch)``.
        batch: Inputs and targets at the indices 0 and 1, or a mapping.
        method: The method that is not overridden, for messages.
        checked: The methods whose first batch of the run was looked at; this one is added.

    Raises:
        ConfigurationError: The batch has no inputs and targets at these indices, or there is no loss.
        BatchMismatchError: The model cannot take the inputs, or the loss function the outputs and the targets.
    """
    if loss_func is None and is_mapping(batch):
        return _loss_of_model(model, batch)
    if loss_func is None:
        raise _no_loss_function(batch)
    inputs, targets = _inputs_and_targets(model, batch, method)
    try:
        outputs = model(inputs)
    except _ERRORS_OF_MISMATCHES as error:
        plain = unwrap_model(model, keep_torch_compile=False)
        if isinstance(error, TypeError):
            _raise_known(_number_of_inputs(plain, batch, method), error)
        else:
            _raise_known(explain_failed_layer(error, plain, inputs), error)
        raise
    if method not in checked:
        checked.add(method)
        mismatch = explain_silent_mismatch(loss_func, outputs, targets)
        _raise_known(mismatch and (_later_targets(model, loss_func, outputs, batch, method) or mismatch))
    try:
        loss = loss_func(outputs, targets)
    except _ERRORS_OF_MISMATCHES as error:
        mismatch = explain_failed_loss(loss_func, outputs, targets)
        _raise_known(_later_targets(model, loss_func, outputs, batch, method) or mismatch, error)
        error.add_note(f"The model returned {describe_batch(outputs)}; the targets are {describe_batch(targets)}.")
        raise
    return {"loss": loss, "model_outputs": outputs, "batch_size": _number_of_samples(inputs, targets)}


def _raise_known(mismatch: BatchMismatchError | None, error: Exception | None = None) -> None:
    """Raise the explanation, if there is one, from what it explains."""
    if mismatch is not None and (error is None or type(error) in _ERRORS_OF_MISMATCHES):
        raise mismatch from error


def _number_of_inputs(model: nn.Module, batch: Any, method: str) -> BatchMismatchError | None:
    """A model that is to be called with several arguments, or with names."""
    if _takes_positions(model, 1):
        return None
    arguments, targets = "*batch[0]", "batch[1]"
    if is_mapping(batch[0]):
        arguments = "**batch[0]"
    elif not isinstance(batch[0], list | tuple):
        number = sum(one.default is one.empty for one in list(_parameters(model).values())[1:])
        arguments, targets = ", ".join(f"batch[{index}]" for index in range(number)), f"batch[{number}]"
    return BatchMismatchError(
        f"The default step calls the model with one argument, and {type(model).__name__} takes others.",
        given=f"{type(model).__name__}.forward{inspect.signature(type(model).forward)}, and {describe_batch(batch)} as "
        "a batch",
        do=_override(arguments, targets, targets, method),
    )


def _later_targets(
    model: nn.Module, loss_func: LossFunction, outputs: Any, batch: Any, method: str
) -> BatchMismatchError | None:
    """Of a batch of more than two items, the last one if the loss function can use it, as it cannot the second."""
    last = len(batch) - 1 if issubclass(type(batch), (list, tuple)) else 1
    if last < 2 or not isinstance(batch[last], Tensor):  # noqa: PLR2004  # the third item or a later one
        return None
    try:
        loss_func(outputs, batch[last])
    except _ERRORS_OF_MISMATCHES:
        return None
    if explain_silent_mismatch(loss_func, outputs, batch[last]) is not None:
        return None
    inputs = ", ".join(f"batch[{one}]" for one in range(last)) if _takes_positions(model, last) else "batch[0]"
    return BatchMismatchError(
        "The default step takes the second item of a batch for its targets, and the loss needs others.",
        given=f"{describe_batch(batch)}, and {describe_batch(outputs)} as the model's outputs",
        do=_override(inputs, f"batch[{last}]", f"batch[{last}]", method),
    )


def _takes_positions(model: nn.Module, number: int) -> bool:
    """Whether the model's ``forward`` takes as many arguments without their names."""
    try:
        inspect.Signature(list(_parameters(model).values())).bind(*[None] * (1 + number))
    except TypeError:
        return False
    return True


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
    tensor = next((one for one in (targets, inputs) if isinstance(one, Tensor) and one.dim() > 0), None)
    if tensor is not None:
        return len(tensor)
    mapping = next((one for one in (targets, inputs) if is_mapping(one)), None)
    return len(targets) if mapping is None else _first_dimension(mapping)


def _loss_of_model(model: nn.Module, batch: Mapping[Any, Any]) -> dict[str, Any]:
    try:
        outputs = model(**batch)
    except TypeError as error:
        unexpected = [str(key) for key in keys_of(batch) if not _takes(model, str(key))]
        if not unexpected:
            raise
        raise _unexpected_items(model, batch, unexpected) from error
    if is_mapping(outputs):
        loss = outputs["loss"] if "loss" in keys_of(outputs) else None
    else:
        loss = getattr(outputs, "loss", None)
    if not isinstance(loss, Tensor):
        raise _no_loss(model, batch, outputs)
    return {"loss": loss, "model_outputs": outputs, "batch_size": _first_dimension(batch)}


def _first_dimension(batch: Mapping[Any, Any]) -> int:
    """The number of samples in a mapping: of its token ids or labels if it has them, else of its first tensor."""
    keys = keys_of(batch)
    first = [key for key in ("input_ids", "labels") if key in keys]
    for key in (*first, *keys):
        for tensor in _tensors(batch[key]):
            if tensor.dim() > 0:
                return len(tensor)
    raise ConfigurationError(
        "The number of samples in the batch is not known.",
        given=describe_batch(batch),
        expected="a batch with a tensor whose first dimension is the samples",
        do="Return tensors from the dataset or from collate_fn.",
    )


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif is_mapping(value):
        for key in keys_of(value):
            yield from _tensors(value[key])


def _takes(model: nn.Module, name: str) -> bool:
    """Whether the model's ``forward`` takes an argument of this name."""
    parameters = _parameters(model)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return takes_any or name in parameters


def _parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """The ones of the class: mixed precision replaces the method of the instance."""
    return inspect.signature(type(unwrap_model(model, keep_torch_compile=False)).forward).parameters


def _name_of(model: nn.Module) -> str:
    return type(unwrap_model(model, keep_torch_compile=False)).__name__


def _no_loss_function(batch: object) -> ConfigurationError:
    return ConfigurationError(
        "There is no loss function to calculate the loss with.",
        given=f"loss_func=None, and {describe_batch(batch)} as a batch",
        do="Pass a loss function, override calculate_train_batch_loss and calculate_eval_batch_loss, or let "
        "the batch be a mapping and the model return its own loss.",
    )


def _not_inputs_and_targets(model: nn.Module, batch: object, method: str) -> ConfigurationError:
    keys = [str(key) for key in keys_of(batch)] if is_mapping(batch) else []
    inputs, targets = _expressions(batch)
    do = _override(inputs, targets, inputs, method)
    if "labels" in keys and all(_takes(model, key) for key in keys):
        do = f"Pass loss_func=None to the trainer: {_name_of(model)} takes the labels, and returns the loss itself."
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


def _unexpected_items(model: nn.Module, batch: Mapping[Any, Any], unexpected: list[str]) -> ConfigurationError:
    taken = ", ".join(map(repr, list(_parameters(model))[1:]))
    return ConfigurationError(
        f"{_name_of(model)} was called with the items of the batch, and takes not all of them.",
        given=describe_batch(batch),
        expected=f"a batch without {', '.join(map(repr, unexpected))}; the model takes {taken}",
        do="Rename or leave out in the dataset or in collate_fn what the model does not take.",
    )


def _no_loss(model: nn.Module, batch: Mapping[Any, Any], outputs: object) -> ConfigurationError:
    name = _name_of(model)
    of_targets = ("label", "target", "start_positions", "end_positions")
    lacking = [
        one for one in _parameters(model) if any(part in one for part in of_targets) and one not in keys_of(batch)
    ]
    return ConfigurationError(
        "There is no loss: loss_func is None, and the model did not return one.",
        given=f"{describe_batch(batch)}; {name} returned {describe_batch(outputs)}",
        do=f"Add the targets to the batch: {name} takes them as {' and '.join(map(repr, lacking))}."
        if lacking
        else f"Return the loss from {name}.forward, for example as {{'loss': loss}}.",
    )
