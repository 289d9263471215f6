"""The only module that uses private names of torch, each with the public way that is not enough.

Nothing is looked up when this module is imported. Where a version of torch lacks a name, what needs it says so, and
``tests/test_torch_names.py`` of this distribution fails. Attributes that torch does not document count as private.
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
BUFFERS: Final = "_buffers"
CHILDREN: Final = "_modules"
"""Where a module has these in its ``vars``.

``named_parameters`` and its like make a name for each, which takes three times as long, and leave out second names.
"""

COMPILED: Final = "_orig_mod"
"""Where a compiled module has the one it was made of. Checking the class would import the compiler."""

INPUT_CHECK: Final = "_check_input_dim"
"""What a batch norm layer calls to check its input; a layer derived from it may have another rule than its class."""

NESTED_SCHEDULERS: Final = "_schedulers"
"""Where ``SequentialLR`` and ``ChainedScheduler`` have their schedulers; the constructor alone is documented."""

_MISSING: Final = object()


@contextmanager
def before_collectives(call: Callable[[str], None]) -> Generator[None]:
    """Within the context, call a function with the name of each operation between processes, before it begins.

    ``CommDebugMode`` of torch tells their number afterwards, when one of them may wait for ever.

    Args:
        call: What is called; an error that it raises is raised by the operation.
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
    """Return an attribute of an object of torch.

    Raises:
        UnsupportedConfigurationError: This version of torch has none of this name.
    """
    found = getattr(owner, name, _MISSING)
    if found is _MISSING:
        name_of_owner = getattr(owner, "__name__", type(owner).__name__)
        raise UnsupportedConfigurationError(
            "This run needs a part of torch that has no public name, and that this version of torch does not have.",
            given=f"torch {torch.__version__}, without {name_of_owner}.{name}",
            expected=f"a version that was tried: torch {OLDEST_TRIED} to {NEWEST_TRIED}",
            do=f'Install one: pip install "torch=={NEWEST_TRIED}.*". A newer pa-core may know newer versions.',
        )
    return found


def foreach(operation: str, *arguments: Any) -> Any:
    """Apply an operation to lists of tensors at once, as torch's optimizers do; tensor by tensor, each is a call.

    Args:
        operation: Its name in torch without ``_foreach_``, such as ``"mul_"``.
        *arguments: What it takes. No list may be empty.

    Example:
        >>> tensors = [torch.ones(2), torch.ones(1)]
        >>> _ = foreach("mul_", tensors, 3.0)
        >>> tensors
        [tensor([3., 3.]), tensor([3.])]
    """
    return _private(torch, f"_foreach_{operation}")(*arguments)


