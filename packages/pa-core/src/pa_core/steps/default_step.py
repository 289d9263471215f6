"""The default step, checks of the outputs of steps, and notes on the errors of steps."""

from __future__ import annotations

import dataclasses
import inspect
import numbers
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from itertools import dropwhile
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pa_core._tensors import unwrap_model
from pa_core._torch import version_of
from pa_core.errors import BatchMismatchError, BatchOutputError, ConfigurationError, is_explained
from pa_core.steps.batch_structure import count_samples, lists_of_numbers
from pa_core.types import LossFunction
from pa_data.batches import describe_batch, is_array, is_mapping

__all__ = ["advise_on_targets"]

ITEMS: Final = "num_items_in_batch"
"""The key of the number of items that the loss is a mean over."""

_OF_CLASSES = {"crossentropy", "nll"}
_ELEMENTWISE = {
    *("bce", "bcewithlogits", "binarycrossentropy", "binarycrossentropywithlogits", "huber", "kldiv", "l1", "mse"),
    *("poissonnll", "smoothl1", "softmargin"),
}
_ABOUT_CLASSES = (
    "The loss function takes outputs of shape (samples, classes, ...), and as targets indices of classes, from 0 "
    "to classes - 1 (or ignore_index), without the second dimension: targets.squeeze(1).long(). Targets that are "
    "probabilities have the shape and the dtype of the outputs: targets.float()."
)
_ABOUT_VALUES = (
    "The loss function takes targets of the shape and the dtype of the outputs, for example targets.unsqueeze(1) or "
    "targets.float(). In a model, squeeze() removes the dimension of a single sample too: use squeeze(1). "
    "Outputs of nn.BCELoss() are from 0 to 1: nn.BCEWithLogitsLoss() applies the sigmoid to the outputs itself."
)
_INSTEAD_OF_ONE_CLASS = "Use nn.BCEWithLogitsLoss() with targets of dtype float32 and the shape of the outputs."
_ABOUT_LAYERS = (
    "Let the input have the dtype and the dimensions that the layer takes: inputs.float(), inputs.long() for indices; "
    "nn.Flatten() before a linear layer, inputs.unsqueeze(1) or inputs.permute(0, 3, 1, 2) for the channels. A batch "
    'norm needs two samples: train(..., train_dataloader_kwargs={"drop_last": True}) leaves out a shorter last batch.'
)
_ABOUT_DEVICES = (
    "Tensors that are neither parameters nor buffers do not move with the model: make them buffers with "
    "self.register_buffer(NAME, ..., persistent=False). MoveModulesToDeviceCallback, a default callback, "
    "moves the weights of a loss function."
)
_ABOUT_PIECES = (
    "A layer of a sharded model was called by itself. Call self.model, and before the run "
    'torch.distributed.fsdp.register_fsdp_forward_method(model, "NAME") for a method other than forward.'
)


