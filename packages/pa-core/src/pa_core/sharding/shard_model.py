"""Splitting the parameters of a model over the processes, in place."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_core import _accelerate
from pa_core._tensors import compiled_from, is_sharded, is_sharded_module, unwrap_model
from pa_core._torch import PARAMETERS, has_gradient_hooks
from pa_core.distributed.collectives import broadcast_tensors
from pa_core.errors import UnsupportedConfigurationError
from pa_core.sharding.meta_weights import MetaWeights, NamedTensor, allocate, has_meta_tensors, tensors_of
from pa_core.sharding.recomputation import contexts_of_passes
from pa_core.sharding.sharding_plan import ShardingSettings, blocks_of, modules_of_block, whole_parameters

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

_run_checkpointed: Any = cast("Any", torch.utils.checkpoint).checkpoint  # annotated in part


def shard(
    model: nn.Module,
    settings: ShardingSettings,
    accelerator: _accelerate.AcceleratorLike,
    optimizers: Iterable[Optimizer],
) -> None:
    """Split the parameters of a model over all processes, in place, with the weights of rank zero.

    Every process must call this. A sharded model is not changed, and on one process nothing is split. Weights on the
    meta device are created. At most one block at a time is complete on the device.

    Args:
        model: The user's module.
        settings: The settings of sharding.
        accelerator: The accelerator of the run.
        optimizers: The optimizers of the model, which then have the pieces in place of the whole parameters.

    Raises:
        ConfigurationError: The settings name modules that the model does not have.
        UnsupportedConfigurationError: The model has parameters that cannot be sharded.
    """
    module = unwrap_model(model, keep_torch_compile=False)
    on_one_process = accelerator.num_processes == 1
    if is_sharded_module(module) or (on_one_process and not has_meta_tensors(module)):
        return
    device = _accelerate.device_of(accelerator)
    replacing = _Replacing(module, device, optimizers)
    if on_one_process:
        # The same order as on several processes, so that the weights are the same.
        blocks = blocks_of(module, settings)
        for block in [*blocks, module]:
            with replacing.parameters_of(modules_of_block(block, blocks)):
                pass
        return
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    of_blocks, of_model = _precision(settings, accelerator)
    # Computed again for each block, because parameters on the meta device are replaced.
    whole = partial(whole_parameters, module, settings, in_half_precision=of_blocks.param_dtype is not None)
    blocks = blocks_of(module, settings)
    _require_shardable(module, blocks, whole())
    if settings.checkpoints_activations:
        _checkpoint_activations(blocks, offloads=settings.offloads_activations)
    common: dict[str, Any] = {
        "mesh": _mesh(accelerator, settings),
        # A CPU has no other memory to keep them in.
        "offload_policy": CPUOffloadPolicy() if settings.offloads_to_cpu and device.type != "cpu" else OffloadPolicy(),
    }
    for block in blocks:
        with replacing.parameters_of(modules_of_block(block, blocks)):
            reshard = settings.reshard_after_forward
            fully_shard(block, mp_policy=of_blocks, reshard_after_forward=reshard, ignored_params=whole(), **common)
    with replacing.parameters_of(modules_of_block(module, blocks)):
        # Torch keeps the other parameters gathered after the forward pass: the backward pass begins with them.
        fully_shard(module, mp_policy=of_model, ignored_params=whole(), **common)


def _checkpoint_activations(blocks: Sequence[nn.Module], *, offloads: bool) -> None:
    """Let blocks keep only their inputs between the forward and the backward pass, unless they are nested."""
    inner = {id(module) for block in blocks for module in block.modules() if module is not block}
    for block in blocks:
        if id(block) not in inner:
            _checkpoint(compiled_from(block) or block, offloads=offloads)


def _checkpoint(block: nn.Module, *, offloads: bool) -> None:
    forward = block.forward
    contexts = partial(contexts_of_passes, block)

    @wraps(forward)
    def forward_again(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        # A compiled graph changes buffers once in any case.
        keeping = {} if torch.compiler.is_compiling() else {"context_fn": contexts}
        with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()) if offloads else nullcontext():
            return _run_checkpointed(forward, *args, use_reentrant=False, **keeping, **kwargs)

    block.forward = forward_again


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
    """Return the precision of the blocks, and of the model around them, whose outputs are fp32."""
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
        optimizers: The optimizers that may hold parameters of the model; they stay the same objects.
    """

    def __init__(self, model: nn.Module, device: torch.device, optimizers: Iterable[Optimizer]) -> None:
        self._model = model
        self._device = device
        self._optimizers = list(optimizers)
        self._meta_weights = MetaWeights(model)
        tensors = tensors_of(model.modules())
        # The tensors that the first process has: the other processes may have none.
        is_real = torch.tensor([not named.tensor.is_meta for named in tensors], dtype=torch.uint8, device=device)
        broadcast_tensors([is_real])
        self._real = {id(named.tensor) for named, flag in zip(tensors, is_real, strict=True) if flag}

    @contextmanager
    def parameters_of(self, modules: Sequence[nn.Module]) -> Generator[None]:
        """Give all processes the tensors of rank zero, and pass later replacements of them to the optimizers.

        Args:
            modules: The modules with the tensors as direct attributes.
        """
        before = tensors_of(modules)
        self._make_missing(before)
        tensors = list({id(named.tensor): named.tensor for named in tensors_of(modules)}.values())
        for tensor in tensors:
            # Like torch, because a channels-last order cannot be split.
            tensor.data = tensor.data.to(self._device).contiguous()
        broadcast_tensors(tensors)
        yield
        replaced: dict[Tensor, Tensor] = {}
        for named in before:
            after: Tensor = vars(named.module)[named.kind][named.name]
            if named.kind == PARAMETERS and after is not named.tensor:
                vars(after).update(vars(named.tensor))  # attributes that libraries have set
                replaced[named.tensor] = after
        for optimizer in self._optimizers:
            _replace_in(optimizer, replaced)

    def _make_missing(self, tensors: Sequence[NamedTensor]) -> None:
        unmade = [named for named in tensors if id(named.tensor) not in self._real]
        if unmade:
            self._meta_weights.make(unmade, self._device)
        allocate((named for named in tensors if id(named.tensor) in self._real and named.tensor.is_meta), self._device)


