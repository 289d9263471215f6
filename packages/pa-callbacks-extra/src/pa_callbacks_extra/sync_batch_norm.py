"""The arithmetic of batch norm over several processes, and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

_collectives: Any = dist  # torch annotates only some of them


class BatchStatistics:
    """Mean and variance of each channel of a batch that is spread over several processes.

    Squared deviations from the mean of each process are summed and then converted to deviations from the common mean
    (Chan, Golub and LeVeque, 1983), because plain sums of squares lose the deviations of values that are far from zero.
    Half-precision values are summed in float32. Each process of the group must construct this.

    Args:
        values: The part of the batch on this process, of shape ``(samples, channels, ...)``. It may be empty.
        group: The processes.

    Attributes:
        mean: The means, of shape ``(channels,)``.
        variance: The biased variances, of shape ``(channels,)``.
        count: The number of values of a channel on all processes.
        group: The processes.
    """

    def __init__(self, values: Tensor, group: dist.ProcessGroup) -> None:
        self.group = group
        values = values.detach().to(torch.promote_types(values.dtype, torch.float32))
        channels = values.size(1)
        own = values.new_zeros(2 * channels + 1)
        own[-1] = values.numel() // channels
        if values.numel() > 0:
            variance, mean = torch.var_mean(values, _all_but_channels(values), correction=0)
            own[:channels], own[channels:-1] = mean, variance
        gathered = [torch.empty_like(own) for _ in range(group.size())]
        _collectives.all_gather(gathered, own, group=group)
        of_each_process = torch.stack(gathered)
        means, variances = of_each_process[:, :channels], of_each_process[:, channels:-1]
        counts = of_each_process[:, -1:]
        self.count: float = float(counts.sum())
        self.mean: Tensor = (means * counts).sum(0) / self.count
        self.variance: Tensor = ((variances + (means - self.mean).square()) * counts).sum(0) / self.count


def normalise(
    values: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: BatchStatistics, eps: float
) -> Tensor:
    """Normalize the part of a batch on this process.

    The backward pass exchanges sums of gradients if ``values`` requires a gradient, so each process of the group must
    run it. As is usual with ``DistributedDataParallel``, the gradients of weight and bias come from this process alone.

    Args:
        values: The values that the statistics were computed from.
        weight: The factor of each channel, None for 1.
        bias: The number added to each channel, None for 0.
        statistics: The statistics of the whole batch.
        eps: Added to the variances, so that none of them is zero.
    """
    return _apply(values, weight, bias, statistics, torch.rsqrt(statistics.variance + eps))


class _Normalise(torch.autograd.Function):
    """The derivation is the same as for batch norm, with sums over all processes."""

    @staticmethod
    @override
    def forward(
        ctx: Any,
        values: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        statistics: BatchStatistics,
        inverse_deviation: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(values, weight, bias, inverse_deviation)
        ctx.statistics = statistics
        normalised = _normalised(values, statistics, inverse_deviation)
        if weight is not None:
            normalised = normalised * _by_channel(weight, values)
        if bias is not None:
            normalised = normalised + _by_channel(bias, values)
        return normalised.to(values.dtype)

    @staticmethod
    @override
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator hides the names of parameters
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        values, weight, bias, inverse_deviation = ctx.saved_tensors
        statistics: BatchStatistics = ctx.statistics
        gradient = gradients[0].to(inverse_deviation.dtype)
        normalised = _normalised(values, statistics, inverse_deviation)
        dimensions = _all_but_channels(values)
        sums = torch.stack([gradient.sum(dimensions), (gradient * normalised).sum(dimensions)])
        of_weight = sums[1].to(weight.dtype) if ctx.needs_input_grad[1] else None
        of_bias = sums[0].to(bias.dtype) if ctx.needs_input_grad[2] else None
        if not ctx.needs_input_grad[0]:
            return None, of_weight, of_bias, None, None
        means = sums.clone()
        _collectives.all_reduce(means, group=statistics.group)
        means /= statistics.count
        of_values = gradient - _by_channel(means[0], values) - normalised * _by_channel(means[1], values)
        scale = inverse_deviation if weight is None else inverse_deviation * weight
        return (of_values * _by_channel(scale, values)).to(values.dtype), of_weight, of_bias, None, None


_apply = cast("Callable[..., Tensor]", _Normalise.apply)  # pyright: ignore[reportUnknownMemberType]  # torch does not annotate it


def _normalised(values: Tensor, statistics: BatchStatistics, inverse_deviation: Tensor) -> Tensor:
    return (values - _by_channel(statistics.mean, values)) * _by_channel(inverse_deviation, values)


def _all_but_channels(values: Tensor) -> list[int]:
    return [0, *range(2, values.dim())]


def _by_channel(numbers: Tensor, values: Tensor) -> Tensor:
    return numbers.view(-1, *[1] * (values.dim() - 2))
