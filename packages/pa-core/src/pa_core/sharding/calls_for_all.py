"""How processes without a sample call a sharded model as often as the others, which need their pieces of it."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, cast
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from pa_core._torch import tree_leaves
from pa_core.distributed.collectives import rank
from pa_core.errors import ConfigurationError, RanksDifferError
from pa_core.sharded_tensors import local_piece

__all__ = ["CallsForAll", "differentiable", "is_told", "not_compiled", "zero_loss_of"]

# torch annotates its collectives only in part
_collectives: Any = dist


_HookT = TypeVar("_HookT", bound=Callable[..., Any])

_told: Final[WeakSet[nn.Module]] = WeakSet()


def not_compiled(hook: _HookT) -> _HookT:
    """Return a hook that stays outside of compiled graphs, as the hooks of torch that gather the pieces.

    Args:
        hook: What a module is to call.
    """
    compiler: Any = torch.compiler  # torch annotates it only in part
    disabled: _HookT = compiler.disable(hook)
    return disabled


def is_told(module: nn.Module) -> bool:
    """Whether processes without a sample make the same calls of a module now as this one.

    Args:
        module: A sharded model, or a part of one.
    """
    return module in _told


@dataclass(frozen=True)
class _TensorKind:
    """What a process must know of a tensor before it can receive it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    requires_grad: bool


@dataclass(frozen=True)
class _Call:
    """A call of a module: its name within the model, and its arguments without their tensors."""

    module: str
    arguments: bytes
    tensors: list[_TensorKind]
    records_gradients: bool


@dataclass(frozen=True)
class _End:
    """No call follows; of the outputs that may have gradients, some have a part in the loss."""

    has_part: list[bool]