def _replace_in(optimizer: Optimizer, replaced: Mapping[Tensor, Tensor]) -> None:
    """Let an optimizer update the pieces of parameters, with their pieces of its state."""
    for group in optimizer.param_groups:
        parameters = cast("list[Tensor]", group["params"])
        # Change the list itself, because an optimizer may hold it elsewhere too.
        parameters[:] = [replaced.get(parameter, parameter) for parameter in parameters]
    state = cast("dict[Tensor, Any]", optimizer.state)
    for before, after in replaced.items():
        if before in state:
            state[after] = {key: _piece_of_state(value, after) for key, value in state.pop(before).items()}


def _piece_of_state(value: Any, parameter: Tensor) -> Any:
    """Return the state of a parameter: split like the parameter, or whole if it has a different shape."""
    if not isinstance(value, Tensor) or not value.dim() or not is_sharded(parameter):
        return value
    from torch.distributed.tensor import Replicate, distribute_tensor

    whole = [Replicate() for _ in parameter.placements]
    placements = parameter.placements if value.shape == parameter.shape else whole
    # Without a source each process takes its own piece.
    return distribute_tensor(value, parameter.device_mesh, placements, src_data_rank=None)


def _require_shardable(model: nn.Module, blocks: Collection[nn.Module], whole: Collection[nn.Parameter]) -> None:
    """Raise an error for a model that would fail in its first step, or lose hooks of its parameters."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    kept = {id(parameter) for parameter in whole}
    for block in [*blocks, model]:
        modules = modules_of_block(block, blocks)
        parameters = [
            parameter
            for module in modules
            for parameter in module.parameters(recurse=False)
            if id(parameter) not in kept
        ]
        _require_one_dtype(parameters, names)
        for module in modules:
            if getattr(module, "sparse", False):
                raise UnsupportedConfigurationError(
                    f"{type(module).__name__} has sparse gradients, which cannot be split over processes. Leave "
                    "sparse=True out, or name the module in ignored_modules of the plugin."
                )
    for parameter in model.parameters():
        if id(parameter) not in kept and has_gradient_hooks(parameter):
            raise UnsupportedConfigurationError(
                "Hooks of a parameter would be lost: sharding puts a new parameter in its place.",
                given=f"a hook that was registered on {names[id(parameter)]}",
                do="Shard the model yourself with fully_shard, and register the hooks on its new parameters.",
            )


def _require_one_dtype(parameters: Iterable[nn.Parameter], names: Mapping[int, str]) -> None:
    by_dtype = {parameter.dtype: names[id(parameter)] for parameter in parameters if parameter.requires_grad}
    if len(by_dtype) > 1:
        raise UnsupportedConfigurationError(
            "The trainable parameters of a block are gathered together, and must have the same dtype.",
            given=", ".join(f"{name} in {str(dtype).removeprefix('torch.')}" for dtype, name in by_dtype.items()),
            do='Convert the model, for example model.float(), and pass mixed_precision="bf16" to compute in bf16.',
        )
