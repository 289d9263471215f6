"""The plan of sharding: the settings that accelerate requests, and the blocks of a model."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torch import nn

from pa_core import _accelerate
from pa_core._tensors import compiled_from
from pa_core.errors import ConfigurationError
from pa_core.user_warnings import warn_user

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from pa_core.sharding.deepspeed_config import DeepSpeedConfig


class ShardingSettings(NamedTuple):
    """Settings of the sharding of models.

    The first three settings choose the blocks, which are gathered separately; repeated layers are the blocks if none of
    them is set.

    Attributes:
        block_classes: The names of the classes of blocks.
        min_num_params: The number of parameters from which a module is a block.
        is_block: A function that returns whether a module is a block, or a policy of ``torch.distributed.fsdp.wrap``.
        reshard_after_forward: Whether the whole weights of a block are freed between its forward and backward pass.
        precision: The dtypes of computation and averaging; None uses the precision of the run.
        offloads_to_cpu: Whether the pieces, their gradients and the state of the optimizer stay in host memory.
        checkpoints_activations: Whether the activations inside a block are computed again in the backward pass.
        offloads_activations: Whether the inputs of blocks that are computed again are kept in host memory.
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
    """Return the settings of sharding; None if sharding is not requested.

    Args:
        accelerator: The accelerator of the trainer.
        arguments: The arguments of the Accelerator, from ``compatibility.create_accelerator``.
    """
    plugin = _accelerate.sharding_plugin(accelerator, arguments)
    parallelism = _accelerate.parallelism_config(accelerator, arguments)
    num_replicas = 1 if parallelism is None else int(parallelism.dp_replicate_size)
    if plugin is not None:
        return _settings_of_plugin(plugin, num_replicas)
    deepspeed: DeepSpeedConfig | None = arguments["deepspeed"]
    if deepspeed is not None and deepspeed.stage > 0:
        return ShardingSettings(
            reshard_after_forward=deepspeed.reshards_after_forward,
            offloads_to_cpu=deepspeed.offloads_to_cpu,
            num_replicas=num_replicas,
        )
    if parallelism is not None and parallelism.dp_shard_size > 1:
        return ShardingSettings(num_replicas=num_replicas)
    return None