class CallsForAll:
    """Lets the processes that have no sample in a step call the model with what another process calls it with.

    A forward or backward pass of a sharded model needs the pieces of all processes. In a step in which some have no
    sample, one of those that have, the teller, sends what it calls the model with. The processes without a sample make
    the same calls, until they are told that there are no more. Nothing but the model itself runs on them.

    The gradients of their losses are zero. The same outputs have a part in them as on the teller, so that all processes
    go through the same modules in the backward pass, in the same order.

    Args:
        model: The sharded model, as a step calls it, or a module of several.
        device: The device of the run.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> calls = CallsForAll(model, torch.device("cpu"))
        >>> with calls.telling(teller=0):  # doctest: +SKIP
        ...     loss = model(inputs).square().mean()
        ...     calls.end(loss)
        >>> loss = zero_loss_of(model, calls.follow(teller=0))  # on a process without a sample  # doctest: +SKIP
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._teller: int | None = None
        self._outputs: list[Tensor] = []
        self._depth = 0

    @contextmanager
    def telling(self, teller: int) -> Generator[None]:
        """Within the context, calls of the model are sent to the processes without a sample.

        Every process with a sample must enter it, and call ``end`` in it.

        Args:
            teller: The rank of the process whose calls are sent.
        """
        self._teller, self._outputs, self._depth = teller, [], 0
        with ExitStack() as hooks:
            for name, module in self._called_modules():
                _told.add(module)
                hooks.callback(_told.discard, module)
                before, after = not_compiled(partial(self._before_call, name)), not_compiled(self._after_call)
                # Before the module gathers its pieces, in which the others take part once they have been told.
                hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True).remove)
                hooks.callback(module.register_forward_hook(after, always_call=True).remove)
            try:
                yield
            finally:
                self._teller, self._outputs = None, []

    def end(self, loss: Tensor | None = None) -> None:
        """Tell that the model is not called any more in this step.

        Args:
            loss: What the backward pass begins with; None without one.
        """
        teller = cast("int", self._teller)
        if rank() == teller:
            self._send(teller, _End(_parts_in(loss, self._outputs)))
        else:
            self._require(self._receive(teller)[0], _End, "does not call the model any more in this step")

    def follow(self, teller: int) -> list[Tensor]:
        """Make the calls of the teller; return the outputs that have a part in its loss.

        Args:
            teller: As the other processes pass to ``telling``.
        """
        outputs: list[Tensor] = []
        while True:
            message, tensors = self._receive(teller)
            if isinstance(message, _End):
                return [output for output, has_part in zip(outputs, message.has_part, strict=True) if has_part]
            arguments, keywords = _Unpickler(message.arguments, tensors).load()
            with torch.set_grad_enabled(message.records_gradients):
                outputs += differentiable(self._model.get_submodule(message.module)(*arguments, **keywords))

    def _called_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """The model, and the modules in it that can be called by themselves: those that gather their pieces."""
        named = cast("Iterator[tuple[str, nn.Module]]", self._model.named_modules())
        for name, module in named:
            if not name or hasattr(module, "set_requires_gradient_sync"):
                yield name, module

    def _before_call(self, name: str, _module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        teller = cast("int", self._teller)
        if rank() == teller:
            self._send(teller, *_take_apart(name, arguments, keywords))
        else:
            self._require(self._receive(teller)[0], _Call, "calls the model again in this step")

    def _after_call(self, _module: nn.Module, _arguments: object, output: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._outputs += differentiable(output)

    def _require(self, message: _Call | _End, expected: type[_Call | _End], does: str) -> None:
        """Raise an error if a process with a sample does something else than the teller."""
        if not isinstance(message, expected):
            raise RanksDifferError(
                "The processes do not call the model equally often in a step.",
                given=f"rank {rank()} {does}, as rank {self._teller} does not",
                do="Take the call of the model out of the condition that it depends on, in the step or in a callback.",
            )

    def _send(self, teller: int, message: _Call | _End, tensors: Sequence[Tensor] = ()) -> None:
        text = _as_bytes(torch.frombuffer(bytearray(pickle.dumps(message)), dtype=torch.uint8), self._device)
        _collectives.broadcast(torch.tensor([len(text)], device=self._device), src=teller)
        _collectives.broadcast(text, src=teller)
        if tensors:
            _collectives.broadcast(torch.cat([_as_bytes(one, self._device) for one in tensors]), src=teller)

    def _receive(self, teller: int) -> tuple[_Call | _End, list[Tensor]]:
        size = torch.zeros(1, dtype=torch.int64, device=self._device)
        _collectives.broadcast(size, src=teller)
        text = torch.empty(int(size.item()), dtype=torch.uint8, device=self._device)
        _collectives.broadcast(text, src=teller)
        message: _Call | _End = pickle.loads(bytes(text.cpu().numpy()))  # from a process of this run
        if isinstance(message, _End) or not message.tensors:
            return message, []
        sizes = [_num_bytes(kind) for kind in message.tensors]
        flat = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        _collectives.broadcast(flat, src=teller)
        received = zip(message.tensors, torch.split(flat, sizes), strict=True)
        return message, [_from_bytes(kind, piece) for kind, piece in received]


def zero_loss_of(model: nn.Module, outputs: Sequence[Tensor]) -> Tensor:
    """Return a loss whose gradients are zero, and whose backward pass goes through the calls that made some outputs.

    Args:
        model: The sharded model.
        outputs: What calls of it returned; without any, the loss depends on its parameters alone.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> abs(zero_loss_of(model, [model(torch.ones(1, 2))]).item())
        0.0
    """
    if not outputs:
        trainable = [local_piece(parameter) for parameter in model.parameters() if parameter.requires_grad]
        return torch.stack([piece.sum().float() for piece in trainable]).sum() * 0.0
    # Not by a factor of zero alone, which would leave NaN what it is.
    real = [torch.view_as_real(output) if output.is_complex() else output for output in outputs]
    return torch.stack([output.nan_to_num(0.0, 0.0, 0.0).sum().float() for output in real]).sum() * 0.0


def differentiable(output: object) -> list[Tensor]:
    """Return the tensors in what a model returned that gradients may come back to.

    Args:
        output: Tensors, or containers of them.
    """
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]


def _parts_in(loss: Tensor | None, outputs: Sequence[Tensor]) -> list[bool]:
    """Whether each of some outputs has a part in a loss, by the graph of the loss."""
    if loss is None:
        return [False] * len(outputs)
    nodes: list[Any] = [output.grad_fn for output in outputs]
    seen: set[Any] = set()
    ahead: list[Any] = [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [following for following, _ in node.next_functions]
    return [node in seen for node in nodes]


_BY_REFERENCE: Final = "tensor"


class _Pickler(pickle.Pickler):
    """Leaves tensors out of what is pickled, and collects them."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []

    @override
    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        if not isinstance(obj, Tensor) or obj.layout is not torch.strided:
            return None
        self.tensors.append(obj)
        return _BY_REFERENCE, len(self.tensors) - 1


class _Unpickler(pickle.Unpickler):
    """Puts tensors back where they were."""

    def __init__(self, text: bytes, tensors: Sequence[Tensor]) -> None:
        super().__init__(io.BytesIO(text))
        self._tensors = tensors

    @override
    def persistent_load(self, pid: tuple[str, int]) -> Tensor:
        return self._tensors[pid[1]]


def _take_apart(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[_Call, list[Tensor]]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump((arguments, keywords))
    except Exception as error:  # whatever an object raises that cannot be pickled
        raise ConfigurationError(
            "What the model is called with cannot be sent to a process that has no sample in this step.",
            given=f"{error}",
            expected="tensors, numbers, strings, containers of them, and objects that can be pickled",
            do='Call the model with such values, or leave the last step out: train_dataloader_kwargs={"drop_last": '
            "True}.",
        ) from error
    tensors = [tensor.detach() for tensor in pickler.tensors]
    kinds = [_TensorKind(one.dtype, tuple(one.shape), one.requires_grad) for one in pickler.tensors]
    return _Call(name, file.getvalue(), kinds, torch.is_grad_enabled()), tensors


def _as_bytes(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.to(device).contiguous().reshape(-1).view(torch.uint8)


def _from_bytes(kind: _TensorKind, content: Tensor) -> Tensor:
    # A copy, which begins where tensors of its kind may begin.
    return content.clone().view(kind.dtype).reshape(kind.shape).requires_grad_(kind.requires_grad)


def _num_bytes(kind: _TensorKind) -> int:
    return torch.Size(kind.shape).numel() * kind.dtype.itemsize