def _require_pairs(loss_func: object, outputs: object, targets: object) -> None:
    """Raise an error if torch would compute a loss of the wrong pairs, judging by shapes only."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return
    kind = _kind(loss_func)
    if kind == "crossentropy" and outputs.shape[1:2] == (1,):
        expected = "an output for each class, at least two: the loss of a single class is always 0"
    elif kind in _ELEMENTWISE and _without_leading_ones(outputs) != _without_leading_ones(targets):
        expected = "outputs and targets of the same shape, which are compared element by element"
    elif kind == "huber" and outputs.dtype is not targets.dtype:  # other losses convert the targets
        expected = f"targets of dtype {outputs.dtype}, like the outputs, and not of {targets.dtype}"
    else:
        return
    raise BatchMismatchError(
        "The model's outputs and the targets do not fit the loss function.",
        given=f"outputs of shape {tuple(outputs.shape)}, targets of shape {tuple(targets.shape)}",
        expected=expected,
        do=_INSTEAD_OF_ONE_CLASS if kind == "crossentropy" else advise_on_targets(loss_func, outputs, targets),
    )


def _notes_on_loss(loss_func: object, outputs: object, targets: object) -> Iterator[str]:
    """Yield notes on the arguments of a loss function that raised an error, and on the arguments that it needs."""
    yield f"The model returned {describe_batch(outputs)}; the targets are {describe_batch(targets)}."
    kind = _kind(loss_func)
    if kind and not isinstance(outputs, Tensor):
        yield (
            "The loss function takes tensors: pass a function that selects them from the outputs, for example "
            "loss_func=lambda outputs, targets: your_loss(outputs[0], targets)."
        )
    elif kind in _OF_CLASSES | _ELEMENTWISE:
        yield _ABOUT_CLASSES if kind in _OF_CLASSES else _ABOUT_VALUES


def advise_on_targets(loss_func: object, outputs: Tensor, targets: Tensor) -> str:
    """Return a sentence that says how to change targets or outputs so that a loss function can compare them.

    Use it if a check of yours has found that shapes or dtypes do not fit; ``BatchMismatchError`` and the checks of
    ``pa_preflight`` contain the same sentence. It considers only shapes, dtypes and the class of the loss function, and
    computes nothing.

    Args:
        loss_func: The loss function, an instance of a class in ``torch.nn`` or a function in ``torch.nn.functional``.
            For any other function, an element-by-element comparison is assumed.
        outputs: The outputs of the model, of any shape.
        targets: The targets, which do not fit the outputs.

    Returns:
        A sentence with the expression to use, for example ``targets.unsqueeze(1)``.

    Example:
        >>> import torch
        >>> from pa_core.steps.default_step import advise_on_targets
        >>> advise_on_targets(torch.nn.MSELoss(), torch.zeros(8, 1), torch.zeros(8))
        'Add the last dimension to the targets: targets.unsqueeze(1).'
    """
    of_outputs, of_targets = tuple(outputs.shape), tuple(targets.shape)
    if _kind(loss_func) in _OF_CLASSES and targets.is_floating_point():
        return "Convert the targets, which are the indices of classes: targets.long()."
    if _kind(loss_func) in _OF_CLASSES:
        return (
            "Indices of classes have no dimension for the classes: targets.squeeze(1), or targets.argmax(1) if they "
            "are one-hot."
        )
    if of_outputs == (*of_targets, 1):
        return f"Add the last dimension to the targets: targets.unsqueeze({len(of_targets)})."
    if of_targets == (*of_outputs, 1):
        return f"Take the last dimension from the targets: targets.squeeze({len(of_outputs)})."
    if _without_leading_ones(outputs) != _without_leading_ones(targets):
        return f"Let the model return outputs of shape {of_targets}: its last layer decides the number for each sample."
    return f"Convert the targets: targets.to({outputs.dtype})."


def _without_leading_ones(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape without leading 1s: broadcasting may only add dimensions, as for a squeezed single sample."""
    return tuple(dropwhile(lambda size: size == 1, tensor.shape))


def _kind(loss_func: object) -> str:
    """Return the name of torch's losses, "mse" of MSELoss and mse_loss; a derived class has none."""
    is_class = type(loss_func).__module__ == nn.modules.loss.__name__
    name = type(loss_func).__name__ if is_class else str(getattr(loss_func, "__name__", ""))
    if not is_class and getattr(functional, name or "_", None) is not loss_func:
        return ""
    return name.lower().replace("_", "").removesuffix("loss")


_BUILT_IN = {"builtins", "torch"}


def name_step(error: Exception, step: str, batch: object, model: nn.Module) -> None:
    """Add the step, the structure of its batch and the layer to an error that is about to leave the step.

    Errors that explain themselves, and exceptions of custom classes, are not changed.

    Args:
        error: Any exception that the step raised.
        step: The step, for example ``"training step 3 of epoch 1"``.
        batch: The batch of the step.
        model: The model of the trainer, without wrappers.
    """
    if isinstance(error, BatchMismatchError):
        error.name_step(step)
    elif not is_explained(error) and type(error).__module__ in _BUILT_IN:
        error.add_note(f"Raised in {step}, whose batch is {describe_batch(batch)}.")
        if lists := ", ".join(map(repr, lists_of_numbers(batch))):
            error.add_note(
                f"The lists under {lists} were collated by position. Let the dataset return tensors: `datasets` do "
                'after dataset.with_format("torch").'
            )
        for note in _notes_on_layer(error, model):
            error.add_note(note)


