"""Records which functions of ``torch.nn.functional`` a step calls, and the operations that made their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

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
"""Operations that do not change the numbers of a tensor."""

LOSSES: Final = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
)
"""Functions that compare outputs with targets."""

_KEPT = 1000


@dataclass
class FunctionCall:
    """A call to a function.

    Attributes:
        name: The function in ``torch.nn.functional``.
        arguments: By the names of parameters, defaults included; tensors without their graphs.
        made_by: The operations that made the tensors, such as "Sigmoid", by the names of parameters; views and copies
            are skipped, and a tensor without a graph has no operation.
        value: The returned tensor, without its graph; None if another value was returned, or the call raised an error.
    """

    name: str
    arguments: dict[str, Any]
    made_by: Mapping[str, str]
    value: Tensor | None = None

    @property
    def outputs(self) -> Tensor:
        """The tensor that a loss compares with the targets."""
        outputs: Tensor = self.arguments["input"]
        return outputs

    @property
    def targets(self) -> Tensor:
        """The targets of a loss."""
        targets: Tensor = self.arguments["target"]
        return targets

    def shorten(self) -> None:
        """Keep a few numbers of outputs and targets."""
        for name in ("input", "target"):
            self.arguments[name] = self.arguments[name].flatten()[:_KEPT].clone()


class FunctionCalls(TorchFunctionMode):
    """Records the calls of some functions with tensors, from anywhere in the program.

    Args:
        calls: The list that gets the calls.
        names: The names of functions in ``torch.nn.functional``.
    """

    def __init__(self, calls: list[FunctionCall], names: Iterable[str]) -> None:
        super().__init__()
        self._calls = calls
        self._names: dict[Callable[..., Any], str] = {getattr(functional, name): name for name in names}

    @override
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        call = self._call(func, args, kwargs or {}) if func in self._names else None
        value = func(*args, **(kwargs or {}))
        if call is not None and isinstance(value, Tensor):
            call.value = value.detach()
        return value

    def _call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> FunctionCall | None:
        try:
            given = _signature(func).bind(*args, **kwargs)
        except TypeError:  # the call itself raises it too
            return None
        given.apply_defaults()
        arguments = given.arguments
        if not all(isinstance(arguments[name], Tensor) for name in ("input", "target") if name in arguments):
            return None
        made = {
            key: made_by(value) for key, value in arguments.items() if isinstance(value, Tensor) and value.requires_grad
        }
        plain = {key: value.detach() if isinstance(value, Tensor) else value for key, value in arguments.items()}
        self._calls.append(FunctionCall(self._names[func], plain, made))
        return self._calls[-1]


@lru_cache
def _signature(func: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(func)


def made_by(tensor: Tensor) -> str:
    """Return the operation that computed the numbers of a tensor, such as "Sigmoid"; empty without a graph.

    Args:
        tensor: A tensor with its graph.
    """
    node = tensor.grad_fn
    while node is not None:
        name = node.name().partition("Backward")[0].rpartition("::")[2]
        if name not in _VIEWS:
            return name
        node = node.next_functions[0][0] if node.next_functions else None
    return ""
