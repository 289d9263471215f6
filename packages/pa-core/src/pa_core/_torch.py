"""The only module that uses private names of torch; each docstring says why the public API is not enough.

No private name is looked up when this module is imported. If a version of torch lacks a name, the function that needs
it raises an error, and ``tests/test_torch_names.py`` of this distribution fails. Attributes that torch does not
document count as private.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim import Optimizer
from typing_extensions import override

from pa_core.errors import UnsupportedConfigurationError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

OLDEST_TRIED: Final = "2.11"
NEWEST_TRIED: Final = "2.15"

PARAMETERS: Final = "_parameters"
"""The key of a module's own parameters in ``vars(module)``, whose value maps names to parameters or None.

``vars(module)[PARAMETERS]`` is three times as fast as ``named_parameters(recurse=False)``, which builds names, and
includes a parameter under each of its names.

Example:
    >>> from pa_core.torch_names import PARAMETERS
    >>> list(vars(torch.nn.Linear(2, 1))[PARAMETERS])
    ['weight', 'bias']
"""

BUFFERS: Final = "_buffers"
"""The key of a module's own buffers in ``vars(module)``, whose value maps names to buffers or None.

``vars(module)[BUFFERS]`` includes non-persistent buffers, and a buffer under each of its names.

Example:
    >>> from pa_core.torch_names import BUFFERS
    >>> list(vars(torch.nn.BatchNorm1d(2))[BUFFERS])
    ['running_mean', 'running_var', 'num_batches_tracked']
"""

CHILDREN: Final = "_modules"
"""The key of a module's children in ``vars(module)``, whose value maps names to modules or None.

``vars(module)[CHILDREN]`` includes a module under each of its names, while ``named_children()`` skips second names.

Example:
    >>> from pa_core.torch_names import CHILDREN
    >>> list(vars(torch.nn.Sequential(torch.nn.ReLU()))[CHILDREN])
    ['0']
"""

COMPILED: Final = "_orig_mod"
"""The key of the original in a compiled module. Checking the class would import the compiler."""

INPUT_CHECK: Final = "_check_input_dim"
"""The name of the method with which a batch norm layer checks its input, for ``getattr(layer, INPUT_CHECK)(tensor)``.

It raises a ``ValueError`` for a tensor with the wrong number of dimensions; derived layers may have different rules.

Example:
    >>> from pa_core.torch_names import INPUT_CHECK
    >>> getattr(torch.nn.BatchNorm2d(2), INPUT_CHECK)(torch.ones(1, 2, 4, 4))
"""

NESTED_SCHEDULERS: Final = "_schedulers"
"""The undocumented attribute with the schedulers of ``SequentialLR`` and ``ChainedScheduler``."""

_MISSING: Final = object()


@contextmanager
def before_collectives(call: Callable[[str], None]) -> Generator[None]:
    """Call a function with the name of each collective operation within the context, before it begins.

    Torch's ``CommDebugMode`` reports their number only afterwards, when an operation may already wait forever.

    Args:
        call: The function to call; an error that it raises is raised by the operation.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]  # not annotated by torch
        @override
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace in ("c10d", "_c10d_functional"):
                call(str(func))
            return func(*args, **(kwargs or {}))

    with Collectives():  # type: ignore[no-untyped-call]  # as above
        yield


def _private(owner: object, name: str) -> Any:
    """Return an attribute of a torch object.

    Raises:
        UnsupportedConfigurationError: This version of torch does not have the attribute.
    """
    found = getattr(owner, name, _MISSING)
    if found is _MISSING:
        name_of_owner = getattr(owner, "__name__", type(owner).__name__)
        raise UnsupportedConfigurationError(
            "This run needs a part of torch that has no public name, and that this version of torch does not have.",
            given=f"torch {torch.__version__}, without {name_of_owner}.{name}",
            expected=f"a version that was tried: torch {OLDEST_TRIED} to {NEWEST_TRIED}",
            do=f'Install it: pip install "torch=={NEWEST_TRIED}.*". A newer pa-core may know newer versions.',
        )
    return found