def name_backward_pass(error: Exception, batch: object, step: str, callbacks: Iterable[object] = ()) -> None:
    """Add to an error of a backward pass which tensors of the batch were changed since the forward pass.

    Args:
        error: The error of the backward pass.
        batch: The batch.
        step: The step, for example ``"training step 3"``.
        callbacks: The callbacks that are called between forward and backward pass, and may have changed the batch.
    """
    if not is_explained(error) and "modified by an inplace operation" in str(error):
        changed = [place for place, tensor in _tensors_of_batch(batch) if _is_meant(tensor, str(error))]
        listeners = [
            type(callback).__name__
            for callback in callbacks
            if type(callback).__module__.partition(".")[0] != "pa_core"
        ]
        if changed:
            by = f" The callbacks are {', '.join(listeners)}." if listeners else ""
            error.add_note(
                f"In {step}, {' and '.join(changed)} was changed in place between the forward pass, which keeps it, "
                f"and the backward pass.{by} Change a copy: {changed[0]}.clone()."
            )


def _tensors_of_batch(batch: Any) -> list[tuple[str, Tensor]]:
    """Return the tensors of a batch with the expressions that access them in a script."""
    items: list[tuple[str, Any]] = [("batch", batch)]
    if is_mapping(batch):
        items = [(f"batch[{key!r}]", batch[key]) for key in [*batch.keys()]]
    elif issubclass(type(batch), (list, tuple)):
        items = [(f"batch[{index}]", item) for index, item in enumerate(batch)]
    return [(place, item) for place, item in items if isinstance(item, Tensor)]


def _is_meant(tensor: Tensor, message: str) -> bool:
    """Whether torch's message is about a tensor of this shape and version."""
    shape = str([*tensor.shape])
    return f"{shape}]" in message and not tensor.is_inference() and f"is at version {version_of(tensor)};" in message


def why_not_finite(batch: object, loss_func: object) -> tuple[str, int | None, str]:
    """Return the reason in a batch for a loss that is not finite; an empty text if there is none.

    Args:
        batch: The batch.
        loss_func: The loss function of the trainer.

    Returns:
        The reason, the index of the first sample with it, and the advice.

    Example:
        >>> why_not_finite([torch.tensor([0.0, float("nan")]), torch.zeros(2)], None)[:2]
        ('batch[0] holds nan', 1)
    """
    tensors = _tensors_of_batch(batch)
    if tensors and all(tensor.numel() == 0 for _, tensor in tensors):
        return "a batch of 0 samples", None, "Let the loader leave out batches without a sample."
    for place, tensor in tensors:
        odd = ~tensor.isfinite() if tensor.is_floating_point() else None
        if odd is not None and bool(odd.any()):
            first = tuple(map(int, odd.nonzero()[0]))
            do = "Correct this sample, or leave it out of the dataset; nan_to_num() replaces such values."
            return f"{place} holds {tensor[first].item()}", first[0] if first else None, do
    ignored, targets = getattr(loss_func, "ignore_index", None), tensors[-1][1] if tensors else None
    if ignored is not None and targets is not None and bool((targets == ignored).all()):
        do = "Leave such batches out, or return the number of valid targets as num_items_in_batch; 0 does not count."
        return f"all targets are {ignored}, which the loss function ignores", None, do
    return "", None, ""


def _about_dtype(layer: nn.Module, value: Tensor) -> str:
    """Return advice on an input with a different dtype from the layer's; empty if they are equal."""
    weight = next(layer.parameters(recurse=False), None)
    if weight is None or weight.dtype is value.dtype or isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return ""
    advice = f"The weights of the layer have dtype {weight.dtype}: convert the input, inputs.to({weight.dtype})"
    return f"{advice}, or the model, model.to({value.dtype})." if value.is_floating_point() else f"{advice}."


def _notes_on_layer(error: Exception, model: nn.Module) -> Iterator[str]:
    """Yield notes on the innermost layer that was called, and on its argument ``input``."""
    names = {id(module): name for name, module in cast("Any", model).named_modules()}  # not annotated by torch
    calls = [
        (frame.f_locals["self"], frame.f_locals.get("input"))
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if id(frame.f_locals.get("self")) in names
    ]
    layer, value = calls[-1] if calls else (model, None)
    if isinstance(value, Tensor):
        where = f"the layer {names[id(layer)]!r}" if names[id(layer)] else "the model"
        described = f"{type(layer).__name__}({layer.extra_repr()})"
        about = _about_dtype(layer, value) or _ABOUT_LAYERS
        yield f"In {where}, which is {described}, with {describe_batch(value)} as input. {about}"
    if "same device" in str(error) or "expected device" in str(error):
        yield _ABOUT_DEVICES
    if "got mixed torch.Tensor and DTensor" in str(error):
        yield _ABOUT_PIECES


_KEYS = ("loss", "model_outputs", "batch_size")


