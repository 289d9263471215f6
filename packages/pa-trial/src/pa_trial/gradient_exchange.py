"""The gradients of several processes become their means, as one process would have computed them.

Models stay the modules that they are: no wrapper takes part in their forward passes, so that any number of models,
forward passes and backward passes works, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pa_distributed import RanksDifferError
from pa_trial.gradient_buckets import GradientBuckets

_collectives: Any = dist  # torch annotates its collectives only in part
_PLACES = 8
"""Places of a training are told apart by small numbers, which keep their values in half precision."""
_TOLERANCE = 0.25
"""A place that differs is off the mean of two processes by a half, and of more by more."""


class GradientExchange:
    """Averages the gradients that backward passes have reached since the exchange before, over all processes.

    A parameter that only some processes reached counts with a gradient of zero on the others; one that none reached
    keeps what it has, None included. The processes expect to reach the same parameters as before; whether they did
    travels with the gradients. Otherwise they agree on it first, by a small exchange on the host. A second exchange
    adds to the first: averaging what is averaged changes nothing.

    Every process must make the same exchanges in the same order.

    Args:
        parameters: All parameters of all models, in the same order on each process; frozen ones may be unfrozen later.
        num_processes: The number of processes.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], num_processes: int) -> None:
        own = {id(parameter): parameter for parameter in parameters if _may_have_gradient(parameter)}
        self._parameters = list(own.values())
        self._index = {key: index for index, key in enumerate(own)}
        self._num_processes = num_processes
        self._reached: list[Tensor] = []
        self._handles = [_watch(parameter, self._reached) for parameter in self._parameters]
        self._host_group: Any = None if _collectives.get_backend() == "gloo" else _collectives.new_group(backend="gloo")
        self._batch_idx = 0
        self._position = 0
        self._expected: list[_Expected] = []

    @property
    def is_due(self) -> bool:
        """Whether this process has gradients to exchange, or has not exchanged any since ``start_batch``."""
        return bool(self._reached) or self._position == 0

    def is_pending(self, parameters: Iterable[Tensor]) -> bool:
        """Whether gradients of these parameters are still to be exchanged.

        Args:
            parameters: Parameters of an optimizer.
        """
        if not self._reached:
            return False
        pending = {id(parameter) for parameter in self._reached}
        return any(id(parameter) in pending for parameter in parameters)

    def knows(self, parameter: Tensor) -> bool:
        """Whether a parameter is one of those that are exchanged.

        Args:
            parameter: Any tensor.
        """
        return id(parameter) in self._index

    def note_reached(self, parameters: Iterable[Tensor]) -> None:
        """Count gradients among those to exchange that no backward pass of this process has computed.

        Args:
            parameters: The parameters that have such gradients.
        """
        self._reached.extend(parameters)

    def start_batch(self, batch_idx: int) -> None:
        """Begin a batch, whose exchanges are expected to be the same as in the batch before.

        Args:
            batch_idx: Its index.
        """
        self._batch_idx, self._position = batch_idx, 0

    @torch.no_grad()
    def average(self, *, asks: bool = False) -> bool:
        """Replace the gradients by their means over the processes; every process must call this.

        Args:
            asks: Whether this process requests a stop, which is sent with the gradients.

        Returns:
            Whether any process requests it.

        Raises:
            InvalidExperimentException: A gradient is sparse.
            RanksDifferError: This process is in another place of the training than the others.
        """
        place = (3 * self._batch_idx + self._position) % _PLACES
        reached = {self._index[id(parameter)] for parameter in self._reached}
        is_new = self._position == len(self._expected)
        # Of a pass that was not there before, the one before it is expected.
        expected = self._expected[-1 if is_new else self._position] if self._expected else None
        agreed = None if expected is None else expected.average(reached, place, asks=asks)
        if expected is None or agreed is None:
            sum_of_places, num_asking, *counts = self._agree_on(reached, place, asks=asks)
            _require_same_place(sum_of_places / self._num_processes, place)
            found = {index for index, count in enumerate(counts) if count}
            if expected is None or not found <= expected.members:
                members = found if expected is None or is_new else found | expected.members
                expected = _Expected(self._parameters, sorted(members), self._num_processes)
            expected.average_agreed(found)
            agreed = num_asking > 0
        self._expected[self._position : self._position + 1] = [expected]
        self._reached.clear()
        self._position += 1
        return agreed

    def _agree_on(self, reached: set[int], place: int, *, asks: bool) -> list[int]:
        """Return the sum of the places, how many processes ask, and how many reached each of the parameters."""
        of_each = (index in reached for index in range(len(self._parameters)))
        counts = torch.tensor([place, asks, *of_each], dtype=torch.int32)
        _collectives.all_reduce(counts, group=self._host_group)
        return cast("list[int]", counts.tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch

    def close(self) -> None:
        """Leave the parameters as they were before."""
        for handle in self._handles:
            handle.remove()
        self._reached.clear()
        if self._host_group is not None:
            _collectives.destroy_process_group(self._host_group)


class _Expected:
    """The parameters that all processes expect to exchange in one place of a batch.

    Numbers travel with the gradients: the place of a process in the training, whether it has reached a parameter that
    is not expected, whether it asks, and which of the parameters it has reached.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], members: Sequence[int], num_processes: int) -> None:
        self.members = set(members)
        self._order = list(members)
        self._ids = {index: id(parameters[index]) for index in members}
        self._num_processes = num_processes
        self._buckets = GradientBuckets([parameters[index] for index in members], num_carried=3 + len(members))
        self._usual = [torch.tensor([place, 0.0, 0.0, *(1.0 for _ in members)]) for place in range(_PLACES)]

    def average(self, reached: set[int], place: int, *, asks: bool) -> bool | None:
        """Exchange the gradients if all processes have reached nothing else, and return whether any requests a stop.

        Returns None if this has to be agreed on first. The gradients are then unchanged.
        """
        if not self._buckets.on_host:
            return None
        carried = self._usual[place]
        if asks or reached != self.members:
            is_unexpected = not reached <= self.members
            of_each = (float(index in reached) for index in self._order)
            carried = torch.tensor([float(place), float(is_unexpected), float(asks), *of_each])
        mean_place, num_unexpected, num_asking, *shares = self._buckets.average(carried, self._num_processes)
        _require_same_place(mean_place, place)
        if num_unexpected > 0:
            return None
        if min(shares) > 0:
            self._buckets.write_back()
        else:
            self._write_back({index for index, share in zip(self._order, shares, strict=True) if share > 0})
        return num_asking > 0

    def average_agreed(self, reached_by_any: set[int]) -> None:
        """Exchange the gradients of parameters of which it is known that some process has reached them."""
        self._buckets.average(None, self._num_processes)
        self._write_back(reached_by_any)

    def _write_back(self, reached_by_any: set[int]) -> None:
        self._buckets.write_back(frozenset(self._ids[index] for index in self.members - reached_by_any))


def _require_same_place(mean: float, own: int) -> None:
    if abs(mean - own) < _TOLERANCE:
        return
    raise RanksDifferError(
        "The processes have diverged within a batch.",
        given="a backward pass, or a step, that only some of the processes have made",
        do="Call context.backward() equally often on all processes. If a process has nothing to "
        "differentiate, call context.backward(0 * loss) there.",
    )


def _may_have_gradient(parameter: Tensor) -> bool:
    return parameter.is_floating_point() or parameter.is_complex()


def _watch(parameter: nn.Parameter, reached: list[Tensor]) -> RemovableHandle:
    """Let backward passes that reach a parameter add it to a list."""
    is_frozen = not parameter.requires_grad
    if is_frozen:  # torch refuses the hook, which acts only when the parameter is unfrozen
        parameter.requires_grad_(True)
    try:
        handle: RemovableHandle = cast("Any", parameter).register_post_accumulate_grad_hook(reached.append)
    finally:
        if is_frozen:
            parameter.requires_grad_(False)
    return handle
