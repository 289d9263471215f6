"""Optimizers that were made before their parameters were split over the processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["RemappedOptimizers"]


class RemappedOptimizers:
    """Gives optimizers new parameters in place of old ones; the optimizers stay the same objects.

    Args:
        optimizers: Those that may hold the parameters.

    Example:
        >>> from torch import nn
        >>> whole = nn.Parameter(torch.ones(2))
        >>> optimizer = torch.optim.SGD([whole], lr=0.1)
        >>> remapped = RemappedOptimizers([optimizer])
    """

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self._places: dict[int, list[tuple[Optimizer, list[Tensor], int]]] = {}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                # The list itself: an optimizer may hold it elsewhere too.
                parameters = cast("list[Tensor]", group["params"])
                for index, parameter in enumerate(parameters):
                    self._places.setdefault(id(parameter), []).append((optimizer, parameters, index))

    def replace(self, whole: Tensor, sharded: DTensor) -> None:
        """Let the optimizers update the pieces of a parameter, with their pieces of what was kept for it.

        Args:
            whole: The parameter as it was.
            sharded: The same one, split.
        """
        for optimizer, parameters, index in self._places.pop(id(whole), ()):
            parameters[index] = sharded
            state = cast("dict[Tensor, Any]", optimizer.state)
            if whole in state:
                kept = state.pop(whole)
                state[sharded] = {key: _piece_of_state(value, sharded) for key, value in kept.items()}


def _piece_of_state(value: Any, parameter: DTensor) -> Any:
    """What an optimizer keeps for a parameter: split as the parameter is, or whole where it has another shape."""
    if not isinstance(value, Tensor) or not value.dim():
        return value
    from torch.distributed.tensor import Replicate, distribute_tensor

    whole = [Replicate() for _ in parameter.placements]
    placements = parameter.placements if value.shape == parameter.shape else whole
    # Without a source each process cuts its own piece.
    return distribute_tensor(value, parameter.device_mesh, placements, src_data_rank=None)
