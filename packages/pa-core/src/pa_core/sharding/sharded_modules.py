"""Operations on modules that ``fully_shard`` was applied to, for which torch has no public methods.

Torch keeps gradients before their exchange, and the tensors of the graph, in private attributes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pa_core import _accelerate, _torch
from pa_core._tensors import compiled_from, is_sharded, is_sharded_module, is_unit, local_piece, unwrap_model
from pa_core.errors import UnsupportedConfigurationError

# torch annotates these only in part
_collectives: Any = dist
_compile: Any = cast("Any", torch).compile


class ShardedModules:
    """The modules within a model that ``fully_shard`` was applied to; empty for other models.

    Args:
        model: A model.

    Example:
        >>> modules = ShardedModules(nn.Linear(2, 1))
        >>> list(modules.unsharded([])), modules.has_local_gradients()
        ([], False)
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: list[Any] = [*filter(is_unit, model.modules())]
        self._frozen_groups = [group for group in self._groups() if not _is_trained(group)]

    def require_trainable(self, num_processes: int) -> None:
        """Raise an error if gradients would be averaged with the wrong weights.

        Args:
            num_processes: The number of processes over which gradients must be averaged.

        Raises:
            UnsupportedConfigurationError: The gradients are not averaged over all processes.
        """
        for group in self._groups():
            averaged_over = _torch.num_averaged_over(group)
            if averaged_over != num_processes:
                raise UnsupportedConfigurationError(
                    f"The gradients of a sharded model are averaged over all {num_processes} processes here, and its "
                    f'mesh has {averaged_over}. Pass fully_shard init_device_mesh("cuda", (world_size,)).'
                )
            factor = _torch.gradient_divide_factor(group)
            if factor not in {None, num_processes}:
                raise UnsupportedConfigurationError(
                    f"set_gradient_divide_factor({factor}) would change the weights of batches. Leave the call out; "
                    "for losses over other items than samples, pass their number with the loss."
                )
        if any(map(is_sharded, self.plain_parameters())):
            raise UnsupportedConfigurationError(
                "Some parameters are DTensors without fully_shard. Apply "
                "torch.distributed.fsdp.fully_shard to the model after its blocks."
            )

    def plain_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are not sharded, whose gradients ``fully_shard`` does not exchange."""
        sharded = {id(_torch.sharded_parameter(parameter)) for parameter in self._parameters()}
        return [parameter for parameter in self._model.parameters() if id(parameter) not in sharded]

    def make_replicas_alike(self) -> None:
        """Copy each piece of a parameter to all processes that have the same piece."""
        for piece in map(_torch.sharded_parameter, self._parameters()):
            for number, placement in enumerate(piece.placements):
                if placement.is_replicate() and piece.device_mesh.size(number) > 1:
                    replicas = piece.device_mesh.get_group(number)
                    first = dist.get_global_rank(replicas, 0)
                    _collectives.broadcast(local_piece(piece.detach()), src=first, group=replicas)

    @property
    def computes_in_own_precision(self) -> bool:
        """Whether ``fully_shard`` was given a precision for the model."""
        return any(_torch.computed_dtype(module) is not None for module in self._modules)

    def exchange_gradients(self) -> None:
        """Let all backward passes from now on exchange gradients, no matter how a script configured the modules."""
        for module in self._modules:
            module.set_requires_gradient_sync(True, recurse=False)
            module.set_requires_all_reduce(True, recurse=False)

    def allow_unused_parameters(self) -> None:
        """Let a process exchange zeros for parameters without a gradient in its backward pass.

        Otherwise processes that leave out different parameters exchange gradients that do not match. This is not the
        default, because an optimizer would see a gradient of zero instead of None on one process.

        Raises:
            UnsupportedConfigurationError: The version of torch is too old.
        """
        for module in self._modules:
            if not hasattr(module, "set_reduce_scatter_unused_params"):
                raise UnsupportedConfigurationError(
                    "This version of torch cannot leave parameters of a sharded model unused on some processes. "
                    "Install torch 2.13 or newer, or leave find_unused_parameters out."
                )
            module.set_reduce_scatter_unused_params(True, recurse=False)

    @contextmanager
    def keeping_gradients_local(self) -> Generator[None]:
        """Accumulate the gradients of this process within the context, for a later exchange."""
        for module in self._modules:
            module.set_requires_gradient_sync(False, recurse=False)
        try:
            yield
        finally:
            for module in self._modules:
                module.set_requires_gradient_sync(True, recurse=False)

    def unsharded(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return the tensors that represent parameters in the graph of a forward pass; plain parameters are unchanged.

        Args:
            parameters: Parameters of the model.
        """
        by_piece = {id(_torch.sharded_parameter(parameter)): parameter for parameter in self._parameters()}
        found = (
            _torch.gathered_parameter(by_piece[id(parameter)]) if id(parameter) in by_piece else parameter
            for parameter in parameters
        )
        return [tensor for tensor in found if tensor is not None]

    def follow_unfreezing(self) -> None:
        """Let blocks that were frozen in the first forward pass exchange gradients once they are trained.

        In mixed precision, torch records the dtype of the exchange only for trainable parameters.
        """
        for group in [*self._frozen_groups]:
            if _is_trained(group):
                _torch.record_dtypes(group)
                self._frozen_groups.remove(group)

    def has_local_gradients(self) -> bool:
        """Whether this process has gradients that were not exchanged yet."""
        return any(map(_torch.has_local_gradient, self._parameters()))

    def forget_local_gradients(self) -> None:
        """Drop gradients that were not exchanged yet."""
        for group in self._groups():
            _torch.forget_local_gradients(group)

    def _groups(self) -> Iterable[Any]:
        """Torch's groups of parameters that are gathered together."""
        return {id(group): group for module in self._modules for group in _torch.sharding_groups(module)}.values()

    def _parameters(self) -> Iterator[Any]:
        """Iterate over torch's records of sharded parameters."""
        for group in self._groups():
            yield from _torch.parameters_of_group(group)


def compile_in_place(model: nn.Module, accelerator: _accelerate.AcceleratorLike) -> None:
    """Compile a sharded model in place, or its blocks, as the Accelerator is configured; compiled modules are skipped.

    Accelerate itself would create other modules, which are called without gathering their weights first.

    Args:
        model: The user's module; accelerate compiles a model that is not sharded.
        accelerator: The accelerator of the run.
    """
    settings = _accelerate.compilation(accelerator)
    if settings is None or compiled_from(model) is not None or not is_sharded_module(model):
        return
    module = unwrap_model(model)
    blocks = [block for block in module.modules() if is_unit(block) and block is not module]
    for block in blocks if settings.by_blocks and blocks else [module]:
        if not _torch.is_compiled_in_place(block):
            # Compile forward, not the call: the hooks that gather the weights cannot be compiled.
            block.forward = _compile(block.forward, **settings.arguments)


def _is_trained(group: Any) -> bool:
    return any(_torch.sharded_parameter(parameter).requires_grad for parameter in _torch.parameters_of_group(group))
