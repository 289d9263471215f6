"""Experiments with the first batch: how its loss depends on the samples, and how its step changes the model."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from pa_data.rng import capture_rng_state, seed_rng
from pa_preflight._arguments import is_overridden
from pa_preflight._calls import FunctionCall
from pa_preflight._findings import FILL_GAPS, Finding, noticed
from pa_preflight._first_batch import FirstBatch, Forward
from pa_preflight._losses import broadcast
from pa_preflight._models import BATCH_NORMS, in_evaluation_mode, named_layers, they_are
from pa_preflight._tensors import TARGET_KEYS, entries, flipped, is_repeated, is_same, tensors_in, with_tensors
from pa_preflight._watching import ModelCall

_FEW = 3

_LARGE, _SMALL_CLIP, _NEARLY = 30.0, 1000.0, 0.05

_CLOSE, _ORDERED = 1e-3, 1e-3

_FEWEST_PARTS, _FEWEST_SAMPLES, _USED, _VIEWS = 3, 3, 2, 2


def check_batch(first: FirstBatch) -> Iterator[Finding]:
    """Yield findings about the first batch.

    Args:
        first: The batch.
    """
    if any(tensor.is_floating_point() and not bool(tensor.isfinite().all()) for tensor in first.inputs):
        yield noticed(
            "inputs-not-finite",
            "The first batch has inputs that are NaN or infinite.",
            FILL_GAPS,
        )
    elif not bool(first.loss.isfinite()):
        yield noticed(
            "loss-not-finite",
            f"The loss of the first batch is {float(first.loss)}, though inputs and targets are finite.",
            "Look for log(0), division by 0 or overflow. TerminateOnNaNCallback reports the cause: train an update "
            "with it.",
        )
    else:
        yield from _check_targets(first)
        yield from _check_size(first)
        yield from _check_gradients(first)
    yield from _check_scale(first)
    yield from _check_outputs(first)


def _check_targets(first: FirstBatch) -> Iterator[Finding]:
    changed = _with_other_targets(first)
    reconstructs = any(is_same(tensor, call.targets) for call in first.loss_calls for tensor in first.inputs)
    if changed is None or reconstructs or (first.call is not None and _is_constant(first.call)):
        return
    if first.loss_of(changed) != first.loss_of(first.batch):
        return
    targets = tensors_in(first.batch)[-1]
    output = None if first.call is None else first.call.output
    if output is not None and 1 < output.numel() == targets.numel() and output.shape != targets.shape:
        yield broadcast(output, targets)
        return
    yield noticed(
        "targets-do-not-matter",
        "The loss does not depend on the targets: it stays exactly the same when the targets of the samples are "
        "swapped.",
        "Check which tensors calculate_train_batch_loss compares.",
        "note"
        if first.job.has_own_step and not any(_looks_wrong(call, first) for call in first.loss_calls)
        else "mistake",
    )


def _looks_wrong(call: FunctionCall, first: FirstBatch) -> bool:
    """Whether the loss compares the outputs with equal targets, or with the predictions themselves."""
    targets = call.targets
    is_like = any(tensor.shape == targets.shape for tensor in tensors_in(first.batch)[1:])
    if not is_like or not is_of_model(call, first.model_calls):
        return False
    if bool((targets == targets.flatten()[:1]).all()):
        return True
    return call.outputs.dim() > 1 and is_same(call.outputs.argmax(1), targets)


def is_of_model(call: FunctionCall, model_calls: list[ModelCall]) -> bool:
    """Whether a loss was given the return value of the model, perhaps in a different shape.

    Args:
        call: The call to the loss function.
        model_calls: The calls to the model.
    """
    return any(
        forward.output is not None and forward.output.data_ptr() == call.outputs.data_ptr() for forward in model_calls
    )


def _with_other_targets(first: FirstBatch) -> Any:
    """Return the batch with its targets in another order; None if the targets are unknown, or equal."""
    batch = first.batch
    if isinstance(batch, Mapping):
        named = entries(cast("object", batch))
        rolled = {key: _rolled(named[key]) for key in TARGET_KEYS if isinstance(named.get(key), Tensor)}
        return {**named, **rolled} if rolled and None not in rolled.values() else None
    if type(batch) not in (list, tuple):
        return None
    parts = cast("list[Any]", batch)
    others = [_rolled(part) if isinstance(part, Tensor) else None for part in parts[1:]]
    are_inputs = [
        any(is_same(part, tensor) for tensor in first.inputs) for part in parts[1:] if isinstance(part, Tensor)
    ]
    if len(are_inputs) < len(others) or any(
        gradient is None for gradient, skip in zip(others, are_inputs, strict=True) if not skip
    ):
        return None
    changed = [
        part if skip else replacement for part, replacement, skip in zip(parts[1:], others, are_inputs, strict=True)
    ]
    return type(parts)((parts[0], *changed)) if not all(are_inputs) else None


def _rolled(tensor: Tensor) -> Tensor | None:
    if not tensor.dim() or len(tensor) < _FEW:
        return None
    rolled = tensor.roll(1, 0)
    return None if is_same(rolled, tensor) else rolled


def _check_size(first: FirstBatch) -> Iterator[Finding]:
    """Compare the loss of half of the batch with the loss of the same samples twice."""

    def loss_of_half(times: int) -> float:
        def repeated(tensor: Tensor) -> Tensor:
            return torch.cat([tensor[: max(2, len(tensor) // 2)]] * times) if tensor.dim() else tensor

        return first.loss_of(with_tensors(first.batch, repeated))

    try:
        once, double = loss_of_half(1), loss_of_half(2)
        ratio = double / once if once else 1.0
        if abs(ratio - 2) < _NEARLY:  # by chance, as a loss of pairs may
            ratio = loss_of_half(3) / once - 1
    except Exception:  # a step that requires a certain batch size
        return
    if abs(ratio - 2) < _NEARLY:
        yield noticed(
            "loss-follows-batch-size",
            f"The loss is a sum over the samples: it is {once:.4g} for some samples, and {double:.4g} for the same "
            "samples twice. So gradients grow with the batch size, and a smaller last batch of an epoch counts less.",
            'Use reduction="mean", or divide by the number of samples.',
            "note" if first.job.smallest_batch == first.job.batch_size else "mistake",
        )


def _check_gradients(first: FirstBatch) -> Iterator[Finding]:
    clip_norm: float | None = first.job.asked["gradient_clip_norm"]
    clip_value: float | None = first.job.asked["gradient_clip_value"]
    if clip_norm is None and clip_value is None:
        return
    parameters = [parameter for parameter in first.model.parameters() if parameter.requires_grad]
    loss = first.repeated()
    gradients = cast("tuple[Tensor | None, ...]", torch.autograd.grad(loss, parameters, allow_unused=True))
    norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients if gradient is not None))
    largest = max(float(gradient.abs().max()) for gradient in gradients if gradient is not None)
    for name, size, clip in (("norm", norm, clip_norm), ("largest element", largest, clip_value)):
        if clip is not None and size > _SMALL_CLIP * clip:
            yield noticed(
                "clipping-too-low",
                f"The {name} of the gradients of the first batch is {size:.3g}, and the run clips it to {clip:.3g}.",
                "Choose a limit that most updates do not reach, such as a norm of 1.",
            )


def _check_scale(first: FirstBatch) -> Iterator[Finding]:
    for tensor in (tensor for tensor in first.layer_inputs if tensor.is_floating_point()):
        values = tensor.double()
        mean, largest = float(values.mean()), float(values.abs().max())
        deviation = float(values.std()) if values.numel() > 1 else 0.0
        if max(abs(mean), deviation) > _LARGE:
            yield noticed(
                "inputs-not-normalised",
                f"Inputs of shape {tuple(tensor.shape)} have a mean of {mean:.3g} and a standard deviation of "
                f"{deviation:.3g}; the largest is {largest:.3g}.",
                "Subtract the mean of the training data and divide by its standard deviation, for each feature or "
                "channel.",
            )
            return


def _check_outputs(first: FirstBatch) -> Iterator[Finding]:
    call = first.call
    if call is None or call.output is None or len(call.output) < _FEW:
        return
    if not _is_constant(call):
        yield from _check_mixing(first.model, call)


def check_outputs(model_calls: list[ModelCall], num_losses: int) -> Iterator[Finding]:
    """Yield a finding if the outputs of a model that each step calls once do not depend on its inputs.

    Args:
        model_calls: The calls to the model.
        num_losses: The number of steps.
    """
    if len(model_calls) == num_losses > 0 and _is_constant(model_calls[-1]):
        yield noticed(
            "inputs-do-not-matter",
            "The model returns the same output for all samples of a batch, though their inputs differ.",
            "Look for a layer whose outputs are all zero, such as a ReLU of negative numbers, for a multiplication by "
            "zero, and for a mask that hides everything, such as a padding mask that is True at the words.",
        )


def _is_constant(call: ModelCall) -> bool:
    """Whether all samples have the same output, though their inputs differ."""
    if call.output is None or not call.output.dim() or len(call.output) < _FEW:
        return False
    if call.output.is_complex() or not call.output.numel():
        return False
    return is_repeated(call.output) and any(not is_same(tensor, tensor[:1].expand_as(tensor)) for tensor in call.inputs)


def _check_mixing(model: nn.Module, call: ModelCall) -> Iterator[Finding]:
    """Compare the outputs of the last sample in this batch, and in a batch with copies of the first sample.

    The first sample itself would not do: a layer that processes the samples in turn starts with it.
    """
    size = len(call.inputs[0])
    if call.output is not None and call.output.shape == (size, size):
        return  # similarities of all pairs

    def beside_copies(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[:1].expand(size - 1, *tensor.shape[1:]), tensor[-1:]]) if tensor.dim() else tensor

    forward = Forward(model, call)
    outputs = [forward.outputs(change)[:1] for change in (Tensor.clone, beside_copies)]
    if not all(outputs):
        return
    in_batch, among_copies = (output[-1].double() for (output,) in outputs)
    scale = float(in_batch.abs().max()) + 1e-12
    difference = float((in_batch - among_copies).abs().max()) / scale
    if difference > 1e-3:  # noqa: PLR2004  # different rounding in kernels is a thousand times smaller
        yield noticed(
            "samples-mix",
            f"The samples of a batch influence each other: in evaluation mode, the output of a sample changes by "
            f"{difference:.2g} of its size when the other samples are replaced.",
            "Look for a softmax, a mean or a norm over dimension 0, for a view that joins samples, and for a missing "
            "batch_first=True.",
            "note"
            if any(isinstance(module, BATCH_NORMS) and module.running_mean is None for module in model.modules())
            else "mistake",
        )


def check_step(first: FirstBatch) -> Iterator[Finding]:
    """Yield findings about the step of the first batch, and about making it again.

    Args:
        first: The batch.
    """
    if first.job.has_own_step:
        yield from _check_divisions(first)
        yield from _check_draws(first)
        yield from _check_order(first)
    yield from _check_modes(first)


def _check_divisions(first: FirstBatch) -> Iterator[Finding]:
    """Look for a step that divides a mean again, by the accumulation steps or the number of samples."""
    accumulated: int = first.job.asked["gradient_accumulation_steps"] or 1
    divisors = {"accumulation steps": accumulated, "samples of the batch": first.job.batch_size}
    loss, loss_calls = first.loss, first.loss_calls
    values = [float(call.value) for call in loss_calls if call.value is not None and not call.value.dim()]
    if len(values) != 1 or not float(loss) or not values[0]:
        return
    ratio = values[0] / float(loss)
    for name, divisor in divisors.items():
        if divisor > 1 and abs(ratio / divisor - 1) < _CLOSE:
            yield noticed(
                "loss-divided-twice",
                f"The step returns {float(loss):.4g}: the {loss_calls[0].name} of {values[0]:.4g}, divided by "
                f"{divisor}, the number of {name}. Gradients and reported losses are too small by this factor.",
                "Return the mean over the batch; the trainer divides by the accumulation steps itself.",
            )
            return


def _check_modes(first: FirstBatch) -> Iterator[Finding]:
    """Look for parts of the model that are in evaluation mode where they compute the loss."""
    outputs: list[tuple[nn.Module, Any]] = []

    def note(module: nn.Module, _args: object, output: Any) -> None:
        if first.modes.get(id(module)) and not module.training:
            outputs.append((module, [tensor.grad_fn for tensor in tensors_in(output)]))

    hooks: list[RemovableHandle] = [module.register_forward_hook(note) for module in first.model.modules()]
    try:
        loss = first.repeated()
    finally:
        for hook in hooks:
            hook.remove()
    graph = _graph_of(loss) if outputs else set[Any]()
    names = {id(module): name or "the model" for name, module in named_layers(first.model)}
    of_loss = [module for module, nodes in outputs if not graph.isdisjoint(nodes)]  # a metric has no part in the graph
    changed = {names[id(module)]: None for module in of_loss}
    if changed:
        yield noticed(
            "mode-changes-in-step",
            f"{they_are([*changed])} in training mode before the step, but in evaluation mode within it: dropout is "
            "off, and batch norm uses its running statistics.",
            "Look for eval() and train(False) in forward() and in the step. Put frozen parts into evaluation mode "
            "once, before the run.",
            "note" if all(isinstance(module, BATCH_NORMS) for module in of_loss) else "warning",  # perhaps on purpose
        )


def _graph_of(loss: Tensor) -> set[Any]:
    """Return the operations that computed a loss."""
    waiting: list[Any] = [loss.grad_fn]
    graph = set[Any]()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in graph:
            graph.add(node)
            waiting += (other for other, _ in node.next_functions)
    return graph


def _check_draws(first: FirstBatch) -> Iterator[Finding]:
    states: list[Tensor] = []
    for seed in (1, 2):
        first.repeated(seed)
        states.append(_drawn())
    if torch.equal(states[0], states[1]):
        yield noticed(
            "draws-repeat",
            "The step seeds the global random number generator, so dropout, noise and the order of samples are the "
            "same after each step.",
            "Seed once, before the run, and not in the step.",
        )


def _drawn() -> Tensor:
    state: Tensor = capture_rng_state(torch.device("cpu"))["torch"]
    return state


def _check_order(first: FirstBatch) -> Iterator[Finding]:
    """Compare the loss with the loss of the same samples in another order, where nothing is random."""
    batch = first.batch
    if len({len(tensor) if tensor.dim() else 0 for tensor in tensors_in(batch)}) != 1:
        return
    with in_evaluation_mode(first.model):
        seed_rng(0)
        before = _drawn()
        losses = [first.loss_of(variant) for variant in (batch, with_tensors(batch, flipped), batch)]
        is_random = not torch.equal(before, _drawn())
    if not is_random and losses[0] == losses[2] and abs(losses[1] - losses[0]) > _ORDERED * max(abs(losses[0]), 1e-6):
        yield noticed(
            "order-of-samples-matters",
            f"The loss depends on the order of the samples: it is {losses[0]:.6g}, and {losses[1]:.6g} for the same "
            "samples in another order.",
            "Look for a view() that should be a transposition: it pairs outputs with targets of other samples.",
        )


def check_parts(first: FirstBatch) -> Iterator[Finding]:
    """Yield findings about the parts of the first batch, such as the elements of a tuple.

    Args:
        first: The batch.
    """
    parts = _parts_of(first.batch)
    if len(parts) >= _FEWEST_PARTS:
        yield from _check_unused(first, parts)
    if first.job.has_own_step:
        yield from _check_views(first, parts)


def _parts_of(batch: Any) -> dict[Hashable, Tensor]:
    """Return the tensors of a batch with a row for each sample, by their position or key."""
    parts: dict[Hashable, Any] = {}
    if isinstance(batch, Mapping):
        parts = entries(cast("object", batch))
    elif isinstance(batch, (list, tuple)):
        parts = dict(enumerate(cast("Sequence[Any]", batch)))
    tensors = {key: part for key, part in parts.items() if isinstance(part, Tensor) and part.dim() and len(part)}
    sizes = {len(part) for part in tensors.values()}
    return tensors if len(sizes) == 1 and min(sizes) >= _FEWEST_SAMPLES else {}


class _Used(TorchFunctionMode):
    """Notes which tensors are passed to any function of torch, including reads of their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: set[int] = set()

    @override
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.tensors.update(map(id, tensors_in((list(args), dict(kwargs or {})))))
        return func(*args, **(kwargs or {}))