def foreach(operation: str, *arguments: Any) -> Any:
    """Apply an operation to lists of tensors in a single call, which is faster than a loop over them.

    It calls ``torch._foreach_*``, which has no public name. Use it for updates of many small tensors, for example an
    average of the weights.

    Args:
        operation: The name of the operation in torch without ``_foreach_``, for example ``"mul_"``, ``"lerp_"`` or
            ``"norm"``. A name that ends in ``_`` changes the tensors of the first list in place.
        *arguments: The arguments of the operation: lists of tensors, none of them empty and all of the same length, and
            numbers.

    Returns:
        The results, a sequence of tensors in the order of the first list.

    Raises:
        UnsupportedConfigurationError: This version of torch does not have the operation.

    Example:
        >>> import torch
        >>> from pa_core.torch_names import foreach
        >>> tensors = [torch.ones(2), torch.ones(1)]
        >>> _ = foreach("mul_", tensors, 3.0)
        >>> tensors
        [tensor([3., 3.]), tensor([3.])]
    """
    return _private(torch, f"_foreach_{operation}")(*arguments)


def non_persistent_buffers(module: nn.Module) -> set[str]:
    """Return the names of a module's non-persistent buffers, which ``state_dict()`` leaves out.

    Use it to copy or save a module without calling ``state_dict()``, which would call the user's hooks. The buffers of
    submodules are not included: call it for each of ``module.modules()``.

    Args:
        module: The module.

    Returns:
        The module's own set of names, for example ``{"mask"}``, empty if there are none; do not change it.

    Raises:
        UnsupportedConfigurationError: This version of torch has a different attribute.

    Example:
        >>> import torch
        >>> from pa_core.torch_names import non_persistent_buffers
        >>> module = torch.nn.Module()
        >>> module.register_buffer("mask", None, persistent=False)
        >>> non_persistent_buffers(module)
        {'mask'}
    """
    return cast("set[str]", _private(module, "_non_persistent_buffers_set"))


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether ``compile`` was called for a module, or ``torch.compile`` for its ``forward``, which has no public API.

    Args:
        module: The module.
    """
    by_method: object = _private(module, "_compiled_call_impl")
    return by_method is not None or hasattr(module.forward, "_torchdynamo_orig_callable")


def version_of(tensor: Tensor) -> int:
    """Return a number that grows with each recorded change in place; otherwise values would have to be compared.

    Args:
        tensor: The tensor.
    """
    return cast("int", _private(tensor, "_version"))


def has_gradient_hooks(tensor: Tensor) -> bool:
    """Whether a tensor has hooks; torch's public API can only register them.

    Args:
        tensor: The tensor.
    """
    return bool(_private(tensor, "_backward_hooks") or _private(tensor, "_post_accumulate_grad_hooks"))


def dtypes_of_outputs(node: Node) -> set[torch.dtype]:
    """Return the dtypes of a node's outputs in the forward pass, which ``metadata`` of a node does not contain.

    Args:
        node: A node of a graph.
    """
    return {metadata.dtype for metadata in _private(node, "_input_metadata")}


def calls_step_hooks(optimizer: Optimizer) -> bool:
    """Whether an optimizer calls its hooks; it does not if it skips the constructor of its base class.

    Args:
        optimizer: The optimizer. ``register_step_pre_hook`` does not raise an error then.
    """
    return getattr(type(optimizer).step, "hooked", False) and hasattr(optimizer, "_optimizer_step_pre_hooks")


def has_iterator(loader: object) -> bool:
    """Whether a ``DataLoader`` keeps its workers between epochs, and has started them; the public API does not say.

    Args:
        loader: The loader.
    """
    return getattr(loader, "_iterator", None) is not None


def forget_iterator(loader: object) -> None:
    """Let a ``DataLoader`` start its workers again, which it would otherwise never replace.

    Args:
        loader: The loader.
    """
    if has_iterator(loader):
        vars(loader)["_iterator"] = None


def has_ended(iterator: object) -> bool:
    """Whether an iterable dataset ended with the last batch; the iterator raises ``StopIteration`` only later.

    Args:
        iterator: The iterator of a ``DataLoader``; for any other iterator, the result is False.
    """
    return getattr(getattr(iterator, "_dataset_fetcher", None), "ended", False) is True


def _sharding_state(module: nn.Module) -> Any:
    return _private(module, "_get_fsdp_state")()


def computed_dtype(module: nn.Module) -> torch.dtype | None:
    """Return the precision in which ``fully_shard`` lets a module compute; None for the precision of its weights.

    Args:
        module: A module that ``fully_shard`` was applied to. It accepts the policy, but does not return it.
    """
    dtype: torch.dtype | None = _private(_sharding_state(module), "_mp_policy").param_dtype
    return dtype


def sharding_groups(module: nn.Module) -> list[Any]:
    """Return torch's groups of parameters that are gathered together; the public API does not have them.

    Args:
        module: A module that ``fully_shard`` was applied to.
    """
    state = _sharding_state(module)
    several: Iterable[Any] | None = getattr(state, "_fsdp_param_groups", None)  # from torch 2.13 on
    groups = [_private(state, "_fsdp_param_group")] if several is None else several
    return [group for group in groups if group is not None]


def gradient_divide_factor(group: Any) -> float | None:
    """Return the divisor of a group's gradients; ``set_gradient_divide_factor`` can only set it.

    Args:
        group: A group, from ``sharding_groups``.
    """
    factor: float | None = _private(group, "gradient_divide_factor")
    return factor


def num_averaged_over(group: Any) -> int:
    """Return the number of processes that a group averages gradients over; meshes of tensors may have more dimensions.

    Args:
        group: A group, from ``sharding_groups``.
    """
    return int(_private(group, "mesh_info").mesh.size())


def record_dtypes(group: Any) -> None:
    """Let torch record the dtypes of a group's parameters again, which it does only before the first forward pass.

    Args:
        group: A group, from ``sharding_groups``.
    """
    _private(group, "_init_mp_dtypes")()


def parameters_of_group(group: Any) -> list[Any]:
    """Return torch's records of the parameters of a group, for the functions below.

    Args:
        group: A group, from ``sharding_groups``.
    """
    return cast("list[Any]", _private(group, "fsdp_params"))


def sharded_parameter(sharded: Any) -> DTensor:
    """Return the sharded parameter; while it is gathered, the model has a different parameter in its place.

    Args:
        sharded: One of ``parameters_of_group``.
    """
    return cast("DTensor", _private(sharded, "sharded_param"))


def gathered_parameter(sharded: Any) -> Tensor | None:
    """Return the gathered parameter in graphs, or None before it is gathered; ``unshard`` would gather it again.

    Args:
        sharded: One of ``parameters_of_group``.
    """
    _private(sharded.__class__, "unsharded_param")
    gathered: Tensor | None = getattr(sharded, "unsharded_param", None)
    return gathered


def has_local_gradient(sharded: Any) -> bool:
    """Whether this process has a gradient before its exchange; ``grad`` is the gradient after the exchange.

    Args:
        sharded: One of ``parameters_of_group``.
    """
    gathered = gathered_parameter(sharded)
    accumulated = _private(sharded, "unsharded_accumulated_grad")
    return accumulated is not None or (gathered is not None and gathered.grad is not None)


def forget_local_gradients(group: Any) -> None:
    """Drop gradients before their exchange; ``reset_iter_state``, since torch 2.14, does so only for a root.

    Args:
        group: A group, from ``sharding_groups``.
    """
    _private(group, "_partial_reduce_output")
    group._partial_reduce_output = None
    for parameter in parameters_of_group(group):
        gathered = gathered_parameter(parameter)
        if gathered is not None:
            gathered.grad = None
        if has_local_gradient(parameter):  # before torch 2.15, it has a separate attribute
            parameter.unsharded_accumulated_grad = None
