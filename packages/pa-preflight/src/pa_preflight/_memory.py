"""Predicts the memory of an update, by making it with tensors that have no values."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections import defaultdict, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_core import Trainer
from pa_preflight._arguments import ignore, with_methods
from pa_preflight._tensors import parameters_of, tensors_in, with_tensors
from pa_preflight._torch import FakeMode, fake_mode, value_errors, watching, with_values

_BLOCK = 512
"""The size to which torch rounds memory up on an accelerator."""

_LSTM, _LSTM_BACKWARD = "aten.mkldnn_rnn_layer.default", "aten.mkldnn_rnn_layer_backward.default"

_FEW_STEPS = 9

_ITEM = "aten._local_scalar_dense.default"


@dataclass(frozen=True)
class TracedUpdate:
    """The memory of an update in bytes.

    Attributes:
        activations: The memory that the forward pass of a batch keeps for its backward pass.
        peak: The largest memory use at any time.
        peak_on_accelerator: The peak on an accelerator, which allocates memory in blocks, and where optimizers work on
            all parameters at once.
    """

    activations: int
    peak: int
    peak_on_accelerator: int


def trace_update(trainer: Trainer[Any, Any, Any, Any], batch: Any) -> TracedUpdate:
    """Make an update without values, and return its memory.

    Args:
        trainer: The trainer, in the run; it is restored afterwards.
        batch: The batch.

    Raises:
        Exception: An operation needs values.
    """
    mode = fake_mode()
    with with_methods(trainer, log=ignore):
        try:
            return _trace(trainer, batch, mode, _Values(mode))
        except value_errors():
            values = _Values(mode)
            with watching(values.note):
                trainer.calculate_train_batch_loss(batch)
            return _trace(trainer, batch, mode, values)


def _trace(trainer: Trainer[Any, Any, Any, Any], batch: Any, mode: FakeMode, values: _Values) -> TracedUpdate:
    optimizers = [*trainer.named_optimizers().values()]
    models = [*trainer.named_models().values(), *trainer.modules.values(), trainer.loss_func, *vars(trainer).values()]
    modules = {id(module): module for model in models if isinstance(model, nn.Module) for module in model.modules()}
    fakes, live = _Fakes(mode), _LiveStorages()
    with _kept([*modules.values(), *optimizers, trainer]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fakes.put_into(modules.values(), optimizers)
        live.add(fakes.made)
        with mode, watching(live.note, values.answer):
            for parameter in fakes.parameters:
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
            _step(trainer, values)
            for optimizer in optimizers:
                optimizer.zero_grad()
            live.forget_peak()
            batch = with_tensors(batch, fakes.of)
            live.add(fakes.made)
            activations = _make_gradients(trainer, batch, live, values)
            in_blocks = live.peak_in_blocks
            _step(trainer, values)
            peak = live.peak
            live.forget_peak()
            _work_at_once(optimizers)
            _step(trainer, values)
            return TracedUpdate(activations, peak, max(in_blocks, live.peak_in_blocks))


def _make_gradients(trainer: Trainer[Any, Any, Any, Any], batch: Any, live: _LiveStorages, values: _Values) -> int:
    """Run forward and backward passes until the memory repeats, and return the memory between the passes."""
    activations, parts = 0, trainer.run_config.gradient_accumulation_steps
    for _ in range(min(parts, 2)):  # the second pass adds to existing gradients
        before = live.now
        with values.of_step():
            loss = trainer.calculate_train_batch_loss(batch)["loss"] / parts
        activations = live.now - before
        trainer.backward_step(loss)
        del loss
    return activations


def _step(trainer: Trainer[Any, Any, Any, Any], values: _Values) -> None:
    with values.of_any_kind():
        trainer.optimizer_step()
        for name, optimizer in trainer.named_optimizers().items():
            if name != "optimizer":
                optimizer.step()


def _work_at_once(optimizers: Iterable[Optimizer]) -> None:
    """Give optimizers their default on an accelerator, which is to update all parameters at once."""
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True


class _Values:
    """The numbers and shapes that follow from values, such as the result of ``item()`` and the size of a mask.

    A step with values records them for a step without. Optimizers only scale by the numbers that they read, so any
    number works.
    """

    def __init__(self, mode: FakeMode) -> None:
        self._mode = mode
        self._known: list[tuple[str, Any]] = []
        self._left: deque[tuple[str, Any]] = deque()
        self._is_any = False

    @contextmanager
    def of_step(self) -> Generator[None]:
        self._left.extend(self._known)
        yield
        self._left.clear()

    @contextmanager
    def of_any_kind(self) -> Generator[None]:
        self._is_any = True
        yield
        self._is_any = False

    def note(self, operation: Any, _args: Sequence[Any], result: Any) -> None:
        if _follows_from_values(operation):
            self._known.append((str(operation), with_tensors(result, self._mode.from_tensor)))

    def answer(self, operation: Any) -> Any:
        if not _follows_from_values(operation):
            return None
        if self._is_any:
            return 1.0 if str(operation) == _ITEM else None
        name, value = self._left.popleft() if self._left else (str(operation), None)
        if name != str(operation):
            raise RuntimeError(f"Two steps with the same batch differ: {name}, then {operation}.")
        return with_tensors(value, torch.empty_like)


def _follows_from_values(operation: Any) -> bool:
    return not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.isdisjoint(operation.tags)


class _Fakes:
    """Tensors without values, which take the place of parameters and buffers."""

    def __init__(self, mode: FakeMode) -> None:
        self._mode = mode
        self._made: dict[int, Tensor] = {}
        self.parameters: list[Tensor] = []

    @property
    def made(self) -> list[Tensor]:
        return [*self._made.values()]

    def of(self, tensor: Tensor) -> Tensor:
        fake = self._made.get(id(tensor))
        if fake is None:
            fake = self._made[id(tensor)] = self._mode.from_tensor(tensor)
            fake.grad = None
        return fake

    def put_into(self, modules: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
        for module in modules:
            parameters = module.named_parameters(recurse=False, remove_duplicate=False)
            buffers = module.named_buffers(recurse=False, remove_duplicate=False)
            for name, tensor in [*parameters, *buffers]:
                setattr(module, name, self.of(tensor))
        for optimizer in optimizers:
            optimizer.state = defaultdict(dict)
            optimizer.param_groups = [
                {**group, "params": [self.of(parameter) for parameter in group["params"]]}
                for group in optimizer.param_groups
            ]
            self.parameters += parameters_of([optimizer])


class _LiveStorages:
    """The memory of all tensors that operations took or returned, for as long as they live."""

    def __init__(self) -> None:
        self._alive: dict[int, weakref.ref[Any]] = {}
        self.now = self.peak = 0
        self._now_in_blocks = self.peak_in_blocks = 0

    def note(self, operation: Any, args: Sequence[Any], result: Any) -> None:
        if str(operation) == _LSTM:
            self._add(result[-1], _bytes_of_lstm(args))
        elif str(operation) == _LSTM_BACKWARD:
            _, *weights, _hidden, _cells, states = args[:8]  # oneDNN reorders gates, states and weights
            self._rise(6 * states.nbytes + 2 * sum(weight.nbytes for weight in weights))
        self.add(tensors_in((*args, result)))

    def add(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._add(tensor)

    def forget_peak(self) -> None:
        self.peak, self.peak_in_blocks = self.now, self._now_in_blocks

    def _add(self, tensor: Tensor, size: int | None = None) -> None:
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        if id(storage) in self._alive:
            return
        size = storage.nbytes() if size is None else size
        key, blocks = id(storage), -(-size // _BLOCK) * _BLOCK

        def forget(_dead: object) -> None:
            del self._alive[key]
            self.now -= size
            self._now_in_blocks -= blocks

        self._alive[key] = weakref.ref(storage, forget)
        self.now += size
        self._now_in_blocks += blocks
        self._rise(0)

    def _rise(self, size: int) -> None:
        self.peak = max(self.peak, self.now + size)
        self.peak_in_blocks = max(self.peak_in_blocks, self._now_in_blocks + size)


def _bytes_of_lstm(args: Sequence[Any]) -> int:
    """Return the memory that a layer of an LSTM keeps on a CPU, which the operation without values leaves out."""

    def kept(steps: int) -> int:
        with with_values():
            tensors = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in args[:7]]
            tensors[0] = torch.zeros(steps, *args[0].shape[1:], dtype=args[0].dtype)
            result = torch.ops.aten.mkldnn_rnn_layer(*tensors, *args[7:])
            return int(result[-1].nbytes)

    most = min(len(args[0]), _FEW_STEPS)
    first, last = kept(1), kept(most)
    return last if len(args[0]) == most else first + (last - first) * (len(args[0]) - 1) // (most - 1)


@contextmanager
def _kept(owners: Iterable[object]) -> Generator[None]:
    """Restore the attributes of objects, and the content of their lists, dictionaries and sets, such as parameters."""
    kept = [(owner, dict(vars(owner)), [*_contents(vars(owner).values())]) for owner in owners]
    try:
        yield
    finally:
        for owner, attributes, contents in kept:
            vars(owner).clear()
            vars(owner).update(attributes)
            for value, content in contents:
                value.clear()
                getattr(value, "extend" if isinstance(value, (list, deque)) else "update")(content)


def _contents(values: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for value in values:
        if isinstance(value, (list, deque, dict, set)):
            yield value, copy.copy(cast("Any", value))
