"""Private names of torch, each with the public alternative that is not enough."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor

from pa_core import UnsupportedConfigurationError


class FakeMode(Protocol):
    """A context in which operations compute shapes, and no values."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> bool | None: ...

    def from_tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor like this tensor, on the same device, without values."""
        ...


def fake_mode() -> FakeMode:
    """Return torch's mode for tensors without values; "meta", which is public, is not the device of a model."""
    return cast("FakeMode", _fake_tensors("FakeTensorMode")(allow_non_fake_inputs=True))


def with_values() -> AbstractContextManager[object]:
    """Return a context within a fake mode in which tensors have values."""
    return cast("AbstractContextManager[object]", _fake_tensors("unset_fake_temporarily")())


def value_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a fake mode if a number or a shape depends on values; torch does not document them."""
    return _fake_tensors("DataDependentOutputException"), _fake_tensors("DynamicOutputShapeException")


def watching(
    note: Callable[[Any, Sequence[Any], Any], None], answer: Callable[[Any], Any] = lambda _operation: None
) -> AbstractContextManager[object]:
    """Return a context in which each operation is recorded; a public ``TorchFunctionMode`` sees no backward pass.

    Args:
        note: Called with the operation, its arguments, and its return value.
        answer: Called with the operation, to return its result; None to let it compute.
    """
    base: Any = _private(importlib.import_module("torch.utils._python_dispatch"), "TorchDispatchMode")

    def dispatch(
        _self: object, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = answer(func)
        result = func(*args, **(kwargs or {})) if result is None else result
        note(func, [*args, *(kwargs or {}).values()], result)
        return result

    return cast("AbstractContextManager[object]", type("Watching", (base,), {"__torch_dispatch__": dispatch})())


def is_in_backward() -> bool:
    """Return whether a backward pass is running in this thread, which has no public name."""
    return cast("int", _private(importlib.import_module("torch._C"), "_current_graph_task_id")()) >= 0


def _fake_tensors(name: str) -> Any:
    return _private(importlib.import_module("torch._subclasses.fake_tensor"), name)


def _private(owner: Any, name: str) -> Any:
    found = getattr(owner, name, None)
    if found is None:
        raise UnsupportedConfigurationError(
            "pa-preflight needs a private part of torch that this version of torch does not have.",
            given=f"torch {torch.__version__}, without {owner.__name__}.{name}",
            do="Install a tested version, torch 2.11 to 2.15, or a newer pa-preflight.",
        )
    return found
