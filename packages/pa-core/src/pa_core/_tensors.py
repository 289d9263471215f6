"""Functions for tensors of models and optimizers, sharded tensors, unwrapped models and state dicts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import TypeIs

from pa_core._torch import BUFFERS, CHILDREN, COMPILED, PARAMETERS
from pa_core.errors import ConfigurationError
from pa_core.types import SupportsStateDict


def parameters_of_module(module: nn.Module) -> list[nn.Parameter]:
    """Return ``[*module.parameters()]`` in a third of the time, because torch also builds the names.

    Args:
        module: A module. Overrides of ``named_parameters`` are not called.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> [parameter.numel() for parameter in parameters_of_module(nn.Sequential(layer, nn.ReLU(), layer))]
        [2, 1]
    """
    found: dict[int, nn.Parameter] = {}
    _add_tensors(PARAMETERS, module, found, set())
    return list(found.values())


def buffers_of_module(module: nn.Module) -> list[Tensor]:
    """Return ``[*module.buffers()]``, faster than torch; see ``parameters_of_module``.

    Args:
        module: A module.
    """
    found: dict[int, Tensor] = {}
    _add_tensors(BUFFERS, module, found, set())
    return list(found.values())


def _add_tensors(kind: str, module: nn.Module, found: dict[int, Any], seen: set[int]) -> None:
    """Add the tensors of a module and of the modules in it, each once; modules may contain themselves."""
    seen.add(id(module))
    attributes = vars(module)
    for tensor in attributes[kind].values():
        if tensor is not None:
            found[id(tensor)] = tensor
    for child in attributes[CHILDREN].values():
        if child is not None and id(child) not in seen:
            _add_tensors(kind, child, found, seen)


_CLEARED_BY_TORCH: Final = Optimizer.zero_grad


def clear_gradients(optimizer: Optimizer) -> None:
    """Set the gradients of an optimizer's parameters to None, like its ``zero_grad()``.

    The method of torch takes 10 microseconds to enter and to leave ``torch._dynamo`` and a record for the profiler,
    which is as long as a whole layer of a small network takes. If an optimizer has a different method, it is called.

    Args:
        optimizer: The optimizer.
    """
    if getattr(optimizer.zero_grad, "__func__", None) is not _CLEARED_BY_TORCH:
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Iterate over the parameters that an optimizer updates, in the order of its groups.

    Example:
        >>> import torch
        >>> one, two = torch.nn.Linear(2, 1), torch.nn.Linear(3, 1, bias=False)
        >>> groups = [{"params": one.parameters()}, {"params": two.parameters(), "lr": 0.5}]
        >>> [tuple(parameter.shape) for parameter in parameters_of(torch.optim.SGD(groups, lr=0.1))]
        [(1, 2), (1,), (1, 3)]
    """
    for group in optimizer.param_groups:
        yield from group["params"]


