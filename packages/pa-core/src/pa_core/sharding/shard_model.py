"""Splitting the parameters of a model over the processes, in place."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_core import _accelerate
from pa_core._torch import PARAMETERS
from pa_core.distributed.collectives import broadcast_tensors, num_processes
from pa_core.model_tensors import is_sharded_module, unwrap_model
from pa_core.sharding.checkpointed_blocks import checkpoint_activations
from pa_core.sharding.meta_weights import MetaWeights, NamedTensor, allocate, has_meta_tensors, tensors_of
from pa_core.sharding.remapped_optimizer import RemappedOptimizers
from pa_core.sharding.settings import ShardingSettings
from pa_core.sharding.shardable import prepare_for_sharding, require_shardable
from pa_core.sharding.sharding_plan import blocks_of, modules_of_block, whole_parameters

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

    Every process must call this. A model that is sharded already stays as it is, and on one process nothing is split.
    Weights on the meta device are made. No more than one block is whole on the device at a time.

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
    on_one_process = accelerator.num_processes == 1
    if is_sharded_module(module) or (on_one_process and not has_meta_tensors(module)):
        return
    device = _accelerate.device_of(accelerator)
    replacing = _Replacing(module, device, RemappedOptimizers(optimizers))
    if on_one_process:
        replacing.all_parameters(blocks_of(module, settings))
        return
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    of_blocks, of_model = _precision(settings, accelerator)
    # Asked anew for each block: parameters on the meta device are replaced.
    whole = partial(whole_parameters, module, settings, in_half_precision=of_blocks.param_dtype is not None)
    blocks = blocks_of(module, settings)
    require_shardable(module, blocks, whole())
    if settings.checkpoints_activations:
        checkpoint_activations(blocks, offloads=settings.offloads_activations)
    common: dict[str, Any] = {
        "mesh": _mesh(accelerator, settings),
        # On a CPU, there is nowhere else to keep them.
        "offload_policy": CPUOffloadPolicy() if settings.offloads_to_cpu and device.type != "cpu" else OffloadPolicy(),
    }
    for block in blocks:
        with replacing.parameters_of(modules_of_block(block, blocks)):
            reshard = settings.reshard_after_forward
            fully_shard(block, mp_policy=of_blocks, reshard_after_forward=reshard, ignored_params=whole(), **common)
    with replacing.parameters_of(modules_of_block(module, blocks)):
        # Torch keeps what is left of the model whole after the forward pass: the backward pass begins with it.
        fully_shard(module, mp_policy=of_model, ignored_params=whole(), **common)


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
    """What is computed in which dtype in the blocks, and around them: there the outputs are fp32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if settings.precision is not None:
        return settings.precision, settings.precision
    if _accelerate.computed_precision(accelerator) == "no":
        return MixedPrecisionPolicy(), MixedPrecisionPolicy()
    inside = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return inside, MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float32)


class _Replacing:
    """Replaces the tensors of modules in the same way on all processes.

    Args:
        model: The model that is sharded.
        device: The device of the run.
        remapped: The optimizers of the model.
    """

    def __init__(self, model: nn.Module, device: torch.device, remapped: RemappedOptimizers) -> None:
        self._model = model
        self._device = device
        self._remapped = remapped
        self._meta_weights = MetaWeights(model)
        tensors = tensors_of(model.modules())
        # What the first process has: others may have left the weights to it.
        is_real = torch.tensor([not one.tensor.is_meta for one in tensors], dtype=torch.uint8, device=device)
        _broadcast([is_real])
        self._real = {id(one.tensor) for one, flag in zip(tensors, is_real, strict=True) if flag}

    def all_parameters(self, blocks: Sequence[nn.Module]) -> None:
        """Make the weights of all blocks, in the order of several processes, so that they are the same.

        Args:
            blocks: The blocks of the model.
        """
        for block in [*blocks, self._model]:
            with self.parameters_of(modules_of_block(block, blocks)):
                pass

    @contextmanager
    def parameters_of(self, modules: Sequence[nn.Module]) -> Generator[None]:
        """Give all processes the tensors of rank zero, and what is made of them within the context to the optimizers.

        Args:
            modules: Those that have the tensors themselves.
        """
        before = tensors_of(modules)
        self._make_missing(before)
        tensors = list({id(one.tensor): one.tensor for one in tensors_of(modules)}.values())
        for tensor in tensors:
            prepare_for_sharding(tensor, self._device)
        _broadcast(tensors)
        yield
        for one in before:
            after = vars(one.module)[one.kind][one.name]
            if one.kind == PARAMETERS and after is not one.tensor:
                _copy_attributes(one.tensor, after)
                self._remapped.replace(one.tensor, after)

    def _make_missing(self, tensors: Sequence[NamedTensor]) -> None:
        unmade = [one for one in tensors if id(one.tensor) not in self._real]
        if unmade:
            self._meta_weights.make(unmade, self._device)
        allocate((one for one in tensors if id(one.tensor) in self._real and one.tensor.is_meta), self._device)


def _broadcast(tensors: Sequence[Tensor]) -> None:
    if num_processes() > 1:
        broadcast_tensors(tensors)


def _copy_attributes(before: object, after: object) -> None:
    """Copy what libraries have noted on a parameter."""
    vars(after).update(vars(before))
