"""Gradients side by side in a few flat tensors, so that one exchange takes many of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pa_trial._torch import foreach
from pa_trial.errors import InvalidExperimentException

_collectives: Any = dist  # torch annotates its collectives only in part


class GradientBuckets:
    """The means over the processes of the gradients of some parameters.

    There is one flat tensor for each dtype and device. Each process has to make the same buckets.

    Args:
        parameters: The parameters, in the same order on each process.
        num_carried: How many numbers travel with the gradients, in the first of the tensors.

    Attributes:
        parameters: As passed.
        on_host: Whether the numbers that travel along can be read without waiting for a device.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([1.0, 3.0])
        >>> buckets = GradientBuckets([weight], num_carried=1)
        >>> buckets.average(torch.tensor([2.0]), num_processes=1)
        [2.0]
        >>> buckets.write_back()
        >>> weight.grad
        tensor([1., 3.])
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, num_carried: int) -> None:
        self.parameters: list[nn.Parameter] = list(parameters)
        grouped: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for parameter in parameters:
            grouped.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        self._buckets: list[_Bucket] = []
        for members in grouped.values():
            self._buckets.append(_Bucket(members, 0 if self._buckets else num_carried))
        self.on_host: bool = bool(self._buckets) and self._buckets[0].carried.device.type == "cpu"

    def average(self, carried: Tensor | None, num_processes: int) -> list[float]:
        """Compute the means, which stay here until ``write_back``; every process must call this.

        A parameter without a gradient counts as one with a gradient of zero.

        Args:
            carried: The numbers of this process that travel along; None without any.
            num_processes: The number of processes.

        Returns:
            The means of these numbers.

        Raises:
            InvalidExperimentException: A gradient is sparse.
        """
        for bucket in self._buckets:
            bucket.fill()
        if carried is not None:
            self._buckets[0].carried.copy_(carried)
        for bucket in self._buckets:
            bucket.average(num_processes)
        if carried is None:
            return []
        return cast("list[float]", self._buckets[0].carried.tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch

    def write_back(self, left_out: frozenset[int] = frozenset()) -> None:
        """Give the parameters the means.

        Args:
            left_out: The ids of those that keep what they have.
        """
        for bucket in self._buckets:
            bucket.write_back(left_out)


class _Bucket:
    """The gradients of one dtype on one device."""

    def __init__(self, parameters: list[nn.Parameter], num_carried: int) -> None:
        self._parameters = parameters
        sizes = [parameter.numel() for parameter in parameters]
        first = parameters[0]
        self._flat = torch.zeros(num_carried + sum(sizes), dtype=first.dtype, device=first.device)
        # The backends of torch know real numbers only.
        self._real = torch.view_as_real(self._flat) if self._flat.is_complex() else self._flat
        self._gradients = self._flat[num_carried:]
        self.carried = self._real[:num_carried, 0] if self._flat.is_complex() else self._flat[:num_carried]
        pieces = torch.split(self._gradients, sizes)
        self._pieces = [piece.view(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=True)]

    def fill(self) -> None:
        gradients = [parameter.grad for parameter in self._parameters]
        pieces = self._pieces
        if any(gradient is None for gradient in gradients):
            self._gradients.zero_()
            pieces = [piece for piece, gradient in zip(pieces, gradients, strict=True) if gradient is not None]
        present = [gradient for gradient in gradients if gradient is not None]
        if not present:
            return
        try:
            foreach("copy_", pieces, present)
        except RuntimeError as error:
            if any(gradient.is_sparse for gradient in present):
                problem = (
                    "Sparse gradients cannot be exchanged between processes: leave sparse=True of nn.Embedding out."
                )
                raise InvalidExperimentException(problem) from error
            raise

    def average(self, num_processes: int) -> None:
        self._real.mul_(1 / num_processes)  # before the sum, which might overflow
        if num_processes > 1:
            _collectives.all_reduce(self._real)

    def write_back(self, left_out: frozenset[int]) -> None:
        gradients: list[Tensor] = []
        pieces: list[Tensor] = []
        for parameter, piece in zip(self._parameters, self._pieces, strict=True):
            if left_out and id(parameter) in left_out:
                continue
            gradient = parameter.grad
            if gradient is None:
                gradient = parameter.grad = torch.empty_like(parameter, requires_grad=False)
            gradients.append(gradient)
            pieces.append(piece)
        if gradients:
            foreach("copy_", gradients, pieces)