def check_step_output(output: object, method: str, *, trained: nn.Module | None) -> Tensor:
    """Return the loss of a step.

    Args:
        output: The return value of the step.
        method: The method that returned it, for the message.
        trained: The model, if a backward pass follows.

    Raises:
        BatchOutputError: The output is not a dictionary, a key is missing, or the loss or the batch size cannot be
            used.
    """
    if not isinstance(output, dict):
        raise _error(method, "nothing: None" if output is None else f"an object of type {type(output).__name__}")
    fields = cast("dict[str, Any]", output)
    for key in _KEYS:
        if key not in fields:
            raise _error(method, f"a dictionary with the keys {', '.join(map(str, fields))}, without {key}")
    loss = fields["loss"]
    if not isinstance(loss, Tensor):
        do = "Return the loss as the tensor that the loss function returned, without item() or float()."
        raise _error(method, f"a loss of type {type(loss).__name__}", do)
    if loss.numel() != 1:
        do = "Return the mean of the losses: loss.mean(), or a loss function without reduction='none'."
        raise _error(method, f"a loss of shape {tuple(loss.shape)}", do)
    odd = None if loss.dtype is torch.float32 and loss.is_cpu and loss.layout is torch.strided else unusable_kind(loss)
    if odd is not None and (trained is not None or not _counts(loss)):
        do = "Return a real number that was computed from the outputs: of a complex loss, loss.abs() for example."
        raise _error(method, odd, do)
    if trained is not None and not loss.requires_grad:
        if any(parameter.requires_grad for parameter in trained.parameters()):
            do = "Calculate the loss from the model's outputs without detach(), item() or no_grad() on the way."
            raise _error(method, "a loss without a gradient: it was detached", do)
        raise BatchOutputError(
            "There is nothing to train.",
            given=f"{method} returned a loss without a gradient, since every parameter of {type(trained).__name__} is "
            "frozen",
            do="Unfreeze the parameters to train before train(), for example with model.requires_grad_().",
        )
    batch_size = fields["batch_size"]
    # The class is checked first, because the abstract class takes several times as long.
    if not (batch_size.__class__ is int or _is_integer(batch_size)) or batch_size < 0:
        do = "Return the number of samples as the batch_size, for example len(targets)."
        raise _error(method, f"batch_size={batch_size!r}", do)
    return loss


def count_items(output: Mapping[str, Any], method: str) -> int | None:
    """Return the number of items that the loss of a step is a mean over; None for samples.

    Args:
        output: The outputs of the step. A count that is a tensor is read, which waits for an accelerator.
        method: The method that returned it, for the message.

    Raises:
        BatchOutputError: The number cannot be used.
    """
    items = output.get(ITEMS)
    return None if items is None else require_count(items, f"num_items_in_batch of {method}")


def require_count(value: object, name: str) -> int:
    """Check a number of items that was passed or returned, and return it.

    Args:
        value: The number. A tensor is read, which waits for an accelerator.
        name: The name of the number, for the message.

    Raises:
        BatchOutputError: The number cannot be used.
    """
    number = value
    if isinstance(number, Tensor) and number.numel() == 1 and not number.is_complex():
        number = number.item()
    is_whole = number.is_integer() if isinstance(number, float) else _is_integer(number)
    if not is_whole or cast("float", number) < 0:
        raise BatchOutputError(f"{name} must be a whole number >= 0, got {value!r}.")
    return int(cast("float", number))


def unusable_kind(loss: Tensor) -> str | None:
    """Describe a loss that torch cannot differentiate; None if it is a real number.

    Args:
        loss: A tensor with one element.

    Example:
        >>> import torch
        >>> unusable_kind(torch.tensor(True)), unusable_kind(torch.tensor(0.5))
        ('a loss of dtype torch.bool', None)
    """
    if not loss.is_floating_point():
        return f"a loss of dtype {loss.dtype}"
    if loss.is_meta:
        return "a loss on the device 'meta', which holds no numbers"
    return None if loss.layout is torch.strided else f"a loss of layout {loss.layout}"


def own_backward_pass() -> ConfigurationError:
    """Return the error for a step whose own backward pass left gradients."""
    return ConfigurationError(
        "A step has run its own backward pass, to which the trainer adds the same gradients again.",
        given="gradients after calculate_train_batch_loss, and before the trainer's backward pass",
        do="Remove loss.backward() from the step and from callbacks: return the loss, and the trainer goes "
        "backward through it. For gradients as values, call torch.autograd.grad; for several losses with "
        "separate updates, use Run.",
    )


