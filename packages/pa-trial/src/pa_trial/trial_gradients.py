"""Averages the gradients of several processes, as a single process would have computed them.

Models are not wrapped: no wrapper takes part in their forward passes, so any number of models,
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
from pa_distributed.gradients import GradientExchange
from pa_trial.errors import InvalidExperimentException

_collectives: Any = dist  # torch annotates only some of its collectives
_PLACES = 1 << 10
"""The number of places of a training that are distinguished: sums of their numbers are exact in float32."""


class TrialGradients:
    """Averages the gradients of the backward passes since the last average, over all processes.

    Only models that a process has reached are exchanged. Each process expects to reach the same models as at the same
    point of earlier batches. Whether it did so is sent with the gradients, or over gloo if the gradients are on an
    accelerator. If only some processes have reached a parameter, the gradient of this parameter counts as zero on the
    others. The gradient of a parameter that no process has reached is not changed, even if it is None.

    Every process must compute the same averages in the same order.

    Args:
        models: The models, the same on each process; frozen parameters may be unfrozen later.
        device: The device of the models.
    """

    def __init__(self, models: Sequence[nn.Module], device: torch.device) -> None:
        self._models, self._device = list(models), device
        self._owners: dict[int, int] = {}  # indices of models, by the ids of their parameters
        self._handles: list[RemovableHandle] = []
        self._exchanges: dict[tuple[int, ...], GradientExchange] = {}  # by the indices of their models
        self._reached: list[Tensor] = []
        for index, model in enumerate(models):
            for parameter in model.parameters():
                may_have_gradient = parameter.is_floating_point() or parameter.is_complex()
                if may_have_gradient and id(parameter) not in self._owners:
                    self._owners[id(parameter)] = index
                    self._handles.append(_watch(parameter, self._reached))
        self._host_group: Any = None if _collectives.get_backend() == "gloo" else _collectives.new_group(backend="gloo")
        self._travels_along = self._host_group is None and device.type == "cpu"
        self._batch_idx = 0
        self._position = 0
        self._expected: list[tuple[int, ...]] = []  # for each place of a batch, the indices of the models

    @property
    def is_due(self) -> bool:
        """Whether this process has gradients to average, or has not averaged any since ``start_batch``."""
        return bool(self._reached) or self._position == 0

    def is_pending(self, parameters: Iterable[Tensor]) -> bool:
        """Whether gradients of these parameters are still to be averaged.

        Args:
            parameters: Parameters of an optimizer.
        """
        if not self._reached:
            return False
        pending = set(map(id, self._reached))
        return any(id(parameter) in pending for parameter in parameters)

    def unknown(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return the parameters whose gradients are not averaged.

        Args:
            parameters: Parameters of an optimizer.
        """
        return [parameter for parameter in parameters if id(parameter) not in self._owners]

    def note_reached(self, parameters: Iterable[Tensor]) -> None:
        """Treat gradients as due although they were not computed by a backward pass of this process.

        Args:
            parameters: The parameters that have such gradients.
        """
        self._reached.extend(parameters)

    def start_batch(self, batch_idx: int) -> None:
        """Begin a batch, which is expected to reach the same models as the batch before.

        Args:
            batch_idx: Its index.
        """
        self._batch_idx, self._position = batch_idx, 0

    def start_pass(self) -> None:
        """Begin a backward pass that ``average`` follows: gradients are sent while it is in progress."""
        expected = self._models_expected()
        if expected:
            self._exchange_of(expected).open()

    def average(self, *, asks: bool = False) -> bool:
        """Replace the gradients by their means over the processes; every process must call this.

        Args:
            asks: Whether this process requests a stop, which is sent with the gradients.

        Returns:
            Whether any process requests it.

        Raises:
            InvalidExperimentException: A parameter was unfrozen only for a backward pass.
            RanksDifferError: This process is at a different point of the training than the others.
        """
        expected = self._models_expected()
        place = (3 * self._batch_idx + self._position) % _PLACES
        reached = {self._owners[id(parameter)] for parameter in self._reached}
        numbers = [float(place), float(asks), *(float(index in reached) for index in range(len(self._models)))]
        travels_along = self._travels_along and expected != ()
        if travels_along:
            sums = self._finish(expected, numbers)
        else:
            sums = torch.tensor(numbers)
            _collectives.all_reduce(sums, group=self._host_group)
        sum_of_places, num_asking, *counts = cast("list[float]", sums.tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch
        if sum_of_places != place * dist.get_world_size():
            raise RanksDifferError(
                "The processes have diverged within a batch: only some of them have made a backward pass, or a step. "
                "Call context.backward() equally often on all processes. If a process has nothing to differentiate, "
                "call context.backward(0 * loss) there."
            )
        found = tuple(index for index, count in enumerate(counts) if count)
        unexpected = tuple(index for index in found if index not in expected)
        for models in (unexpected,) if travels_along else (expected, unexpected):
            if models:
                self._finish(models, numbers)
        if self._position == len(self._expected):
            self._expected.append(found)
        elif unexpected:
            self._expected[self._position] = tuple(sorted(expected + unexpected))
        self._require_exchanged()
        self._reached.clear()
        self._position += 1
        return num_asking > 0

    def _require_exchanged(self) -> None:
        """Raise an error for parameters that were unfrozen for backward passes only, so that no exchange knows them."""
        frozen = {id(parameter) for parameter in self._reached if not parameter.requires_grad}
        if frozen and frozen.difference(
            id(parameter) for exchange in self._exchanges.values() for parameter in exchange.parameters
        ):
            raise InvalidExperimentException(
                "Parameters were frozen again between a backward pass and the exchange of its gradients, so the "
                "processes would diverge.",
                do="Freeze them after context.step_optimizer().",
            )

    def _finish(self, models: tuple[int, ...], numbers: Sequence[float]) -> Tensor:
        exchange = self._exchange_of(models)
        sums = exchange.finish(numbers)
        exchange.end_update()
        return sums

    def _models_expected(self) -> tuple[int, ...]:
        """Return the models that this place, or a new place's predecessor, reached in the batches before."""
        return self._expected[min(self._position, len(self._expected) - 1)] if self._expected else ()

    def _exchange_of(self, models: tuple[int, ...]) -> GradientExchange:
        if models not in self._exchanges:
            self._exchanges[models] = GradientExchange(
                [self._models[index] for index in models],
                2 + len(self._models),
                self._device,
                includes=lambda parameter: self._owners.get(id(parameter)) in models,
            )
        return self._exchanges[models]

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for exchange in self._exchanges.values():
            exchange.close()
        for handle in self._handles:
            handle.remove()
        self._reached.clear()
        if self._host_group is not None:
            _collectives.destroy_process_group(self._host_group)


def _watch(parameter: nn.Parameter, reached: list[Tensor]) -> RemovableHandle:
    """Let backward passes that reach a parameter add it to a list."""
    is_frozen = not parameter.requires_grad
    if is_frozen:  # torch rejects the hook; it acts only when the parameter is unfrozen
        parameter.requires_grad_(True)
    try:
        untyped: Any = parameter  # torch annotates the method only partly
        handle: RemovableHandle = untyped.register_post_accumulate_grad_hook(reached.append)
    finally:
        if is_frozen:
            parameter.requires_grad_(False)
    return handle
