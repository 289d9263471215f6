"""Computing the first micro-batch of a reproducible run several times, to detect a dependence on earlier micro-batches.

On a different number of processes, other micro-batches are computed before it. Buffers are restored between two
micro-batches anyway; but a forward pass may keep state in unexpected places. The effects of the rehearsal are undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from pa_core._tensors import buffers_of_module, parameters_of_module
from pa_core.errors import UnsupportedConfigurationError
from pa_data import map_tensors
from pa_data.state_search import Snapshot

_MOST_SHOWN: Final = 6


class Rehearsal:
    """Computes a micro-batch twice, then a different micro-batch, then the first again.

    Args:
        roots: The objects from which a step can be reached, by name.
        handled: The modules whose parameters and buffers a reproducible run restores.
        in_turn: Returns the context of a micro-batch, with the same buffers and random numbers each time.
        compute: Computes the gradients of a batch, and returns its loss.
    """

    def __init__(
        self,
        roots: Mapping[str, object],
        handled: Iterable[nn.Module],
        in_turn: Callable[[], AbstractContextManager[None]],
        compute: Callable[[Any], Tensor],
    ) -> None:
        self._roots = roots
        self._handled = list(handled)
        self._in_turn = in_turn
        self._compute = compute

    def require_independent(self, batch: Any) -> None:
        """Raise an error if the results of a batch depend on an earlier batch, or if it changes state each time.

        Args:
            batch: A batch.

        Raises:
            UnsupportedConfigurationError: The results of the batch depend on others.
        """
        self._disturb_weights()
        first, after_first = self._results(batch)
        second, after_second = self._results(batch)  # alternating state is the same after another call
        try:
            _, after_other = self._results(_in_other_order(batch))
        except Exception:  # for example of sequences that must be sorted by length
            _, after_other = self._results(batch)
        last, after_last = self._results(batch)
        differs = {*after_first.changed(after_second), *after_first.changed(after_last)}
        moved = [place for place in after_other.changed(after_last, but_clocks=True) if place in differs]
        if moved or not (_are_equal(first, second) and _are_equal(first, last)):
            raise _depends(moved)

    @torch.no_grad()
    def _disturb_weights(self) -> None:
        """Change the weights a little, so that an average of them differs from them, as after the first update."""
        for parameter in self._trainable():
            if parameter.is_floating_point() or parameter.is_complex():
                parameter.mul_(1 + 2**-6).add_(2**-9)

    def _results(self, batch: Any) -> tuple[list[Tensor], Snapshot]:
        """Return the results of a batch: its loss, its gradients and the weights after it."""
        for parameter in self._trainable():
            parameter.grad = None
        with self._in_turn():
            loss = self._compute(batch)
            without = [buffer for module in self._handled for buffer in buffers_of_module(module)]
            left = Snapshot(self._roots, without=[*without, *self._trainable()])
        tensors = [loss, *(tensor for parameter in self._trainable() for tensor in (parameter.grad, parameter.data))]
        return [_digest(tensor) for tensor in tensors], left

    def _trainable(self) -> Sequence[Tensor]:
        return [
            parameter
            for module in self._handled
            for parameter in parameters_of_module(module)
            if parameter.requires_grad
        ]


def _are_equal(results: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(result.equal(other) for result, other in zip(results, others, strict=True))


def _digest(tensor: Tensor | None) -> Tensor:
    """Return a few numbers that change with a tensor, with NaN equal to NaN; a copy would take more memory."""
    if tensor is None or tensor.numel() == 0:
        return torch.zeros(0)
    values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    values = values.double().reshape(-1)
    finite = values.nan_to_num()
    return torch.stack([finite.sum(), finite.abs().sum(), finite.square().sum(), values.isfinite().double().sum()])


def _in_other_order(batch: Any) -> Any:
    """Reverse the order of the samples."""
    if isinstance(batch, PackedSequence):
        return batch
    return map_tensors(
        batch, lambda tensor: tensor.flip(0) if tensor.dim() and tensor.layout is torch.strided else tensor
    )


def _depends(places: Sequence[str]) -> UnsupportedConfigurationError:
    shown = ", ".join(places[:_MOST_SHOWN]) + (f" and {len(places) - _MOST_SHOWN} more" if places[_MOST_SHOWN:] else "")
    of_results = "a different loss or different gradients of the first micro-batch when it is computed again"
    return UnsupportedConfigurationError(
        "A micro-batch depends on earlier micro-batches, so that the result would depend on the number of processes.",
        given=f"state that each micro-batch changes: {shown}" if places else of_results,
        do="Keep such state in a buffer of floating-point numbers, whose changes are averaged; change it in "
        "on_optimizer_step_end; log with log(name, value); draw from the global generators, which are seeded for each "
        "micro-batch; or leave reproducible out."
        + ("" if places else " On an accelerator, also call torch.use_deterministic_algorithms(True)."),
    )