def non_persistent_buffers(module: nn.Module) -> set[str]:
    """Return the names of a module's own buffers that its state dict leaves out; making one calls the user's hooks.

    Args:
        module: The module.
    """
    return cast("set[str]", _private(module, "_non_persistent_buffers_set"))


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether ``compile`` was called for a module, or ``torch.compile`` for its ``forward``; nothing public tells.

    Args:
        module: The module.
    """
    by_method: object = _private(module, "_compiled_call_impl")
    return by_method is not None or hasattr(module.forward, "_torchdynamo_orig_callable")


def version_of(tensor: Tensor) -> int:
    """Return a number that grows with each change in place that torch notes; without it, values would be compared.

    Args:
        tensor: The tensor.
    """
    return cast("int", _private(tensor, "_version"))


def has_gradient_hooks(tensor: Tensor) -> bool:
    """Whether somebody registered a hook on a tensor; torch only lets hooks be registered.

    Args:
        tensor: The tensor.
    """
    return bool(_private(tensor, "_backward_hooks") or _private(tensor, "_post_accumulate_grad_hooks"))


def dtypes_of_outputs(node: Node) -> set[torch.dtype]:
    """Return the types of what the forward pass of a node has returned; ``metadata`` of a node has other things.

    Args:
        node: A node of a graph.
    """
    return {metadata.dtype for metadata in _private(node, "_input_metadata")}


def calls_step_hooks(optimizer: Optimizer) -> bool:
    """Whether an optimizer calls its hooks: one that leaves out the constructor of its base class does not.

    Args:
        optimizer: The optimizer. ``register_step_pre_hook`` itself does not tell.
    """
    return getattr(type(optimizer).step, "hooked", False) and hasattr(optimizer, "_optimizer_step_pre_hooks")


def has_iterator(loader: object) -> bool:
    """Whether a ``DataLoader`` keeps its workers between epochs, and has started them; nothing public tells.

    Args:
        loader: The loader.
    """
    return getattr(loader, "_iterator", None) is not None


def forget_iterator(loader: object) -> None:
    """Let a ``DataLoader`` start its workers again, which it would otherwise keep for as long as it lives.

    Args:
        loader: The loader.
    """
    if has_iterator(loader):
        vars(loader)["_iterator"] = None


def has_ended(iterator: object) -> bool:
    """Whether an iterable dataset was read to its end for the last batch; the iterator itself raises only later.

    Args:
        iterator: The iterator of a ``DataLoader``. One of another kind has not ended.
    """
    return getattr(getattr(iterator, "_dataset_fetcher", None), "ended", False) is True


def _sharding_state(module: nn.Module) -> Any:
    return _private(module, "_get_fsdp_state")()


def computed_dtype(module: nn.Module) -> torch.dtype | None:
    """Return in which precision ``fully_shard`` lets a module compute, None for the precision of its weights.

    Args:
        module: A module that ``fully_shard`` was applied to. It only takes the policy.
    """
    dtype: torch.dtype | None = _private(_sharding_state(module), "_mp_policy").param_dtype
    return dtype


def sharding_groups(module: nn.Module) -> list[Any]:
    """Return torch's groups of parameters that are gathered together, for what follows; nothing public leads there.

    Args:
        module: A module that ``fully_shard`` was applied to.
    """
    state = _sharding_state(module)
    several: Iterable[Any] | None = getattr(state, "_fsdp_param_groups", None)  # from torch 2.13 on
    groups = [_private(state, "_fsdp_param_group")] if several is None else several
    return [group for group in groups if group is not None]


def gradient_divide_factor(group: Any) -> float | None:
    """Return by what a group divides gradients; ``set_gradient_divide_factor`` only takes it.

    Args:
        group: One of ``sharding_groups``.
    """
    factor: float | None = _private(group, "gradient_divide_factor")
    return factor


def num_averaged_over(group: Any) -> int:
    """Return over how many processes a group averages gradients; the meshes of its tensors may have other dimensions.

    Args:
        group: One of ``sharding_groups``.
    """
    return int(_private(group, "mesh_info").mesh.size())


def note_dtypes(group: Any) -> None:
    """Let torch look again at the parameters of a group, as it does once, before the first forward pass.

    Args:
        group: One of ``sharding_groups``.
    """
    _private(group, "_init_mp_dtypes")()


def parameters_of_group(group: Any) -> list[Any]:
    """Return what torch knows of each parameter of a group, for what follows.

    Args:
        group: One of ``sharding_groups``.
    """
    return cast("list[Any]", _private(group, "fsdp_params"))


def sharded_parameter(sharded: Any) -> DTensor:
    """Return the parameter of which this process has a piece; while it is gathered, the model has another one.

    Args:
        sharded: One of ``parameters_of_group``.
    """
    return cast("DTensor", _private(sharded, "sharded_param"))


def gathered_parameter(sharded: Any) -> Tensor | None:
    """Return what graphs have of a parameter, None before it was gathered; ``unshard`` would gather it again.

    Args:
        sharded: One of ``parameters_of_group``.
    """
    _private(sharded.__class__, "unsharded_param")
    gathered: Tensor | None = getattr(sharded, "unsharded_param", None)
    return gathered


def has_local_gradient(sharded: Any) -> bool:
    """Whether this process has a gradient that was not exchanged yet; ``grad`` of the parameter is the exchanged one.

    Args:
        sharded: One of ``parameters_of_group``.
    """
    gathered = gathered_parameter(sharded)
    accumulated = _private(sharded, "unsharded_accumulated_grad")
    return accumulated is not None or (gathered is not None and gathered.grad is not None)


def forget_local_gradients(group: Any) -> None:
    """Forget gradients that were not exchanged yet; ``reset_iter_state``, from torch 2.14 on, does so for a root alone.

    Args:
        group: One of ``sharding_groups``.
    """
    _private(group, "_partial_reduce_output")
    group._partial_reduce_output = None
    for parameter in parameters_of_group(group):
        gathered = gathered_parameter(parameter)
        if gathered is not None:
            gathered.grad = None
        if has_local_gradient(parameter):  # before torch 2.15, it has a place of its own
            parameter.unsharded_accumulated_grad = None