def named_parameters(models: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """Return the parameters of all models by name, including parameters that have several names.

    Args:
        models: The models without wrappers. A single model keeps its own names; with several models, each begins with
            the name of its model.

    Example:
        >>> generator, discriminator = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        >>> list(named_parameters({"model": generator}))
        ['weight']
        >>> list(named_parameters({"generator": generator, "discriminator": discriminator}))
        ['generator.weight', 'discriminator.weight']
    """
    return {
        inner if len(models) == 1 else f"{name}.{inner}": parameter
        for name, model in models.items()
        for inner, parameter in model.named_parameters(remove_duplicate=False)
    }


def first_names(parameters: Mapping[str, Tensor]) -> dict[int, str]:
    """Return the first name of each parameter by its identity; tied weights have several.

    Args:
        parameters: The parameters by name.
    """
    return {id(parameter): name for name, parameter in reversed(list(parameters.items()))}


def names_by_group(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> list[list[str | None]]:
    """Return the names of the parameters of each group of an optimizer; None for a parameter that is in no model.

    Args:
        optimizer: The optimizer.
        parameters: The parameters of all models, by name.
    """
    names = first_names(parameters)
    return [[names.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]


def parameters_beside(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the parameters of an optimizer that are in no model.

    Args:
        optimizer: The optimizer.
        parameters: The parameters of all models, by name.
    """
    known = first_names(parameters)
    return [parameter for parameter in parameters_of(optimizer) if id(parameter) not in known]


def learning_rates_of(optimizer: Optimizer) -> list[float | Tensor]:
    """Return the learning rates of the groups that have a rate.

    Example:
        >>> import torch
        >>> one, two = torch.nn.Linear(2, 1), torch.nn.Linear(3, 1)
        >>> groups = [{"params": one.parameters()}, {"params": two.parameters(), "lr": 0.5}]
        >>> max(learning_rates_of(torch.optim.SGD(groups, lr=0.1)))
        0.5
    """
    return [group["lr"] for group in optimizer.param_groups if "lr" in group]


if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(value: object) -> TypeGuard[DTensor]:
    """Return whether a value is a sharded tensor, a ``DTensor`` whose parts are on different processes.

    Check it in code that reads or changes the parameters of any model, because the shape of a sharded parameter is the
    shape of the whole tensor, but this process holds only a part of the values. ``is_sharded_module`` answers the
    question for a whole module. It works without a process group.

    Args:
        value: Any object.

    Returns:
        True for a ``DTensor``; False for a plain tensor and for any other object.

    Example:
        >>> import torch
        >>> from pa_core.sharding import is_sharded
        >>> is_sharded(torch.nn.Linear(2, 1).weight)
        False
    """
    tensor: Any = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(value, tensor.DTensor)


def is_sharded_module(module: nn.Module) -> bool:
    """Return whether torch's ``fully_shard`` has split parameters of a module over the processes.

    Check it before you copy or export a model, because every process must then take part in gathering its parameters.
    Within a trainer, ``trainer.is_sharded`` is also True if a model will be sharded when the run starts. This function
    does not communicate.

    Args:
        module: The module; all of its submodules are checked.

    Returns:
        True if the module or a submodule was passed to ``fully_shard``, or any parameter is a ``DTensor``.

    Example:
        >>> import torch
        >>> from pa_core.sharding import is_sharded_module
        >>> is_sharded_module(torch.nn.Linear(2, 1))
        False
    """
    return any(map(is_unit, module.modules())) or any(map(is_sharded, module.parameters()))


def is_unit(module: nn.Module) -> bool:
    """Whether ``fully_shard`` was called for a module."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def reshard(module: nn.Module) -> None:
    """Free the gathered parameters of a sharded module, so that each process holds only its own part of them again.

    Call it before you change parameters outside of a training step. A forward pass gathers whole parameters, and
    without a backward pass, for example in an evaluation, some of them stay whole; changes to these would be lost.
    Nothing is sent to other processes, and plain modules are not changed.

    Args:
        module: A module, sharded or not; its submodules are included.

    Example:
        >>> import torch
        >>> from pa_core.sharding import local_pieces, reshard
        >>> model = torch.nn.Linear(2, 1)
        >>> reshard(model)  # a plain module does not change
        >>> for part in local_pieces(model.parameters()):
        ...     _ = part.detach().mul_(0.5)
    """
    for unit in filter(is_unit, module.modules()):
        cast("Any", unit).reshard()


def local_piece(tensor: Tensor) -> Tensor:
    """Return the part of a sharded tensor that this process holds, or a plain tensor itself.

    Use it to read or change weights in place without communication, no matter whether the model is sharded. The result
    shares memory with the tensor. Call ``reshard`` for the module first if you change parameters.

    Args:
        tensor: A sharded or plain tensor, on any device.

    Returns:
        A plain tensor. Its shape is the shape of this process's part, which may differ between processes and may have
        no rows; for a plain tensor it is the same object.

    Example:
        >>> import torch
        >>> from pa_core.sharding import local_piece
        >>> weight = torch.nn.Linear(2, 1).weight
        >>> local_piece(weight) is weight
        True
    """
    return tensor.to_local() if is_sharded(tensor) else tensor


def local_pieces(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the part of each tensor that this process holds, for code that changes many weights in place.

    It is ``local_piece`` for several tensors, for example before a single call of ``torch_names.foreach``. The results
    share memory with the tensors. Call ``reshard`` for the module first if you change parameters.

    Args:
        tensors: Sharded or plain tensors, for example ``model.parameters()``.

    Returns:
        A list of plain tensors in the same order. Plain tensors are included as they are.

    Example:
        >>> import torch
        >>> from pa_core.sharding import local_pieces
        >>> model = torch.nn.Linear(2, 1)
        >>> for part in local_pieces(model.parameters()):
        ...     _ = part.detach().zero_()
        >>> model.bias.item()
        0.0
    """
    return [local_piece(tensor) for tensor in tensors]


def whole_tensor(tensor: Tensor) -> Tensor:
    """Return the whole tensor; for a sharded tensor, every process must call this, and waits for the others."""
    if not is_sharded(tensor):
        return tensor
    device_type = tensor.device_mesh.device_type
    if tensor.device.type != device_type:  # offloaded to the host, where the backend may not exchange it
        tensor = cast("DTensor", tensor.to(device_type))
    return tensor.full_tensor()


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the values of a tensor on any device and in any layout as bytes.

    Args:
        tensor: A tensor without a graph.
    """
    flat = tensor.cpu().contiguous().as_strided((tensor.numel(),), (1,))  # strides of dimensions of one element vary
    return flat.view(torch.uint8).numpy().data


def unwrap_model(model: nn.Module, *, keep_torch_compile: bool = True) -> nn.Module:
    """Return the model inside distributed wrappers and, if requested, inside ``torch.compile``.

    Use it for the attributes and the state dict of your class, or to export a model that you wrapped yourself; the keys
    of a wrapped model's state dict have a prefix. For the model of a trainer, ``trainer.get_model()`` does the same.
    ``DistributedDataParallel``, ``DataParallel`` and compiled modules are unwrapped; a sharded model has no wrapper and
    is returned as it is.

    Args:
        model: A model, wrapped or not.
        keep_torch_compile: By default (True), a compiled model stays compiled, so that calling it stays fast. False
            returns the original. A compiled model around a distributed wrapper is never kept, because the wrapper is a
            part of it.

    Returns:
        The model itself, not a copy.

    Example:
        >>> import torch
        >>> from pa_core import unwrap_model
        >>> model = torch.nn.Linear(2, 1)
        >>> unwrap_model(torch.nn.DataParallel(model)) is model
        True
    """
    inside = compiled_from(model)
    if inside is not None:
        inner = unwrap_model(inside, keep_torch_compile=keep_torch_compile)
        return model if keep_torch_compile and inner is inside else inner
    if isinstance(model, (DistributedDataParallel, DataParallel)):
        return unwrap_model(cast("Any", model).module, keep_torch_compile=keep_torch_compile)
    return model


def compiled_from(model: nn.Module) -> nn.Module | None:
    """Return the original of a module compiled by ``torch.compile`` or by accelerate's regional compilation, or None.

    Checking the class would import the compiler. A copy of a module whose repeated blocks are compiled keeps its
    original as a plain attribute.
    """
    attributes = vars(model)
    modules = attributes.get(CHILDREN, {})  # scripted modules have a mapping without get
    found = modules[COMPILED] if COMPILED in modules else attributes.get(COMPILED)
    return cast("nn.Module | None", found)


def missing_methods(value: object) -> list[str]:
    """Return which of ``state_dict`` and ``load_state_dict`` are not methods of an object, by name."""
    return [name for name in ("state_dict", "load_state_dict") if not callable(getattr(value, name, None))]


def supports_state_dict(value: object) -> TypeIs[SupportsStateDict]:
    """Whether the state of an object can be saved and restored."""
    return not missing_methods(value)


def frozen_names(state: Mapping[str, Any]) -> set[str]:
    """Return the names of the frozen parameters in the result of ``state_dict(keep_vars=True)``."""
    return {name for name, value in state.items() if isinstance(value, nn.Parameter) and not value.requires_grad}


def without_frozen(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a state dict that training changes: all except frozen parameters.

    Args:
        state: The result of ``state_dict(keep_vars=True)`` of a model.

    Raises:
        ConfigurationError: All parameters are frozen.
    """
    frozen = frozen_names(state)
    trained = {name: tensor for name, tensor in state.items() if name not in frozen}
    if any(isinstance(parameter, nn.Parameter) for parameter in trained.values()):
        return trained
    raise ConfigurationError(
        "All parameters of the model are frozen, so that trainable_only=True leaves nothing to save. Call it while "
        "the adapter is trainable, or leave out trainable_only."
    )