def _settings_of_plugin(plugin: Any, num_replicas: int) -> ShardingSettings:
    from torch.distributed.fsdp import CPUOffloadPolicy
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

    if plugin.param_init_fn is not None:
        warn_user(
            "param_init_fn has no effect. Weights on the meta device are set by init_weights() of the model, or by "
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


def blocks_of(model: nn.Module, settings: ShardingSettings) -> list[nn.Module]:
    """Return the blocks of a model, each after the blocks within it, and without the model itself.

    Args:
        model: A module.
        settings: The settings of sharding.

    Raises:
        ConfigurationError: The settings name a class that no module of the model has.
    """
    chosen = set(_chosen(model, settings))
    found = (module for module in _bottom_up(model) if module in chosen and module is not model)
    usable = [module for module in found if _is_usable(module)]
    if not usable:
        _warn_of_one_block(model)
    return _without_shared_parameters(model, usable)


def _chosen(model: nn.Module, settings: ShardingSettings) -> list[nn.Module]:
    modules = list(model.modules())
    if settings.block_classes:
        return _of_classes(model, settings.block_classes)
    if settings.min_num_params:
        return [module for module in modules if _num_parameters(module) > settings.min_num_params]
    if settings.is_block is not None:
        return [module for module in modules if _is_chosen(module, settings.is_block)]
    # Models of transformers name the classes of their blocks themselves.
    named = cast("Collection[str]", getattr(model, "_no_split_modules", None) or ())
    return [module for module in modules if _class_of(module).__name__ in named] or _repeated(model)


def _num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _class_of(module: nn.Module) -> type[nn.Module]:
    inside = compiled_from(module)
    return type(module if inside is None else inside)


def _of_classes(model: nn.Module, names: Collection[str]) -> list[nn.Module]:
    classes = {_class_of(module) for module in model.modules()}
    by_name = {block_class.__name__: block_class for block_class in classes}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise ConfigurationError(
            "The model has no blocks of this class.",
            given=f"transformer_cls_names_to_wrap with {', '.join(missing)}",
            expected=f"some of {', '.join(sorted(by_name))}, which {type(model).__name__} has",
            do="Name the class of its repeated layers, or leave it out, so that they are found.",
        )
    blocks = tuple(block_class for block_class in classes if block_class.__name__ in names)
    return [module for module in model.modules() if issubclass(_class_of(module), blocks)]


def _is_chosen(module: nn.Module, is_block: Callable[..., bool]) -> bool:
    if "recurse" in inspect.signature(is_block).parameters:  # a policy of torch.distributed.fsdp.wrap
        return is_block(module=module, recurse=False, nonwrapped_numel=_num_parameters(module))
    return is_block(module)


def _repeated(module: nn.Module) -> list[nn.Module]:
    """Return the outermost consecutive layers of the same class, which deep networks consist of."""
    children = list(module.children())
    is_row = isinstance(module, (nn.ModuleList, nn.Sequential))
    counts = Counter(_class_of(child) for child in children if is_row and _has_parts(child))
    found: list[nn.Module] = []
    for child in children:
        found += [child] if counts[_class_of(child)] > 1 and _has_parts(child) else _repeated(child)
    return found


def _has_parts(layer: nn.Module) -> bool:
    return _is_usable(layer) and any(True for _ in layer.children())


def _is_usable(module: nn.Module) -> bool:
    """Whether a module can be gathered when it is called."""
    is_container = isinstance(module, (nn.ModuleList, nn.ModuleDict)) and type(module).forward is nn.Module.forward
    return not is_container and any(True for _ in module.parameters())


def _bottom_up(module: nn.Module, seen: set[int] | None = None) -> Iterator[nn.Module]:
    """Iterate over a module and the modules within it, each once, children first."""
    seen = set() if seen is None else seen
    seen.add(id(module))
    for child in module.children():
        if id(child) not in seen:
            yield from _bottom_up(child, seen)
    yield module


def modules_of_block(block: nn.Module, blocks: Collection[nn.Module]) -> list[nn.Module]:
    """Return the modules whose parameters are gathered with a block: the modules in it, but not in blocks within it.

    Args:
        block: A block, or the model.
        blocks: The blocks of the model.
    """
    others = {id(other) for other in blocks} - {id(block)}
    return list(_bottom_up(block, others))


def _without_shared_parameters(model: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    """Leave out blocks that share a parameter with other modules, so that it belongs to the block around them."""
    shared: set[int] = set()
    while True:
        kept = [block for block in blocks if id(block) not in shared]
        owners: dict[int, set[int]] = {}
        for owner in [*kept, model]:
            for module in modules_of_block(owner, kept):
                for parameter in module.parameters(recurse=False):
                    owners.setdefault(id(parameter), set()).add(id(owner))
        found = {owner for of_one in owners.values() if len(of_one) > 1 for owner in of_one} - {id(model)}
        if not found:
            break
        shared |= found
    if shared:
        names = [name for name, module in _named_modules(model) if id(module) in shared]
        warn_user(
            f"{', '.join(names)} share parameters with other modules, and are gathered together with the modules "
            "around them, which takes more memory."
        )
    return kept


def _warn_of_one_block(model: nn.Module) -> None:
    warn_user(
        f"No blocks were found in {type(model).__name__}, so that each process has all of its weights during a step, "
        "and only gradients and optimizer are split. Name the class of its layers: "
        "FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy='transformer_based_wrap', "
        "transformer_cls_names_to_wrap=[...]), or --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP "
        "--fsdp_transformer_layer_cls_to_wrap ... of accelerate launch."
    )


def whole_parameters(model: nn.Module, settings: ShardingSettings, *, in_half_precision: bool) -> set[nn.Parameter]:
    """Return the parameters that stay whole on each process, by the settings or because they cannot be split.

    Args:
        model: A module.
        settings: The settings of sharding.
        in_half_precision: Whether blocks compute in a different dtype from their parameters.
    """
    chosen = _ignored_modules(model, settings)
    if in_half_precision:
        # Their statistics stay in fp32, and torch requires the same dtype for the weights.
        chosen += [module for module in model.modules() if hasattr(module, "running_mean")]
    scalars = {parameter for parameter in model.parameters() if not parameter.dim()}
    return {parameter for module in chosen for parameter in module.parameters()} | scalars


def _ignored_modules(model: nn.Module, settings: ShardingSettings) -> list[nn.Module]:
    if not isinstance(settings.ignored_modules, str):
        return list(settings.ignored_modules)
    pattern = re.compile(settings.ignored_modules)
    chosen = [module for name, module in _named_modules(model) if pattern.fullmatch(name)]
    if not chosen:
        raise ConfigurationError(
            f"ignored_modules={settings.ignored_modules!r} matches the whole name of no module. Look at the names in "
            "model.named_modules()."
        )
    return chosen


def _named_modules(model: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    return cast("Iterable[tuple[str, nn.Module]]", model.named_modules())  # not annotated by torch
