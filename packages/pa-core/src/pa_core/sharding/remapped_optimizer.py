"""Optimizers that were made before their parameters were split over the processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from pa_core.model_tensors import is_sharded

__all__ = ["RemappedOptimizers"]


class RemappedOptimizers:
    """Gives optimizers new parameters in place of old ones; the optimizers stay the same objects.

    Args:
        optimizers: Those that may hold the parameters.

    Example:
        >>> import torch
        >>> before, after = torch.ones(2), torch.zeros(2)
        >>> optimizer = torch.optim.SGD([before], lr=0.1)
        >>> RemappedOptimizers([optimizer]).replace(before, after)
        >>> optimizer.param_groups[0]["params"][0] is after
        True
    """

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self._places: dict[int, list[tuple[Optimizer, list[Tensor], int]]] = {}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                # The list itself: an optimizer may hold it elsewhere too.
                parameters = cast("list[Tensor]", group["params"])
                for index, parameter in enumerate(parameters):
                    self._places.setdefault(id(parameter), []).append((optimizer, parameters, index))

    def replace(self, before: Tensor, after: Tensor) -> None:
        """Let the optimizers update the pieces of a parameter, with their pieces of what was kept for it.

        Args:
            before: The parameter as it was.
            after: The same one, perhaps split.
        """
        for optimizer, parameters, index in self._places.pop(id(before), ()):
            parameters[index] = after
            state = cast("dict[Tensor, Any]", optimizer.state)
            if before in state:
                kept = state.pop(before)
                state[after] = {key: _piece_of_state(value, after) for key, value in kept.items()}


def _piece_of_state(value: Any, parameter: Tensor) -> Any:
    """What an optimizer keeps for a parameter: split as the parameter is, or whole where it has another shape."""
    if not isinstance(value, Tensor) or not value.dim() or not is_sharded(parameter):
        return value
    from torch.distributed.tensor import Replicate, distribute_tensor

    whole = [Replicate() for _ in parameter.placements]
    placements = parameter.placements if value.shape == parameter.shape else whole
    # Without a source each process cuts its own piece.
    return distribute_tensor(value, parameter.device_mesh, placements, src_data_rank=None)
