"""How models are to be sharded: what a plugin of accelerate, its launcher or a ``ParallelismConfig`` requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from pa_core import _accelerate
from pa_core.user_warnings import warn_user

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy


@dataclass(frozen=True)
class ShardingSettings:
    """How the models of a run are sharded.

    Which modules are blocks, gathered one at a time, is said by one of the first three; repeated layers are found where
    none of them is set.

    Attributes:
        block_classes: The names of the classes of blocks.
        min_num_params: The number of parameters from which a module is a block.
        is_block: Says of a module whether it is a block, or follows the conventions of ``torch.distributed.fsdp.wrap``.
        reshard_after_forward: Whether the whole weights of a block are freed between its forward and backward pass.
        precision: What is computed and averaged in which dtype; None follows the precision of the run.
        offloads_to_cpu: Whether the pieces, their gradients and what the optimizer keeps stay in host memory.
        checkpoints_activations: Whether the activations inside a block are computed again in the backward pass.
        offloads_activations: Whether the inputs of blocks that are computed again wait in host memory.
        ignored_modules: Modules that stay whole on each process, or a regular expression that matches their names.
        num_replicas: The number of groups of processes that each have all pieces of the model.
    """

    block_classes: tuple[str, ...] = ()
    min_num_params: int = 0
    is_block: Callable[..., bool] | None = None
    reshard_after_forward: bool = True
    precision: MixedPrecisionPolicy | None = None
    offloads_to_cpu: bool = False
    checkpoints_activations: bool = False
    offloads_activations: bool = False
    ignored_modules: tuple[nn.Module, ...] | str = ()
    num_replicas: int = 1


def read_settings(accelerator: _accelerate.AcceleratorLike, arguments: dict[str, Any]) -> ShardingSettings | None:
    """Return how the models of a run are to be sharded; None if nothing requests it.

    Args:
        accelerator: The accelerator of the trainer.
        arguments: What it was made with, from ``compatibility.create_accelerator``.
    """
    plugin = _accelerate.sharding_plugin(accelerator, arguments)
    parallelism = _accelerate.parallelism_config(accelerator, arguments)
    num_replicas = 1 if parallelism is None else int(parallelism.dp_replicate_size)
    if plugin is not None:
        return _settings_of_plugin(plugin, num_replicas)
    if parallelism is not None and parallelism.dp_shard_size > 1:
        return ShardingSettings(num_replicas=num_replicas)
    return None


def _settings_of_plugin(plugin: Any, num_replicas: int) -> ShardingSettings:
    from torch.distributed.fsdp import CPUOffloadPolicy
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

    if plugin.param_init_fn is not None:
        warn_user(
            "param_init_fn has no effect. Weights on the meta device are made by init_weights() of the model, or by "
            "reset_parameters() of its modules."
        )
    policy: Any = plugin.auto_wrap_policy
    function: Any = getattr(policy, "func", policy)  # of a functools.partial
    by_class, by_size = function is transformer_auto_wrap_policy, function is size_based_auto_wrap_policy
    ignored: str | Iterable[nn.Module] | None = plugin.ignored_modules
    return ShardingSettings(
        block_classes=tuple(plugin.transformer_cls_names_to_wrap or ()) if by_class else (),
        min_num_params=int(plugin.min_num_params or 0) if by_size else 0,
        is_block=None if by_class or by_size else policy,
        reshard_after_forward=bool(plugin.reshard_after_forward),
        precision=plugin.mixed_precision_policy,
        offloads_to_cpu=isinstance(plugin.cpu_offload, CPUOffloadPolicy),
        checkpoints_activations=bool(plugin.activation_checkpointing),
        offloads_activations=bool(getattr(plugin, "activation_checkpointing_offload", False)),
        ignored_modules=ignored if isinstance(ignored, str) else tuple(ignored or ()),
        num_replicas=num_replicas,
    )
