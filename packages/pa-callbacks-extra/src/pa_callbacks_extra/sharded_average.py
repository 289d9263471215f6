"""The average of a sharded model: the shards of each process, without the model's code."""

from __future__ import annotations

from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from pa_checkpoint import StoredTensor
from pa_core import ConfigurationError
from pa_core.sharding import is_sharded
from pa_core.torch_names import CHILDREN, non_persistent_buffers


class ShardedAverage(nn.Module):
    """Copies of the tensors of a sharded model, with its names and its sharding.

    A sharded model cannot be copied, because its layers are connected to the other processes.

    Args:
        model: The sharded model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        _copy_tensors(model, self, {}, {model: self})
        cast("Any", self).register_load_state_dict_pre_hook(_take_pieces)  # torch does not annotate it
        self.eval()

    @override
    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigurationError(
            "The average of a sharded model has only weights, so it cannot be called. Call the model within "
            "ema.applied_to(model)."
        )


def averaged_dtype(tensor: Tensor) -> torch.dtype:
    """Return the precision in which a tensor is averaged, at least float32."""
    is_small = tensor.is_floating_point() and tensor.element_size() < torch.float32.itemsize
    return torch.float32 if is_small else tensor.dtype


def _copy_tensors(
    source: nn.Module, target: nn.Module, made: dict[int, Tensor], modules: dict[nn.Module, nn.Module]
) -> None:
    """Give a module copies of the tensors of another module and its children; shared tensors stay shared."""
    for name, parameter in source.named_parameters(recurse=False, remove_duplicate=False):
        if id(parameter) not in made:
            made[id(parameter)] = nn.Parameter(_copied(parameter), requires_grad=False)
        target.register_parameter(name, made[id(parameter)])  # type: ignore[arg-type]  # the values are parameters  # pyright: ignore[reportArgumentType]
    left_out = non_persistent_buffers(source)
    for name, buffer in source.named_buffers(recurse=False, remove_duplicate=False):
        made.setdefault(id(buffer), _copied(buffer))
        target.register_buffer(name, made[id(buffer)], persistent=name not in left_out)
    children: dict[str, nn.Module | None] = vars(source)[CHILDREN]  # including children with several names
    for name, child in children.items():
        if child is None:
            continue
        if child not in modules:
            modules[child] = nn.Module()
            _copy_tensors(child, modules[child], made, modules)
        target.add_module(name, modules[child])


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to(averaged_dtype(tensor), copy=True)


def _take_pieces(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_args: object) -> None:
    """Let each process take its shards of whole tensors, such as the tensors of an unsharded model."""
    for name, own in module.state_dict().items():
        saved = state_dict.get(prefix + name)
        if is_sharded(own) and isinstance(saved, Tensor) and not is_sharded(saved):
            state_dict[prefix + name] = StoredTensor.of(saved).like(own)