def _used_parts(batch: Any, step: Callable[[Any], object]) -> set[Hashable]:
    """Return the parts of a batch that a step reads."""
    copied = with_tensors(batch, Tensor.clone)
    parts = _parts_of(copied)
    seed_rng(0)
    with _Used() as used:
        step(copied)
    return {key for key, part in parts.items() if id(part) in used.tensors}


def _check_unused(first: FirstBatch, parts: dict[Hashable, Tensor]) -> Iterator[Finding]:
    before = first.loss_of(first.batch)
    used = _used_parts(first.batch, lambda batch: _loss_with(first, batch))
    unused = [key for key, part in parts.items() if key not in used and not _identifies(part)]
    if len(used) < _USED or not unused:
        return
    if (
        first.loss_of(first.batch) == before
    ):  # else the step changes its own result, such as by training a second network
        unused = [key for key in unused if first.loss_of(_exchanged(first.batch, key)) == before]
    evaluated: set[Hashable] = set()
    if is_overridden(first.job.trainer, "calculate_eval_batch_loss"):
        with contextlib.suppress(Exception), torch.no_grad():  # a step that requires other batches
            evaluated = _used_parts(first.batch, first.job.trainer.calculate_eval_batch_loss)
    for key in unused:
        is_meant = not first.job.has_own_step or key in evaluated or key in TARGET_KEYS or not _is_flag(parts[key])
        yield noticed(
            "part-of-batch-not-used",
            f"The step does not use batch[{key!r}], which differs between samples: the loss does not depend on it.",
            "Use it in calculate_train_batch_loss, for example as a mask, a weight or a flag for the end of an "
            "episode; or leave it out of the samples.",
            "note" if is_meant else "warning",
        )
        return


