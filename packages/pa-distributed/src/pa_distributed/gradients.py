"""Averages the gradients of an update over the processes, while its last backward pass is in progress.

No module is wrapped, so that any number of them, of forward passes and of backward passes works. The parameters lie in
buckets, in the order in which a backward pass reaches them. A bucket is averaged as soon as all of its gradients are
there, and the buckets in the same order on each process. The last one waits until the update needs the result: small
numbers of each process travel with it. Where a process has no gradient, it counts as zero. A parameter that has a
gradient on no process keeps none, as on one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pa_distributed._torch import after_backward_pass, foreach, ignored_by_ddp

__all__ = ["GradientExchange"]

# torch annotates its collectives only in part
_collectives: Any = dist

_BYTES_OF_FIRST_BUCKET: Final = 1 << 20
"""A small one, so that the exchange begins early in the backward pass."""
_EXACT: Final = (torch.float32, torch.float64)
"""The types that counts can travel in."""


@dataclass
class _Bucket:
    """Gradients of one type that are averaged together.

    Attributes:
        parameters: What they are the gradients of.
        flat: What is added up over the processes: the three that follow, one after the other.
        gradients: The gradients.
        is_present: For each parameter 1, or 0 where this process has no gradient of it.
        values: The numbers that travel with the last bucket; empty in others.
        views: The gradients, each in its shape.
        awaited: The parameters that this backward pass has not come to yet.
        exchange: The exchange in progress.
    """

    parameters: list[nn.Parameter]
    flat: Tensor
    gradients: Tensor
    is_present: Tensor
    values: Tensor
    views: list[Tensor]
    awaited: set[int] = field(default_factory=set[int])
    exchange: Any = None


class GradientExchange:
    """Averages gradients over the processes, and adds up small numbers.

    Between two updates, gradients stay on their process. ``open`` begins the last backward pass of an update, and
    ``finish`` exchanges what there is. Passes that follow in the same update, as optimizers with two of them make, are
    averaged each at its end, until ``end_update``.

    Parameters may be frozen and unfrozen at any time. What ``DistributedDataParallel`` was told to leave alone is left
    alone. Sparse gradients are expected of layers with ``sparse=True``.

    Args:
        modules: What is trained, the same on each process.
        num_values: How many numbers are added up with the gradients of an update.
        device: The device of the parameters.
        includes: Tells which of their parameters are averaged; None for all.
        bucket_bytes: The size of the buckets.
        dtype: The type in which gradients are sent; None for their own.

    Attributes:
        parameters: What has taken part in the last exchange.

    Example:
        >>> import torch
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> model = torch.nn.Linear(2, 1)
        >>> exchange = GradientExchange([model], num_values=1)
        >>> exchange.open()
        >>> model(torch.ones(8, 2)).sum().backward()
        >>> exchange.finish([8.0])  # samples of all processes
        tensor([8.])
        >>> exchange.close()
        >>> torch.distributed.destroy_process_group()
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        num_values: int = 0,
        device: torch.device | None = None,
        *,
        includes: Callable[[nn.Parameter], bool] | None = None,
        bucket_bytes: int = 25 << 20,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._modules = list(modules)
        self._num_values = num_values
        self._device = device or torch.device("cpu")
        self._includes = includes
        self._bucket_bytes = bucket_bytes
        self._dtype = dtype
        self._num_processes = dist.get_world_size()
        self._averages: Literal["nothing", "last pass", "each pass"] = "nothing"
        self._overlaps = self._is_stale = self._is_queued = False
        self._num_started = 0
        self._copy = foreach("copy_")
        self.parameters: list[nn.Parameter] = []
        self._all: list[nn.Parameter] = []
        self._sparse: list[nn.Parameter] = []
        self._trainable: list[bool] = []
        self._has_frozen = False
        self._buckets: list[_Bucket] = []
        self._hooks: list[RemovableHandle] = []
        self._sent: tuple[Sequence[float], Tensor] = (), torch.empty(0)

    def open(self, *, overlaps: bool = True) -> None:
        """Begin the last backward pass of an update; every process must call this, and ``finish`` after the pass.

        Args:
            overlaps: Whether to exchange gradients during the backward pass. False where processes may have different
                passes, as one without samples has none.
        """
        if self._averages == "last pass":  # as a second loss of the same batch is passed
            return
        self._follow_freezing()
        self._averages, self._overlaps, self._is_stale, self._num_started = "last pass", overlaps, False, 0
        for bucket in self._buckets:
            bucket.awaited = {id(parameter) for parameter in bucket.parameters if parameter.requires_grad}

    def finish(self, values: Sequence[float]) -> Tensor:
        """Average the gradients that are there; return the sums of the numbers of all processes, on the device.

        Args:
            values: The numbers of this process.
        """
        if self._averages != "last pass":  # no backward pass of this process has begun the exchange
            self.open(overlaps=False)
        if self._is_stale:  # a second backward pass has added to gradients that were sent
            for bucket in self._buckets[: self._num_started]:
                bucket.exchange.wait()
            self._num_started = 0
        self._averages = "each pass"
        return self._exchange(values)

    def average_each_pass(self) -> None:
        """From here on, average the gradients at the end of each backward pass."""
        self._follow_freezing()
        self._averages = "each pass"

    def end_update(self) -> None:
        """From here on, gradients stay on their process."""
        for bucket in self._buckets:
            if bucket.exchange is not None:  # of an update that was not made
                bucket.exchange.wait()
                bucket.exchange = None
        self._averages = "nothing"

    def close(self) -> None:
        """Leave the parameters alone."""
        self.end_update()
        while self._hooks:
            self._hooks.pop().remove()
        self._buckets = []

    def parameters_of(self, module: nn.Module) -> list[nn.Parameter]:
        """Return the parameters of a module whose gradients are averaged, frozen ones included.

        Args:
            module: One of ``modules``.
        """
        ignored = ignored_by_ddp(module)
        own = (parameter for name, parameter in module.named_parameters() if name not in ignored)
        return [parameter for parameter in own if self._includes is None or self._includes(parameter)]

    def _follow_freezing(self) -> None:
        trainable = [parameter.requires_grad for parameter in self._all]
        if self._buckets and trainable == self._trainable and not self._has_frozen:
            return
        before, ids_before = self._trainable, list(map(id, self.parameters))
        self._all = list(dict.fromkeys(one for module in self._modules for one in self.parameters_of(module)))
        self._trainable = [parameter.requires_grad for parameter in self._all]
        self.parameters = self._agree_on_parameters()
        if self._buckets and (before, ids_before) == (self._trainable, list(map(id, self.parameters))):
            return  # as long as frozen parameters keep gradients of zero
        self.close()
        self._has_frozen = not all(parameter.requires_grad for parameter in self.parameters)
        sparse = self._ids_of_sparse()
        self._sparse = [parameter for parameter in self.parameters if id(parameter) in sparse]
        by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in reversed(self.parameters):
            if id(parameter) not in sparse:
                by_dtype.setdefault(self._dtype or parameter.dtype, []).append(parameter)
        groups = [(dtype, group) for dtype, all_ in by_dtype.items() for group in _grouped(all_, self._bucket_bytes)]
        groups.sort(key=lambda group: group[0] in _EXACT)
        if not groups or groups[-1][0] not in _EXACT:
            all_dtypes = {parameter.dtype for module in self._modules for parameter in module.parameters()}
            groups.append((torch.float64 if all_dtypes == {torch.float64} else torch.float32, []))
        for number, (dtype, group) in enumerate(groups, start=1):
            self._add_bucket(dtype, group, num_values=self._num_values if number == len(groups) else 0)
        for bucket in self._buckets:
            self._add_hooks(bucket, bucket.parameters)
        self._add_hooks(self._buckets[-1], self._sparse)

    def _agree_on_parameters(self) -> list[nn.Parameter]:
        """What is trained, and what was frozen while some process had a gradient for the next update."""
        if all(self._trainable):
            return self._all
        of_each = [one.requires_grad or one.grad is not None for one in self._all]
        taking_part = torch.tensor(of_each, dtype=torch.int32, device=self._device)
        _collectives.all_reduce(taking_part, op=dist.ReduceOp.MAX)
        return [one for one, takes_part in zip(self._all, taking_part.cpu(), strict=True) if takes_part]

    def _ids_of_sparse(self) -> set[int]:
        layers = [layer for module in self._modules for layer in module.modules()]
        embeddings = [layer for layer in layers if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
        return {id(layer.weight) for layer in embeddings if layer.sparse}

    def _add_bucket(self, dtype: torch.dtype, parameters: list[nn.Parameter], num_values: int) -> None:
        sizes = [parameter.numel() for parameter in parameters]
        flat = torch.zeros(sum(sizes) + len(sizes) + num_values, dtype=dtype, device=self._device)
        gradients, is_present, values = torch.split(flat, [sum(sizes), len(sizes), num_values])
        pieces = zip(torch.split(gradients, sizes), parameters, strict=True)
        views = [piece.view(parameter.shape) for piece, parameter in pieces]
        self._buckets.append(_Bucket(parameters, flat, gradients, is_present, values, views))

    def _add_hooks(self, bucket: _Bucket, parameters: Sequence[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.requires_grad:
                untyped: Any = parameter  # torch annotates the method only in part
                hook = untyped.register_post_accumulate_grad_hook(partial(self._note_gradient, bucket))
                self._hooks.append(hook)

    def _note_gradient(self, bucket: _Bucket, parameter: Tensor) -> None:
        """Called when a backward pass has added to the gradient of a parameter."""
        if self._averages == "nothing":
            return
        if self._averages == "each pass":
            if not self._is_queued:
                self._is_queued = True
                after_backward_pass(self._finish_pass)
            return
        self._is_stale = self._is_stale or bucket.exchange is not None
        bucket.awaited.discard(id(parameter))
        while self._overlaps and self._num_started < len(self._buckets) - 1:
            following = self._buckets[self._num_started]
            if following.awaited:
                break
            self._start(following)

    def _finish_pass(self) -> None:
        self._is_queued, self._num_started = False, 0
        self._exchange([0.0] * self._num_values)

    @torch.no_grad()
    def _start(self, bucket: _Bucket) -> None:
        """Send the gradients of a bucket that are there."""
        self._num_started += 1
        bucket.is_present.fill_(1)
        gradients = [parameter.grad for parameter in bucket.parameters]
        for number, gradient in enumerate(gradients):
            if gradient is None:
                bucket.is_present[number] = 0
                bucket.views[number].zero_()
        there = [(view, one) for view, one in zip(bucket.views, gradients, strict=True) if one is not None]
        if there:
            self._copy(*map(list, zip(*there, strict=True)))
        bucket.gradients.div_(self._num_processes)
        bucket.exchange = _collectives.all_reduce(bucket.flat, async_op=True)

    @torch.no_grad()
    def _exchange(self, values: Sequence[float]) -> Tensor:
        last = self._buckets[-1]
        if values != self._sent[0]:  # mostly nothing is asked for, as in the update before
            is_cuda = self._device.type == "cuda"  # where nothing waits for a copy from pinned memory
            on_host = torch.tensor(values, dtype=last.flat.dtype, pin_memory=is_cuda)
            self._sent = values, on_host.to(self._device, non_blocking=is_cuda)
        last.values.copy_(self._sent[1])
        for bucket in self._buckets[self._num_started :]:
            self._start(bucket)
        for parameter in self._sparse:
            parameter.grad = _mean_of_sparse(parameter, self._num_processes)
        for bucket in self._buckets:
            bucket.exchange.wait()
            bucket.exchange = None
            _take_back(bucket, self._copy)
        return last.values.clone()


def _grouped(parameters: list[nn.Parameter], num_bytes: int) -> Iterator[list[nn.Parameter]]:
    """Divide parameters into groups of about so many bytes, the first one smaller."""
    group: list[nn.Parameter] = []
    size, limit = 0, min(_BYTES_OF_FIRST_BUCKET, num_bytes)
    for parameter in parameters:
        group.append(parameter)
        size += parameter.numel() * parameter.element_size()
        if size >= limit:
            yield group
            group, size, limit = [], 0, num_bytes
    if group:
        yield group


def _take_back(bucket: _Bucket, copy: Callable[..., Any]) -> None:
    """Give the parameters the means; only where this process had no gradient is anything read from the device."""
    gradients = [parameter.grad for parameter in bucket.parameters]
    there = [(one, view) for one, view in zip(gradients, bucket.views, strict=True) if one is not None]
    if there:
        copy(*map(list, zip(*there, strict=True)))
    if len(there) < len(gradients):
        on_others = (bucket.is_present != 0).cpu()
        for number, parameter in enumerate(bucket.parameters):
            if parameter.grad is None and bool(on_others[number]):
                parameter.grad = torch.empty_like(parameter).copy_(bucket.views[number])


def _mean_of_sparse(parameter: nn.Parameter, num_processes: int) -> Tensor | None:
    """Return the mean of the sparse gradients of all processes, None where there is none."""
    if parameter.grad is None:
        rows, values = torch.empty(0, dtype=torch.int64, device=parameter.device), parameter.detach()[:0]
    else:
        own = parameter.grad.coalesce()
        rows, values = own.indices()[0], own.values()
    rows, values = _concatenated(rows), _concatenated(values / num_processes)
    if len(rows) == 0:
        return None
    untyped: Any = torch  # which annotates it only in part
    mean: Tensor = untyped.sparse_coo_tensor(rows[None], values, parameter.shape, check_invariants=False)
    return mean


def _concatenated(rows: Tensor) -> Tensor:
    """Return the rows of all processes, in the order of the ranks."""
    of_each = [torch.empty(1, dtype=torch.int64, device=rows.device) for _ in range(dist.get_world_size())]
    _collectives.all_gather(of_each, torch.tensor([len(rows)], device=rows.device))
    lengths = [int(number) for number in of_each]
    padded = rows.new_zeros(max(lengths), *rows.shape[1:])
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in lengths]
    _collectives.all_gather(gathered, padded)
    return torch.cat([one[:length] for one, length in zip(gathered, lengths, strict=True)])
