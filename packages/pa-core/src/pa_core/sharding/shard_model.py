"""Splitting the parameters of a model over the processes, in place."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_core import _accelerate
from pa_core.distributed.collectives import broadcast_tensors
from pa_core.sharded_tensors import is_sharded, is_sharded_module
from pa_core.sharding.checkpointed_blocks import checkpoint_activations
from pa_core.sharding.remapped_optimizer import RemappedOptimizers
from pa_core.sharding.settings import ShardingSettings
from pa_core.sharding.shardable import prepare_for_sharding, require_shardable
from pa_core.sharding.sharding_plan import blocks_of, modules_of_block, whole_parameters
from pa_core.unwrapping import unwrap_model

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

__all__ = ["shard"]


def shard(
    model: nn.Module,
    settings: ShardingSettings,
    accelerator: _accelerate.AcceleratorLike,
    optimizers: Iterable[Optimizer],
) -> None:
    """Split the parameters of a model over all processes, in place, with the weights of rank zero.

    Every process must call this. On one process, and where the model is sharded already, it stays as it is. No more
    than one block is whole on the device at a time.

    Args:
        model: The user's module.
        settings: How it is sharded.
        accelerator: The accelerator of the run.
        optimizers: Those that train the model. They get the pieces in place of the whole parameters.

    Raises:
        ConfigurationError: The settings name modules that the model does not have.
        UnsupportedConfigurationError: The model has parameters that cannot be sharded.
    """
    module = unwrap_model(model, keep_torch_compile=False)
    if accelerator.num_processes == 1 or is_sharded_module(module):
        return
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    device = _accelerate.device_of(accelerator)
    remapped = RemappedOptimizers(optimizers)
    of_blocks, of_model = _precision(settings, accelerator)
    whole = whole_parameters(module, settings, in_half_precision=of_blocks.param_dtype is not None)
    blocks = blocks_of(module, settings)
    require_shardable(module, blocks, whole)
    if settings.checkpoints_activations:
        checkpoint_activations(blocks, offloads=settings.offloads_activations)
    common: dict[str, Any] = {
        "mesh": _mesh(accelerator, settings),
        "ignored_params": whole,
        # On a CPU, there is nowhere else to keep them.
        "offload_policy": CPUOffloadPolicy() if settings.offloads_to_cpu and device.type != "cpu" else OffloadPolicy(),
    }
    for block in blocks:
        with _replacing_parameters(modules_of_block(block, blocks), remapped, device):
            fully_shard(block, mp_policy=of_blocks, reshard_after_forward=settings.reshard_after_forward, **common)
    with _replacing_parameters(modules_of_block(module, blocks), remapped, device):
        # Torch keeps what is left of the model whole after the forward pass: the backward pass begins with it.
        fully_shard(module, mp_policy=of_model, **common)


def _mesh(accelerator: _accelerate.AcceleratorLike, settings: ShardingSettings) -> DeviceMesh:
    from torch.distributed.device_mesh import init_device_mesh

    kind, replicas = _accelerate.device_of(accelerator).type, settings.num_replicas
    if replicas == 1:
        return init_device_mesh(kind, (accelerator.num_processes,), mesh_dim_names=("shard",))
    sizes = replicas, accelerator.num_processes // replicas
    return init_device_mesh(kind, sizes, mesh_dim_names=("replicate", "shard"))


def _precision(
    settings: ShardingSettings, accelerator: _accelerate.AcceleratorLike
) -> tuple[MixedPrecisionPolicy, MixedPrecisionPolicy]:
    """What is computed in which dtype in the blocks, and around them: there the outputs are those of fp32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if settings.precision is not None:
        return settings.precision, settings.precision
    if _accelerate.computed_precision(accelerator) == "no":
        return MixedPrecisionPolicy(), MixedPrecisionPolicy()
    inside = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return inside, MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float32)


@contextmanager
def _replacing_parameters(
    modules: Sequence[nn.Module], remapped: RemappedOptimizers, device: torch.device
) -> Generator[None]:
    """Give all processes the tensors of rank zero, and what is made of them within the context to the optimizers."""
    before = [(module, name, one) for module in modules for name, one in module.named_parameters(recurse=False)]
    buffers = [buffer for module in modules for buffer in module.buffers(recurse=False)]
    tensors: dict[int, Tensor] = {id(one): one for one in [*(one for _, _, one in before), *buffers]}
    for tensor in tensors.values():
        prepare_for_sharding(tensor, device)
    broadcast_tensors(tensors.values())
    yield
    for module, name, whole in before:
        sharded = module.get_parameter(name)
        if is_sharded(sharded):
            vars(sharded).update(vars(whole))  # what libraries have noted on a parameter
            remapped.replace(whole, sharded)