def _identifies(part: Tensor) -> bool:
    """Whether a part has no information for a loss: it is the same for all samples, or numbers them."""
    if is_same(part, part[:1].expand_as(part)):
        return True
    return not part.is_floating_point() and part.numel() == len(part) == len(set(map(int, part.flatten())))


def _is_flag(part: Tensor) -> bool:
    """Whether a part consists of flags; other unused numbers may be labels or measurements."""
    return part.dtype == torch.bool or (part.is_floating_point() and bool(((part == 0) | (part == 1)).all()))


def _exchanged(batch: Any, key: Any) -> Any:
    """Return a batch in which each sample has a part of the sample before."""
    kind = cast("Any", type(batch))
    if isinstance(batch, Mapping):
        named: dict[Any, Any] = dict(cast("Any", batch))
        return kind({**named, key: named[key].roll(1, 0)})
    parts = [part.roll(1, 0) if number == key else part for number, part in enumerate(cast("list[Any]", batch))]
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def _loss_with(first: FirstBatch, batch: Any) -> Tensor:
    """Return the loss of a batch, which the step may change, without its graph."""
    with torch.set_grad_enabled(first.needs_graph):
        return first.calculate_loss(batch)


@dataclass
class _Inputs:
    """The inputs of the calls to a model in a step.

    Attributes:
        model: The model.
        tensors: Its inputs.
        rows: The number of rows of the first inputs of its calls.
    """

    model: nn.Module
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    rows: int = 0

    def note(self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call."""
        tensors = [tensor.detach().clone() for tensor in tensors_in((args, kwargs)) if tensor.dim()]
        self.rows += len(tensors[0]) if tensors else 0
        self.tensors += tensors


def _inputs_in(first: FirstBatch, batch: Any) -> _Inputs:
    inputs = _Inputs(first.model)
    hook = first.model.register_forward_pre_hook(inputs.note, with_kwargs=True)
    try:
        first.loss_of(batch)
    finally:
        hook.remove()
    return inputs


def _check_views(first: FirstBatch, parts: dict[Hashable, Tensor]) -> Iterator[Finding]:
    """Look for two equal parts that the model gets as two views of a sample."""
    numbers = {key: part for key, part in parts.items() if part.is_floating_point() and part[0].numel() > 1}
    equal = [(key, other) for key, other in combinations(numbers, 2) if is_same(numbers[key], numbers[other])]
    pairs = [(key, other) for key, other in equal if not _identifies(numbers[key])]
    if not pairs:
        return
    key, other = pairs[0]
    before = _inputs_in(first, first.batch)
    is_random = _draws(first)
    reaches = [_differ(before, _inputs_in(first, _exchanged(first.batch, index))) for index in (key, other)]
    if before.rows >= _VIEWS * len(numbers[key]) and all(reaches):
        yield noticed(
            "views-are-equal",
            f"batch[{key!r}] and batch[{other!r}] are identical in each sample, and the model gets both: the two views "
            "of a sample do not differ, so matching them is trivial.",
            "Look at __getitem__ and collate_fn: draw different random numbers for each view.",
            "note" if is_random else "warning",
        )


def _draws(first: FirstBatch) -> bool:
    """Whether the step draws random numbers, which may turn equal views into different views."""
    devices = {torch.device("cpu"), first.loss.device}
    drawn: list[list[float]] = []
    for step in (lambda: 0.0, lambda: _loss_with(first, with_tensors(first.batch, Tensor.clone))):
        seed_rng(0)
        step()
        drawn.append([float(torch.rand((), device=device)) for device in devices])
    return drawn[0] != drawn[1]


def _differ(before: _Inputs, after: _Inputs) -> bool:
    if len(before.tensors) != len(after.tensors):
        return True
    return any(not is_same(a, b) for a, b in zip(before.tensors, after.tensors, strict=True))