def no_sample_counted(metric_name: str) -> BatchOutputError:
    """Return the error for an epoch whose steps all counted 0 samples or items.

    Args:
        metric_name: The name of the metric.
    """
    return BatchOutputError(
        f"There is no {metric_name}: each step of the epoch returned a batch_size or num_items_in_batch of 0. "
        "Return the number of samples, and check whether all items are masked."
    )


def _is_integer(value: object) -> bool:
    return value.__class__ is not bool and isinstance(value, numbers.Integral)


def _counts(loss: Tensor) -> bool:
    """Whether a loss is a whole number, which an evaluation that counts errors may return."""
    return not (loss.is_floating_point() or loss.is_complex() or loss.dtype is torch.bool)


def _error(method: str, given: str, do: str | None = None) -> BatchOutputError:
    return BatchOutputError(
        f"The trainer cannot use the outputs of {method}.",
        given=given,
        do=do or f"Return {{'loss': ..., 'model_outputs': ..., 'batch_size': ...}} from {method}.",
    )


_TARGETS = re.compile(r"label|target|\by\b")


def calculate_batch_loss(
    model: nn.Module, loss_func: LossFunction | None, batch: object, method: str, checked: set[str]
) -> dict[str, Any]:
    """Return the outputs of a step, including the loss between the model's outputs and the targets of the batch.

    Errors of the model and of the loss function get notes on their arguments.

    Args:
        model: The model, as a step calls it.
        loss_func: A function that is called with the model's outputs and the targets; None for a model that returns its
            own loss when it is called with the items of a mapping, ``model(**batch)``.
        batch: Inputs and targets at the indices 0 and 1, or a mapping.
        method: The method of the step, for messages.
        checked: The methods whose first batch of the run was checked; this method is added.

    Raises:
        ConfigurationError: The batch has no inputs and targets at these indices, or there is no loss.
        BatchMismatchError: Outputs and targets have shapes with which torch would compute a wrong loss.
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
            _require_pairs(loss_func, outputs, targets)
    except Exception as error:
        _add_example_step(error, model, batch, method)
        raise
    try:
        loss = loss_func(outputs, targets)
    except Exception as error:
        for note in _notes_on_loss(loss_func, outputs, targets):
            error.add_note(note)
        _add_example_step(error, model, batch, method)
        raise
    return {"loss": loss, "model_outputs": outputs, "batch_size": _number_of_samples(inputs, targets)}


def predict_batch(model: nn.Module, batch: Any) -> Any:
    """Return the outputs of the model for the inputs of a batch.

    Args:
        model: The model.
        batch: A mapping, with whose items the model is called; a list or a tuple, whose first item is the inputs; or
            the inputs.

    Returns:
        The outputs; if they are a mapping, without its ``"loss"``, which is not a prediction.

    Raises:
        BatchMismatchError: The model takes different arguments.
    """
    inputs: Any = batch[0] if issubclass(type(batch), list | tuple) else batch
    args: tuple[Any, ...] = () if is_mapping(batch) else (inputs,)
    kwargs: Mapping[Any, Any] = batch if is_mapping(batch) else {}
    try:
        outputs = model(*args, **kwargs)
    except TypeError as error:
        if forward_takes(model, *args, **kwargs):
            raise
        name = type(unwrap_model(model, keep_torch_compile=False)).__name__
        raise BatchMismatchError(
            f"Without predict_batch, a trainer calls the model with the inputs of a batch; {name} takes others.",
            given=f"{describe_batch(batch)} as a batch",
            do="Override predict_batch(self, batch) in a subclass of Trainer, and call self.model in it.",
        ) from error
    if is_mapping(outputs) and "loss" in [*outputs.keys()]:
        return {key: outputs[key] for key in [*outputs.keys()] if key != "loss"}
    return outputs


def forward_takes(model: nn.Module, *args: object, **kwargs: object) -> bool:
    """Whether the model's ``forward`` takes such arguments."""
    plain = unwrap_model(model, keep_torch_compile=False)
    try:
        # the method of the class: mixed precision replaces the method of the instance
        inspect.signature(type(plain).forward).bind(plain, *args, **kwargs)
    except TypeError:
        return False
    return True


