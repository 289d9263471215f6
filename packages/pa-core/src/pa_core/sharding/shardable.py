"""What a model needs to be sharded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor, nn

from pa_core._torch import has_gradient_hooks
from pa_core.errors import UnsupportedConfigurationError
from pa_core.sharding.sharding_plan import modules_of_block

__all__ = ["prepare_for_sharding", "require_shardable"]


def require_shardable(model: nn.Module, blocks: Collection[nn.Module], whole: Collection[nn.Parameter]) -> None:
    """Raise an error for a model that would fail in its first step, or lose what was set on its parameters.

    Args:
        model: The module that is to be sharded.
        blocks: Its blocks.
        whole: The parameters that are not sharded.

    Raises:
        UnsupportedConfigurationError: It cannot be sharded.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    kept = {id(parameter) for parameter in whole}
    for block in [*blocks, model]:
        modules = modules_of_block(block, blocks)
        parameters = [one for module in modules for one in module.parameters(recurse=False) if id(one) not in kept]
        _require_one_dtype(parameters, names)
        for module in modules:
            if getattr(module, "sparse", False):
                raise _sparse(module)
    for parameter in model.parameters():
        if id(parameter) not in kept and has_gradient_hooks(parameter):
            raise _hooks(names[id(parameter)])


def _require_one_dtype(parameters: Iterable[nn.Parameter], names: Mapping[int, str]) -> None:
    by_dtype = {one.dtype: names[id(one)] for one in parameters if one.requires_grad}
    if len(by_dtype) > 1:
        raise UnsupportedConfigurationError(
            "The trainable parameters of a block are gathered together, and have to have one dtype.",
            given=", ".join(f"{name} in {str(dtype).removeprefix('torch.')}" for dtype, name in by_dtype.items()),
            do='Convert the model, for example model.float(), and pass mixed_precision="bf16" to compute in bf16.',
        )


def _sparse(module: nn.Module) -> UnsupportedConfigurationError:
    return UnsupportedConfigurationError(
        f"{type(module).__name__} has sparse gradients, which cannot be split over processes. Leave sparse=True out, "
        "or name the module in ignored_modules of the plugin."
    )


def _hooks(name: str) -> UnsupportedConfigurationError:
    return UnsupportedConfigurationError(
        "Hooks of a parameter would be lost: sharding puts a new parameter in its place.",
        given=f"a hook that was registered on {name}",
        do="Shard the model yourself with fully_shard, and register the hooks on the parameters that it then has.",
    )


def prepare_for_sharding(tensor: Tensor, device: torch.device) -> None:
    """Place a parameter or buffer on the device of the run, in an order of its elements that can be split.

    Args:
        tensor: A tensor of the model, which stays the same object.
        device: The device of the run.
    """
    # As torch does: a channels-last order cannot be split.
    tensor.data = tensor.data.to(device).contiguous()
