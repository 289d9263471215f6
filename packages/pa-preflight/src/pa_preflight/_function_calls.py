"""Notes which functions of ``torch.nn.functional`` a step calls, with which arguments, and what made them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from typing_extensions import override

_VIEWS = frozenset(
    (
        *("Alias", "Clone", "Expand", "Permute", "Reshape", "ReshapeAlias", "Select", "Slice", "Split", "Squeeze", "T"),
        *("ToCopy", "Transpose", "Unbind", "UnsafeView", "Unsqueeze", "View"),
    )
)
"""Operations that leave the numbers of a tensor as they are."""


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function.

    Attributes:
        name: The function in ``torch.nn.functional``.
        arguments: By the names of parameters, defaults included; tensors without their graphs.
        made_by: The operations that made the tensors, such as "Sigmoid", by the names of parameters; views and copies
            are looked through, and a tensor without a graph has none.
        value: What it returned, without its graph; None if that is not a tensor.
    """

    name: str
    arguments: Mapping[str, Any]
    made_by: Mapping[str, str]
    value: Tensor | None = None


class FunctionCalls(TorchFunctionMode):
    """Notes the calls of some functions, from wherever they come.

    Args:
        calls: Gets them.
        names: Of functions in ``torch.nn.functional``.
    """

    def __init__(self, calls: list[FunctionCall], names: Iterable[str]) -> None:
        super().__init__()
        self._calls = calls
        self._names: dict[Callable[..., Any], str] = {getattr(functional, name): name for name in names}

    @override
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        if func in self._names:
            given = bound(func, args, kwargs or {})
            made = {key: made_by(one) for key, one in given.items() if isinstance(one, Tensor) and one.requires_grad}
            plain = {key: one.detach() if isinstance(one, Tensor) else one for key, one in given.items()}
            result = value.detach() if isinstance(value, Tensor) else None
            self._calls.append(FunctionCall(self._names[func], plain, made, result))
        return value


def bound(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of parameters, with the defaults of the others.

    Args:
        func: What is called.
        args: With these arguments.
        kwargs: And these.
    """
    call = _signature(func).bind(*args, **kwargs)
    call.apply_defaults()
    return dict(call.arguments)


@lru_cache
def _signature(func: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(func)


def made_by(tensor: Tensor) -> str:
    """Return the operation that made the numbers of a tensor, such as "Sigmoid"; empty without a graph.

    Args:
        tensor: With its graph.
    """
    node = tensor.grad_fn
    while node is not None:
        name = node.name().partition("Backward")[0].rpartition("::")[2]
        if name not in _VIEWS:
            return name
        node = node.next_functions[0][0] if node.next_functions else None
    return ""