def _add_example_step(error: Exception, model: nn.Module, batch: Any, method: str) -> None:
    """Add an example step to an error for a batch of more than two items, or a model of several inputs."""
    last = len(batch) - 1 if issubclass(type(batch), (list, tuple)) else 1
    if last <= 1 and forward_takes(model, None):
        return
    inputs = [f"batch[{index}]" for index in range(last)]
    arguments = ", ".join(inputs) if forward_takes(model, *inputs) else "batch[0]"
    if is_mapping(batch[0]) or isinstance(batch[0], list | tuple):
        arguments = "**batch[0]" if is_mapping(batch[0]) else "*batch[0]"
    error.add_note(
        "The default step calls the model with batch[0], and uses batch[1] as the targets, which may be wrong. "
        f"{_override(arguments, f'batch[{last}]', method)}"
    )


def _inputs_and_targets(model: nn.Module, batch: Any, method: str) -> tuple[Any, Any]:
    """Return the items at the indices 0 and 1, unless they are two samples of a single tensor."""
    if is_mapping(batch):
        is_one_thing = not {0, 1} <= set(batch.keys())
    else:
        is_one_thing = is_array(batch) or isinstance(batch, str | bytes)
    try:
        if not is_one_thing:
            return batch[0], batch[1]
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise _not_inputs_and_targets(model, batch, method) from error
    raise _not_inputs_and_targets(model, batch, method)


def _number_of_samples(inputs: Any, targets: Any) -> int:
    """Return the length of the targets or, if they are several tensors, of the inputs."""
    for item in (targets, inputs):
        if isinstance(item, Tensor) and item.dim() > 0:
            return item.size(0)
    mapping = next((item for item in (targets, inputs) if is_mapping(item)), None)
    return len(targets) if mapping is None else count_samples(mapping, may_differ=True)


def _loss_of_model(model: nn.Module, batch: Mapping[Any, Any]) -> dict[str, Any]:
    outputs = model(**batch)
    if is_mapping(outputs):
        loss = outputs["loss"] if "loss" in [*outputs.keys()] else None
    else:
        loss = getattr(outputs, "loss", None)
    if not isinstance(loss, Tensor):
        plain = type(unwrap_model(model, keep_torch_compile=False))
        raise ConfigurationError(
            "There is no loss: loss_func is None, and the model did not return a loss.",
            given=f"{describe_batch(batch)}; {plain.__name__} returned {describe_batch(outputs)}",
            do=f"Add the targets to the batch under the name that they have in {plain.__name__}.forward"
            f"{inspect.signature(plain.forward)}, or return the loss from it as {{'loss': loss}}.",
        )
    return {"loss": loss, "model_outputs": outputs, "batch_size": count_samples(batch, may_differ=True)}


def _not_inputs_and_targets(model: nn.Module, batch: object, method: str) -> ConfigurationError:
    do = _override(*_expressions(batch), method)
    names = {str(key): None for key in [*batch.keys()]} if is_mapping(batch) else {}
    if "labels" in names and forward_takes(model, **names):
        do = "Pass loss_func=None to the trainer: the model takes the labels, and returns the loss itself."
    elif lists_of_numbers(batch):
        do = 'Let the dataset return tensors instead of lists: a dataset of `datasets` does after with_format("torch").'
    return ConfigurationError(
        "The default step cannot split this batch into inputs and targets, the items at index 0 and 1.",
        given=describe_batch(batch),
        do=do,
    )


def _override(arguments: str, targets: str, method: str) -> str:
    """Return the code of a step that calls the model and the loss function with parts of a batch."""
    lines = [
        "Override the step in a subclass of Trainer, for example:",
        f"def {method}(self, batch):",
        f"    outputs = self.model({arguments})",
        f'    return {{"loss": self.loss_func(outputs, {targets}), "model_outputs": outputs, '
        f'"batch_size": len({targets})}}',
    ]
    if method == "calculate_train_batch_loss":
        lines.append("calculate_eval_batch_loss = calculate_train_batch_loss")
    return f"\n{' ' * 14}".join(lines)


def _expressions(batch: object) -> tuple[str, str]:
    """Return expressions that are probably the inputs and targets of a batch; for an autoencoder, they are the same."""
    parts = ["batch[0]" if issubclass(type(batch), (list, tuple)) and batch else "batch"]
    if is_mapping(batch):
        parts = [f"batch[{key!r}]" for key in [*batch.keys()]] or parts
    elif dataclasses.is_dataclass(batch):
        parts = [f"batch.{field.name}" for field in dataclasses.fields(batch)] or parts
    targets = next(filter(_TARGETS.search, parts), parts[-1])
    return next((part for part in parts if part != targets), targets), targets
