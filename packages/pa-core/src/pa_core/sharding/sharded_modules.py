"""The modules of a model that ``fully_shard`` was applied to: what their public methods do not tell or do.

Torch keeps gradients that are not exchanged yet, and the tensors that a graph is made of, where only it looks. This is
the one room that looks there, too.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from pa_core.errors import UnsupportedConfigurationError
from pa_core.sharded_tensors import is_sharded

__all__ = ["ShardedModules", "forget_local_gradients"]

# torch annotates its collectives only in part
_collectives: Any = dist


def forget_local_gradients(model: nn.Module) -> None:
    """Forget gradients of a sharded model that this process has accumulated, and not exchanged yet.

    Args:
        model: A model, sharded or not.
    """
    ShardedModules(model).forget_local_gradients()


class ShardedModules:
    """The modules within a model that ``fully_shard`` was applied to, none where it was not.

    Args:
        model: A model.

    Example:
        >>> modules = ShardedModules(nn.Linear(2, 1))
        >>> list(modules.unsharded([])), modules.has_local_gradients()
        ([], False)
    """

    def __init__(self, model: nn.Module) -> None:
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # slow to import; without it nothing is sharded
        self._model = model
        self._modules: list[Any] = (
            [] if fsdp is None else [module for module in model.modules() if isinstance(module, fsdp.FSDPModule)]
        )
        self._frozen_groups = [group for group in self._groups() if not _is_trained(group)]

    def require_trainable(self, num_processes: int) -> None:
        """Refuse what the weights of batches would be wrong for.

        Args:
            num_processes: All of these have to have samples of their own.

        Raises:
            UnsupportedConfigurationError: The gradients are not averaged over all processes.
        """
        for group in self._groups():
            averaged_over: int = group.mesh_info.mesh.size()
            if averaged_over != num_processes:
                raise UnsupportedConfigurationError(
                    "The gradients of a sharded model are averaged over all processes here.",
                    given=f"a mesh of {averaged_over} of {num_processes} processes",
                    expected=f"a mesh of {num_processes} processes, of one dimension or of two (replicate, shard)",
                    do='Pass fully_shard a mesh of all processes: init_device_mesh("cuda", (world_size,)).',
                )
            if group.gradient_divide_factor not in {None, num_processes}:
                raise UnsupportedConfigurationError(
                    "Batches are weighed for gradients that are averaged over the processes.",
                    given=f"set_gradient_divide_factor({group.gradient_divide_factor})",
                    expected="the mean over the processes, as fully_shard has it",
                    do="Leave the call out; for losses over other items than samples, tell their number with the loss.",
                )
        if any(map(is_sharded, self.plain_parameters())):
            raise UnsupportedConfigurationError(
                "Parameters are split over processes in another way than by fully_shard.",
                given="DTensor parameters that no fully_shard has been applied to",
                expected="fully_shard, applied to the model or to all modules with such parameters",
                do="Apply torch.distributed.fsdp.fully_shard to the model after its blocks.",
            )

    def plain_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that nobody has sharded, whose gradients ``fully_shard`` does not exchange."""
        sharded = {id(one.sharded_param) for one in self._parameters()}
        return [parameter for parameter in self._model.parameters() if id(parameter) not in sharded]

    def make_replicas_alike(self) -> None:
        """Give all processes that have the same piece of a parameter the values of the first of them."""
        for group in self._groups():
            replicas: Any = getattr(group.mesh_info, "replicate_process_group", None)
            if replicas is not None and replicas.size() > 1:
                first = dist.get_global_rank(replicas, 0)
                for one in group.fsdp_params:
                    _collectives.broadcast(one.sharded_param.detach().to_local(), src=first, group=replicas)

    @property
    def computes_in_own_precision(self) -> bool:
        """Whether ``fully_shard`` was told in which precision the model computes."""
        return any(module._get_fsdp_state()._mp_policy.param_dtype is not None for module in self._modules)

    def exchange_gradients(self) -> None:
        """Let all backward passes from here on exchange gradients, whatever a script has told the modules."""
        for module in self._modules:
            module.set_requires_gradient_sync(True, recurse=False)
            module.set_requires_all_reduce(True, recurse=False)

    def allow_unused_parameters(self) -> None:
        """Let a process exchange zeros for parameters that its backward pass has left out.

        Otherwise processes that leave out different ones exchange what does not fit together. Not always: an optimizer
        would see a gradient of zero where it sees none on one process.

        Raises:
            UnsupportedConfigurationError: This version of torch cannot.
        """
        for module in self._modules:
            if not hasattr(module, "set_reduce_scatter_unused_params"):
                raise UnsupportedConfigurationError(
                    "This version of torch cannot leave parameters of a sharded model unused on some processes.",
                    given="find_unused_parameters=True",
                    expected="torch 2.13 or newer, or a model whose parameters are all used in each step",
                    do="Update torch, or leave find_unused_parameters out.",
                )
            module.set_reduce_scatter_unused_params(True, recurse=False)

    @contextmanager
    def keeping_gradients_local(self) -> Generator[None]:
        """Let backward passes within the context accumulate the gradients of this process, for a later exchange."""
        for module in self._modules:
            module.set_requires_gradient_sync(False, recurse=False)
        try:
            yield
        finally:
            for module in self._modules:
                module.set_requires_gradient_sync(True, recurse=False)

    def unsharded(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return the tensors that stand for parameters in the graph of a forward pass; plain ones as they are.

        Args:
            parameters: Parameters of the model.
        """
        gathered = {id(one.sharded_param): one for one in self._parameters()}
        found = (_gathered(gathered.get(id(parameter)), parameter) for parameter in parameters)
        return [tensor for tensor in found if tensor is not None]

    def follow_unfreezing(self) -> None:
        """Let blocks that were frozen in the first forward pass exchange gradients once they are trained.

        In mixed precision, torch has noted only of trainable ones in which kind of numbers they are to be exchanged.
        """
        if not self._frozen_groups:
            return
        for group in [*self._frozen_groups]:
            if _is_trained(group):
                group._init_mp_dtypes()
                self._frozen_groups.remove(group)

    def has_local_gradients(self) -> bool:
        """Whether this process has gradients that were not exchanged yet."""
        return any(_has_local_gradient(one) for one in self._parameters())

    def forget_local_gradients(self) -> None:
        """Forget gradients that were not exchanged yet."""
        for group in self._groups():
            group._partial_reduce_output = None
        for one in self._parameters():
            if hasattr(one, "_unsharded_param"):
                one._unsharded_param.grad = None
            if one.unsharded_accumulated_grad is not None:  # from torch 2.15 on, it is the one above
                one.unsharded_accumulated_grad = None

    def _groups(self) -> Iterator[Any]:
        """Torch's groups of parameters that are gathered together."""
        seen: set[int] = set()
        for module in self._modules:
            state = module._get_fsdp_state()
            several: Any = getattr(state, "_fsdp_param_groups", None)  # from torch 2.13 on; before, one or none
            groups = [state._fsdp_param_group] if several is None else several
            if id(state) not in seen:
                yield from (group for group in groups if group is not None)
            seen.add(id(state))

    def _parameters(self) -> Iterator[Any]:
        """What torch knows of each sharded parameter."""
        for group in self._groups():
            yield from group.fsdp_params


def _is_trained(group: Any) -> bool:
    return any(one.sharded_param.requires_grad for one in group.fsdp_params)


def _gathered(one: Any, parameter: Tensor) -> Tensor | None:
    """What a graph has of a parameter: None for one that no forward pass has gathered so far."""
    gathered: Tensor | None = parameter if one is None else getattr(one, "_unsharded_param", None)
    return gathered


def _has_local_gradient(one: Any) -> bool:
    gathered: Any = getattr(one, "_unsharded_param", None)
    return one.unsharded_accumulated_grad is not None or (gathered is not None and gathered.grad is not None)
