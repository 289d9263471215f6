"""Averages the gradients of an update over the processes during its last backward pass, without wrapping a module.

Without a wrapper, any number of modules, forward passes and backward passes is possible. The parameters are grouped
into buckets, in the order in which a backward pass reaches them. A bucket is averaged as soon as all of its gradients
are available, and all processes send their buckets in the same order. The last bucket waits until the update needs the
result, since small numbers of each process are sent with it. If a process has no gradient for a parameter, the gradient
counts as zero. If no process has a gradient for it, the parameter stays without a gradient, as on one process.
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

from pa_distributed._errors import require_count
from pa_distributed._torch import after_backward_pass, foreach, ignored_by_ddp

__all__ = ["GradientExchange"]

# torch annotates its collectives only in part
_collectives: Any = dist

_BYTES_OF_FIRST_BUCKET: Final = 1 << 20
"""The size of the first bucket, which is small so that the exchange begins early in the backward pass."""
_EXACT: Final = (torch.float32, torch.float64)
"""The types that can hold counts exactly."""


@dataclass
class _Bucket:
    """Gradients of one type that are averaged together.

    Attributes:
        parameters: The parameters of these gradients.
        flat: The tensor that is added up over the processes. The next three attributes are consecutive views of it.
        gradients: The gradients.
        is_present: For each parameter 1, or 0 if this process has no gradient for it.
        values: The numbers that are sent with the last bucket; empty in other buckets.
        views: The gradients as views in the shapes of the parameters.
        awaited: The identifiers of the parameters that this backward pass has not reached yet.
        exchange: The collective in progress.
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
    """Averages gradients over the processes, as ``DistributedDataParallel`` does, without wrapping the modules.

    Use it in a loop that trains several modules, calls methods other than ``forward``, accumulates gradients, or
    freezes parameters while it trains. ``DistributedDataParallel`` needs special care in each of these cases. This
    class hooks into the parameters instead, and sends gradients while the backward pass is in progress. It does not
    send the initial weights or the buffers, so give all processes the same weights. For results that do not depend on
    the number of processes, use ``GradientTree``.

    Each update, that is, each optimizer step, is a sequence of calls. All backward passes except the last keep their
    gradients on this process. Call ``open`` before the last backward pass, and ``finish`` after it. ``finish`` averages
    the gradients and adds up a few numbers, for example the numbers of samples. Then step the optimizer and call
    ``end_update``. Without ``open``, everything is sent in ``finish``, which is slower. Without ``end_update``,
    backward passes of the next update are averaged one by one. No call raises an error because of its order, but if the
    processes make different calls, they wait for each other until they time out. Call ``close`` at the end, which
    removes the hooks from the parameters. Between ``finish`` and ``end_update``, the gradients of each further backward
    pass are averaged when the pass ends, because some optimizers evaluate the loss several times.

    If a parameter gets no gradient on some processes, the missing gradient counts as zero; if it gets none on any
    process, ``grad`` stays None. So nothing like ``find_unused_parameters`` is needed. Parameters may be frozen and
    unfrozen at any time. Parameters that ``DistributedDataParallel`` was told to ignore
    are ignored here, too. Gradients of embeddings with ``sparse=True`` are averaged as sparse tensors.

    ``torch.distributed`` must be initialized, and every process must make the same calls.

    Args:
        modules: The trained modules, with the same parameters on each process.
        num_values: How many numbers ``finish`` adds up over the processes in each update. The default is 0; call
            ``exchange.finish([])`` in this case.
        device: The device of the parameters. The default, None, is the CPU; pass the device of the model if it is on an
            accelerator.
        includes: A function that is called with a parameter and returns whether its gradient is averaged. The default,
            None, averages all.
        bucket_bytes: The bytes of gradients that are sent together. The default of 25 MiB is the default of
            ``DistributedDataParallel``: large enough for an efficient exchange, and small enough to begin early.
        dtype: The type in which gradients are sent, for example ``torch.bfloat16`` to send half as much. With the
            default, None, each gradient keeps its type, so nothing is rounded.

    Attributes:
        parameters: The parameters that took part in the last exchange; empty before the first.

    Raises:
        ValueError: ``torch.distributed`` is not initialized.

    Example:
        >>> import torch
        >>> from pa_distributed.gradients import GradientExchange
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> exchange = GradientExchange([model], num_values=1)
        >>> for batch in torch.ones(3, 8, 2):
        ...     exchange.open()
        ...     model(batch).mean().backward()
        ...     samples_of_all_processes = exchange.finish([float(len(batch))])
        ...     optimizer.step()
        ...     exchange.end_update()
        ...     optimizer.zero_grad()
        >>> samples_of_all_processes
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
        """Prepare for the last backward pass of an update, whose gradients are averaged.

        You call it on every process before that pass, and ``finish`` after it. A second call before ``finish`` has no
        effect. An update is one optimizer step.

        Args:
            overlaps: Whether to send gradients during the backward pass. The default, True, is faster. Pass False if a
                process may have no backward pass in this update, for example because it has no samples left, or if the
                passes of the processes differ.

        Example:
            >>> import torch
            >>> from pa_distributed.gradients import GradientExchange
            >>> store = torch.distributed.HashStore()
            >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            >>> model = torch.nn.Linear(2, 1)
            >>> exchange = GradientExchange([model])
            >>> model(torch.ones(8, 2)).sum().backward()  # accumulates, and sends nothing
            >>> exchange.open()
            >>> model(torch.ones(8, 2)).sum().backward()  # sends the sum of both passes
            >>> _ = exchange.finish([])
            >>> model.bias.grad
            tensor([16.])
            >>> torch.distributed.destroy_process_group()
        """
        if self._averages == "last pass":  # the second loss of the same batch
            return
        self._follow_freezing()
        self._averages, self._overlaps, self._is_stale, self._num_started = "last pass", overlaps, False, 0
        for bucket in self._buckets:
            bucket.awaited = {id(parameter) for parameter in bucket.parameters if parameter.requires_grad}

    def finish(self, values: Sequence[float]) -> Tensor:
        """Average the gradients over the processes, and add up a few numbers.

        You call it on every process after the last backward pass of an update, even on a process without a backward
        pass, since all processes wait for each other here. Afterwards, the ``grad`` of each parameter is the mean over
        the processes, where a missing gradient counts as zero; if no process has a gradient for a parameter, its
        ``grad`` stays None. Clip gradients and step the optimizer after this call. If you have not called ``open``,
        nothing was sent during the backward pass, and all gradients are sent here.

        Args:
            values: The numbers of this process, exactly as many as ``num_values``, for example its number of samples.
                They are sent with the gradients, so they need no separate collective. Pass an empty list if
                ``num_values`` is 0.

        Returns:
            The sums of the numbers over all processes, as a one-dimensional tensor of ``torch.float32`` on the given
            device. The tensor is of ``torch.float64`` if all parameters are.

        Raises:
            ValueError: There are more or fewer numbers than ``num_values``. Nothing was sent.

        Example:
            >>> import torch
            >>> from pa_distributed.gradients import GradientExchange
            >>> store = torch.distributed.HashStore()
            >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            >>> model = torch.nn.Linear(2, 1)
            >>> exchange = GradientExchange([model], num_values=2)
            >>> exchange.open()
            >>> model(torch.ones(8, 2)).sum().backward()
            >>> exchange.finish([8.0, 3.0])  # samples, and correct predictions
            tensor([8., 3.])
            >>> torch.distributed.destroy_process_group()
        """
        require_count(values, self._num_values)
        if self._averages != "last pass":  # no backward pass of this process has begun the exchange
            self.open(overlaps=False)
        if self._is_stale:  # a second backward pass has added to gradients that were sent
            for bucket in self._buckets[: self._num_started]:
                bucket.exchange.wait()
            self._num_started = 0
        self._averages = "each pass"
        return self._exchange(values)

    def average_each_pass(self) -> None:
        """Average the gradients at the end of each backward pass, until ``end_update``.

        You call it on every process in an update without ``open`` and ``finish``, for example if an optimizer such as
        LBFGS runs all backward passes in its closure. All processes must then run the same number of backward passes.
        ``finish`` switches to this mode by itself.

        Example:
            >>> import torch
            >>> from pa_distributed.gradients import GradientExchange
            >>> store = torch.distributed.HashStore()
            >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            >>> model = torch.nn.Linear(2, 1)
            >>> exchange = GradientExchange([model])
            >>> exchange.average_each_pass()
            >>> model(torch.ones(8, 2)).sum().backward()  # averaged when it ends
            >>> exchange.end_update()
            >>> model.bias.grad
            tensor([8.])
            >>> torch.distributed.destroy_process_group()
        """
        self._follow_freezing()
        self._averages = "each pass"

    def end_update(self) -> None:
        """End an update, so that gradients of later backward passes stay on this process until ``open``.

        You call it on every process after the optimizer step, and when an update is abandoned after ``open``. It does
        not change the gradients; clear them with ``optimizer.zero_grad()``.

        Example:
            >>> import torch
            >>> from pa_distributed.gradients import GradientExchange
            >>> store = torch.distributed.HashStore()
            >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            >>> model = torch.nn.Linear(2, 1)
            >>> exchange = GradientExchange([model])
            >>> exchange.open()
            >>> model(torch.ones(8, 2)).sum().backward()
            >>> exchange.end_update()  # abandoned: the loss was invalid
            >>> torch.distributed.destroy_process_group()
        """
        for bucket in self._buckets:
            if bucket.exchange is not None:  # the update was abandoned
                bucket.exchange.wait()
                bucket.exchange = None
        self._averages = "nothing"

    def close(self) -> None:
        """Remove the gradient hooks from the parameters.

        You call it when training has ended and the modules live longer than this object. Otherwise backward passes
        would still call the hooks. It waits for gradients that are being sent. A second call has no effect.

        Example:
            >>> import torch
            >>> from pa_distributed.gradients import GradientExchange
            >>> store = torch.distributed.HashStore()
            >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            >>> model = torch.nn.Linear(2, 1)
            >>> exchange = GradientExchange([model])
            >>> exchange.close()
            >>> model(torch.ones(8, 2)).sum().backward()  # an ordinary backward pass again
            >>> torch.distributed.destroy_process_group()
        """
        self.end_update()
        while self._hooks:
            self._hooks.pop().remove()
        self._buckets = []

    def parameters_of(self, module: nn.Module) -> list[nn.Parameter]:
        """Return the parameters of a module whose gradients are averaged, including frozen parameters.

        You call it to check which parameters are left out, by ``includes`` or because ``DistributedDataParallel`` was
        told to ignore them. The ``parameters`` attribute, in contrast, holds the parameters of all modules in the last
        exchange, without those that are frozen on all processes.

        Args:
            module: A module, usually an element of ``modules``.

        Returns:
            The parameters in the order of ``module.parameters()``.

        Example:
            >>> import torch
            >>> from pa_distributed.gradients import GradientExchange
            >>> store = torch.distributed.HashStore()
            >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            >>> model = torch.nn.Linear(2, 1)
            >>> exchange = GradientExchange([model], includes=lambda parameter: parameter is not model.bias)
            >>> [tuple(parameter.shape) for parameter in exchange.parameters_of(model)]
            [(1, 2)]
            >>> torch.distributed.destroy_process_group()
        """
        ignored = ignored_by_ddp(module)
        own = (parameter for name, parameter in module.named_parameters() if name not in ignored)
        return [parameter for parameter in own if self._includes is None or self._includes(parameter)]

    def _follow_freezing(self) -> None:
        """Build the buckets again if parameters were frozen, unfrozen, added or removed."""
        trainable = [parameter.requires_grad for parameter in self._all]
        if self._buckets and trainable == self._trainable and not self._has_frozen:
            return
        before, ids_before = self._trainable, list(map(id, self.parameters))
        self._all = list(
            dict.fromkeys(parameter for module in self._modules for parameter in self.parameters_of(module))
        )
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
        """Return the trained parameters, and the frozen parameters that have a gradient on any process."""
        if all(self._trainable):
            return self._all
        of_each = [parameter.requires_grad or parameter.grad is not None for parameter in self._all]
        taking_part = torch.tensor(of_each, dtype=torch.int32, device=self._device)
        _collectives.all_reduce(taking_part, op=dist.ReduceOp.MAX)
        return [parameter for parameter, takes_part in zip(self._all, taking_part.cpu(), strict=True) if takes_part]

    def _ids_of_sparse(self) -> set[int]:
        """Return the identifiers of the parameters with sparse gradients."""
        layers = [layer for module in self._modules for layer in module.modules()]
        embeddings = [layer for layer in layers if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
        return {id(layer.weight) for layer in embeddings if layer.sparse}

    def _add_bucket(self, dtype: torch.dtype, parameters: list[nn.Parameter], num_values: int) -> None:
        """Add a bucket for parameters of one type."""
        sizes = [parameter.numel() for parameter in parameters]
        flat = torch.zeros(sum(sizes) + len(sizes) + num_values, dtype=dtype, device=self._device)
        gradients, is_present, values = torch.split(flat, [sum(sizes), len(sizes), num_values])
        pieces = zip(torch.split(gradients, sizes), parameters, strict=True)
        views = [piece.view(parameter.shape) for piece, parameter in pieces]
        self._buckets.append(_Bucket(parameters, flat, gradients, is_present, values, views))

    def _add_hooks(self, bucket: _Bucket, parameters: Sequence[nn.Parameter]) -> None:
        """Call ``_note_gradient`` when a backward pass has added to a gradient."""
        for parameter in parameters:
            if parameter.requires_grad:
                untyped: Any = parameter  # torch annotates the method only in part
                hook = untyped.register_post_accumulate_grad_hook(partial(self._note_gradient, bucket))
                self._hooks.append(hook)

    def _note_gradient(self, bucket: _Bucket, parameter: Tensor) -> None:
        """Record that a backward pass has added to a gradient, and send the buckets that are complete."""
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
        """Average the gradients at the end of a backward pass."""
        self._is_queued, self._num_started = False, 0
        self._exchange([0.0] * self._num_values)

    @torch.no_grad()
    def _start(self, bucket: _Bucket) -> None:
        """Begin to send the available gradients of a bucket."""
        self._num_started += 1
        bucket.is_present.fill_(1)
        gradients = [parameter.grad for parameter in bucket.parameters]
        for number, gradient in enumerate(gradients):
            if gradient is None:
                bucket.is_present[number] = 0
                bucket.views[number].zero_()
        there = [
            (view, gradient) for view, gradient in zip(bucket.views, gradients, strict=True) if gradient is not None
        ]
        if there:
            self._copy(*map(list, zip(*there, strict=True)))
        bucket.gradients.div_(self._num_processes)
        bucket.exchange = _collectives.all_reduce(bucket.flat, async_op=True)

    @torch.no_grad()
    def _exchange(self, values: Sequence[float]) -> Tensor:
        """Send the remaining buckets, wait for all, and return the sums of the numbers."""
        last = self._buckets[-1]
        if values != self._sent[0]:  # most updates send the same numbers as the previous update
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
    """Divide parameters into groups of about the given number of bytes; the first group is smaller."""
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
    """Copy the means to the parameters; the device is read only if this process had no gradient for some of them."""
    gradients = [parameter.grad for parameter in bucket.parameters]
    there = [(gradient, view) for gradient, view in zip(gradients, bucket.views, strict=True) if gradient is not None]
    if there:
        copy(*map(list, zip(*there, strict=True)))
    if len(there) < len(gradients):
        on_others = (bucket.is_present != 0).cpu()
        for number, parameter in enumerate(bucket.parameters):
            if parameter.grad is None and bool(on_others[number]):
                parameter.grad = torch.empty_like(parameter).copy_(bucket.views[number])


def _mean_of_sparse(parameter: nn.Parameter, num_processes: int) -> Tensor | None:
    """Return the mean of the sparse gradients of all processes, or None if no process has a gradient."""
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
    return torch.cat([rows_of_rank[:length] for rows_of_rank, length in zip(gathered, lengths, strict=True)])
