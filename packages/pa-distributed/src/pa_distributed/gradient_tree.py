"""Adds up the gradients of an update in an order that does not depend on how many processes compute them.

An update is cut into micro-batches by their position in it. Each process computes a contiguous block of them, and the
gradients of all are added up in a fixed binary tree. What a process can add up without the others, it does; the rest is
cut into chunks, of which each process adds up one in the order of the tree. So the result is bit-for-bit identical on
any number of processes, and as many bytes are sent as by a ring where the number of micro-batches is a power of two
times the number of processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pa_distributed._buffer_changes import Buffers
from pa_distributed._processes import num_processes
from pa_distributed._torch import all_gather_single, foreach, versions_of
from pa_distributed._tree import Node, block_of, nodes_of_ranks, push

__all__ = ["GradientTree"]

# torch annotates its collectives only in part
_collectives: Any = dist

_PAIR: Final = 2
_ALIGNMENT: Final = 64
"""In bytes: kernels take other ways through tensors that begin elsewhere."""


class _Flat:
    """Gradients of one bucket side by side.

    Attributes:
        whole: What one of two processes sends to the other: the next two.
        tensor: All of them, with zeros between and after them.
        notes: Room behind them for numbers that travel along.
        views: Each in the shape and the layout of its parameter, as autograd makes them.
    """

    def __init__(self, parameters: Sequence[Tensor], sizes: Sequence[int], numel: int, num_notes: int) -> None:
        like = parameters[0]
        numel_of_notes = -(-num_notes * 8 // like.element_size())
        self.whole = torch.zeros(numel + numel_of_notes, dtype=like.dtype, device=like.device)
        self.tensor, notes = self.whole.split_with_sizes([numel, numel_of_notes])
        self.notes = notes.view(torch.float64)[:num_notes]
        pieces = zip(torch.split(self.tensor[: sum(sizes)], list(sizes)), parameters, strict=True)
        self.views = [
            piece.as_strided(one.shape, torch.empty_like(one, device="meta").stride()) for piece, one in pieces
        ]


class _Bucket:
    """Gradients of one type that are sent together.

    Attributes:
        parameters: What they are the gradients of.
        num_notes: How many numbers may travel along.
        nodes: What the micro-batches of this process add up to so far.
        awaited: The parameters that the last backward pass has not come to yet; None while nothing is sent.
        is_sent: Whether the gradients of the update are on their way.
        received: The chunks that have arrived of all processes.
        swapped: What has arrived of the other of two.
        work: What is in progress.
    """

    def __init__(self, parameters: list[nn.Parameter], num_processes: int) -> None:
        self.parameters = parameters
        self.num_notes = 0
        unit = max(1, _ALIGNMENT // parameters[0].element_size())
        self._sizes = [_rounded(one.numel(), unit) for one in parameters]
        self.chunk = _rounded(-(-sum(self._sizes) // num_processes), unit)
        self.numel = self.chunk * num_processes
        self._free: list[_Flat] = []
        self._lent: list[_Flat] = []
        self.nodes: list[Node[_Flat]] = []
        self.awaited: set[int] | None = None
        self.is_sent = False
        self.received = parameters[0].new_empty(0)
        self.work: Any = None
        self.swapped: _Flat
        self._copy, self._zero = foreach("copy_"), foreach("zero_")

    def start_update(self) -> None:
        """Take all memory back."""
        self._free += self._lent
        self._lent, self.nodes, self.awaited, self.is_sent = [], [], None, False

    def reserve(self, num_notes: int) -> None:
        """Let so many numbers travel along from now on, between two updates."""
        if num_notes != self.num_notes:
            self.num_notes, self._free = num_notes, []

    def take(self, index: int, count: int) -> None:
        """Add the gradients that a micro-batch has left in the parameters."""
        flat = self.lend()
        there = [
            (view, one.grad) for view, one in zip(flat.views, self.parameters, strict=True) if one.grad is not None
        ]
        absent = [view for view, one in zip(flat.views, self.parameters, strict=True) if one.grad is None]
        if there:
            self._copy(*map(list, zip(*there, strict=True)))
        if absent:
            self._zero(absent)
        push(self.nodes, Node(0, index, flat), count, self._add)

    def lend(self) -> _Flat:
        """Return memory for one node."""
        flat = self._free.pop() if self._free else _Flat(self.parameters, self._sizes, self.numel, self.num_notes)
        self._lent.append(flat)
        return flat

    def result(self) -> _Flat:
        """Return the only node, or the first of them; memory for it where this process has none."""
        self.nodes = self.nodes[:1] or [Node(0, 0, self.lend())]
        return self.nodes[0].value

    def _add(self, left: _Flat, right: _Flat) -> _Flat:
        left.tensor.add_(right.tensor)
        self._lent.remove(right)
        self._free.append(right)
        return left


class GradientTree:
    """Makes the gradients and buffers of an update bit-for-bit identical on any number of processes.

    For each update, call ``start_update``, then ``start_batch`` and ``end_batch`` around the forward and backward
    passes of each micro-batch of this process, and ``finish``: then the parameters have the sums of the gradients of
    all micro-batches. Weigh the losses so that the sum is what you want. ``end_update`` keeps the buffers that follow,
    ``drop_update`` puts them back.

    Buffers begin each micro-batch as they were before the update, and change by the weighted mean of the changes, in
    double precision. Whole numbers, such as batch norm's count of batches, must change to the same value. What the only
    micro-batch of an update leaves stays as it is.

    Without ``torch.distributed``, this process computes all micro-batches.

    Args:
        modules: What is trained, the same on each process.
        num_values: How many numbers are added up with the gradients of an update.
        called: Modules by name whose buffers are looked after; None for the trained ones.
        bucket_bytes: How many bytes of gradients are sent at a time.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(1, 1)
        >>> tree = GradientTree([model])
        >>> tree.start_update(count=2)
        >>> for samples in torch.tensor([[[1.0], [2.0]], [[3.0], [6.0]]]):
        ...     tree.start_batch()
        ...     (model(samples).mean() / 2).backward()
        ...     tree.end_batch(weight=0.5)
        >>> _ = tree.finish()
        >>> model.weight.grad
        tensor([[3.]])
        >>> tree.close()
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        num_values: int = 0,
        *,
        called: Mapping[str, nn.Module] | None = None,
        bucket_bytes: int = 25 << 20,
    ) -> None:
        self._modules = list(modules)
        self._num_values = num_values
        self._bucket_bytes = bucket_bytes
        self._world = num_processes()
        self._rank = dist.get_rank() if self._world > 1 else 0
        named = {str(number): module for number, module in enumerate(self._modules)} if called is None else called
        self._buffers = Buffers(named, self._world)
        self._called = [*self._modules, *named.values()]
        self._is_first_update = True
        self._all: list[nn.Parameter] = []
        self._parameters: list[nn.Parameter] = []
        self._trainable: list[bool] = []
        self._buckets: list[_Bucket] = []
        self._present: list[bool] = []
        self._hooks: list[RemovableHandle] = []
        self._count, self._num_started = 0, 0
        self._is_open = self._is_first = self._swaps = False
        self._upcoming: list[int] = []
        self._versions: list[int] | None = None
        self.find()

    @property
    def has_gradients(self) -> bool:
        """Whether micro-batches of the update had gradients, which parameters do not show until ``finish``."""
        return any(self._present)

    def find(self) -> None:
        """Look again for parameters and buffers, as layers may have been added; not within an update."""
        found = list(dict.fromkeys(one for module in self._modules for one in module.parameters()))
        if list(map(id, found)) != list(map(id, self._all)):
            self.close()
            self._all = found
        self._buffers.find()

    def start_update(self, count: int) -> None:
        """Begin an update; every process must call this.

        Args:
            count: The number of its micro-batches on all processes.
        """
        trainable = [one.requires_grad for one in self._all]
        if trainable != self._trainable:
            self._set_parameters(trainable)
        for bucket in self._buckets:
            bucket.start_update()
        self._present = [False] * len(self._parameters)
        self._count, self._num_started = count, 0
        self._is_open = self._is_first = True
        self._upcoming = list(reversed(block_of(count, self._rank, self._world)))
        self._buffers.start_update(count)
        # Then both may send all of it: as many bytes, in one exchange instead of two.
        self._swaps = self._world == _PAIR and max(map(len, nodes_of_ranks(count, self._world))) == 1
        if self._swaps and self._buckets:
            self._buckets[-1].reserve(self._num_values + len(self._present) + self._buffers.num_groups)

    def start_batch(self, *, overlaps: bool = False) -> None:
        """Begin the next micro-batch of this process.

        Args:
            overlaps: Whether gradients may be sent during the backward pass, if this is the last micro-batch of the
                process: there is only one pass.
        """
        self._clear_gradients()
        if not self._is_first:
            self._buffers.restore()
        self._is_first = False
        self._versions = versions_of(self._parameters_to_watch())
        if overlaps and len(self._upcoming) == 1 and self._world > 1:
            for bucket in self._buckets:
                bucket.awaited = set(map(id, bucket.parameters))

    def end_batch(self, weight: float) -> None:
        """Take the gradients of the micro-batch, and what it has changed of the buffers.

        Args:
            weight: Its part in the samples of the update.

        Raises:
            ValueError: A parameter was changed within the micro-batch, or a buffer in a way that has no mean.
        """
        if self._versions != versions_of(self._parameters_to_watch()):
            raise ValueError(
                "A parameter was changed between two updates, within the forward or backward pass of a micro-batch, "
                "so that the next micro-batches depend on who computes them. Change weights after an update, or keep "
                "what a forward pass changes in a buffer."
            )
        self._versions = None
        index = self._upcoming.pop()
        for number, one in enumerate(self._parameters):
            self._present[number] |= one.grad is not None
        if self._world == self._count == 1:  # gradients and buffers are the result already
            return
        self._buffers.take(index, weight)
        for bucket in self._buckets:
            if not bucket.is_sent:
                bucket.take(index, self._count)

    def finish(self, values: Sequence[float] = ()) -> Tensor:
        """Give the parameters the sums of the gradients, and the buffers what follows; every process must call this.

        Args:
            values: Numbers of this process, as many as the tree was made for.

        Returns:
            Their sums over all processes, on the device.
        """
        if self._world == self._count == 1:
            return torch.tensor(values, dtype=torch.float64, device=self._device)
        sums, present = self._exchange(values)
        if self._buffers.num_groups:
            self._buffers.finish(present[len(self._parameters) :])
        if self._world > 1:
            self._receive()
        is_present = dict(zip(map(id, self._parameters), present, strict=False))
        for bucket in self._buckets:
            for one, view in zip(bucket.parameters, bucket.nodes[0].value.views, strict=True):
                one.grad = view if is_present[id(one)] else None
        return sums

    def end_update(self) -> None:
        """End an update whose gradients were used."""
        self._is_first_update = self._is_first_update and not self._is_open
        self._is_open = False

    def drop_update(self) -> None:
        """Let the buffers be what they were before an update that is not made; does nothing between two updates."""
        if self._is_open:
            self._is_open = False
            self.restore_buffers()
            self._clear_gradients()

    def save_buffers(self) -> None:
        """Keep what the buffers are, between two updates."""
        self._buffers.save()

    def restore_buffers(self) -> None:
        """Let the buffers be what they were when they were kept."""
        self._buffers.restore()

    def close(self) -> None:
        """Leave the parameters alone."""
        while self._hooks:
            self._hooks.pop().remove()
        self._buckets, self._parameters, self._trainable = [], [], []

    # Parameters

    def _set_parameters(self, trainable: list[bool]) -> None:
        self.close()
        self._trainable, self._parameters = trainable, list(compress(self._all, trainable))
        by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in reversed(self._parameters):
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
        for of_dtype in by_dtype.values():
            for group in _grouped(of_dtype, self._bucket_bytes):
                self._buckets.append(_Bucket(group, self._world))
        if self._world > 1:  # the last bucket waits for the notes, which are not known before the pass has ended
            for bucket in self._buckets[:-1]:
                for parameter in bucket.parameters:
                    untyped: Any = parameter  # torch annotates the method only in part
                    hook = untyped.register_post_accumulate_grad_hook(partial(self._note_gradient, bucket))
                    self._hooks.append(hook)

    def _parameters_to_watch(self) -> list[nn.Parameter]:
        """Those that a micro-batch must leave alone; in the first update also frozen ones, such as of a teacher."""
        if not self._is_first_update:
            return self._parameters
        return list(dict.fromkeys(one for module in self._called for one in module.parameters()))

    def _note_gradient(self, bucket: _Bucket, parameter: Tensor) -> None:
        """Called when a backward pass has added to the gradient of a parameter."""
        if bucket.awaited is None:
            return
        if bucket.is_sent:
            raise ValueError(
                "A second backward pass of a micro-batch has added to gradients that were sent. Add the losses up, and "
                "go backward through the sum."
            )
        bucket.awaited.discard(id(parameter))
        while self._num_started < len(self._buckets) - 1 and not self._buckets[self._num_started].awaited:
            started = self._buckets[self._num_started]
            started.take(self._upcoming[-1], self._count)
            self._send(started)

    def _clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    # Exchange

    @torch.no_grad()
    def _exchange(self, values: Sequence[float]) -> tuple[Tensor, list[bool]]:
        """Send what was not sent during the backward pass, and the notes of this process.

        Returns:
            The sums of the values, and of which parameters and buffers any process has a gradient or a change. Only
            where this process has not all gradients, or there are buffers, is anything read from the device.
        """
        present = [*self._present, *self._buffers.changed()] if self._buffers.num_groups else self._present
        if self._world == 1:
            return torch.tensor(values, dtype=torch.float64, device=self._device), present
        own = torch.tensor([*values, *present], dtype=torch.float64)
        for bucket in self._buckets:
            if not bucket.is_sent:
                self._send(bucket, own if bucket is self._buckets[-1] else None)
        own = own.to(self._device)
        if self._swaps and self._buckets:
            self._buckets[-1].work.wait()
            of_each = torch.stack([own, self._buckets[-1].swapped.notes])
        else:
            gathered = own.new_empty(self._world * len(own))
            all_gather_single(gathered, own, async_op=True).wait()  # here, where the wait is seen as one for gradients
            of_each = gathered.view(self._world, -1)
        sums, of_any = torch.tensor_split(of_each.sum(0), [self._num_values])
        if all(self._present) and not self._buffers.num_groups:
            return sums, present
        return sums, cast("list[bool]", (of_any > 0).tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch

    def _send(self, bucket: _Bucket, notes: Tensor | None = None) -> None:
        """Send all of a bucket to the other of two processes, or to each process its chunk of the nodes of this one."""
        self._num_started += 1
        bucket.is_sent = True
        if self._swaps:
            own, bucket.swapped = bucket.result(), bucket.lend()
            if notes is not None:
                own.notes.copy_(notes)
            sizes = [0, 0]
            sizes[1 - self._rank] = len(own.whole)
            bucket.work = _all_to_all(bucket.swapped.whole, own.whole, sizes, sizes)
            return
        of_ranks = [len(nodes) for nodes in nodes_of_ranks(self._count, self._world)]
        nodes = [node.value.tensor for node in bucket.nodes]
        sent = nodes[0] if nodes else bucket.received[:0]
        if len(nodes) > 1:
            sent = torch.cat([one.view(self._world, -1) for one in nodes], dim=1).view(-1)
        if len(bucket.received) != sum(of_ranks) * bucket.chunk:
            bucket.received = sent.new_empty(sum(of_ranks) * bucket.chunk)
        sizes = [number * bucket.chunk for number in of_ranks]
        bucket.work = _all_to_all(bucket.received, sent, sizes, [len(nodes) * bucket.chunk] * self._world)

    @torch.no_grad()
    def _receive(self) -> None:
        """Add up what has arrived in the order of the tree: all of it, or a chunk which is then given to all."""
        nodes = [node for of_rank in nodes_of_ranks(self._count, self._world) for node in of_rank]
        for bucket in self._buckets:
            bucket.work.wait()
            result = bucket.result()
            if not self._swaps:
                added: list[Node[Tensor]] = []
                for node, value in zip(nodes, torch.split(bucket.received, bucket.chunk), strict=True):
                    push(added, Node(node.level, node.place, value), self._count, _add_in_place)
                bucket.work = all_gather_single(result.tensor, added[0].value, async_op=True)
            elif len(nodes) == self._world:
                of_ranks = [result.tensor, bucket.swapped.tensor]
                torch.add(of_ranks[self._rank], of_ranks[1 - self._rank], out=result.tensor)
            elif self._rank > 0:  # the first process has the only one
                result.tensor.copy_(bucket.swapped.tensor)
        for bucket in self._buckets:
            bucket.work.wait()
            bucket.work = bucket.awaited = None

    @property
    def _device(self) -> torch.device:
        return self._parameters[0].device if self._parameters else torch.device("cpu")


def _all_to_all(received: Tensor, sent: Tensor, received_sizes: list[int], sent_sizes: list[int]) -> Any:
    """Begin to send to each process its part of a tensor."""
    return _collectives.all_to_all_single(received, sent, received_sizes, sent_sizes, async_op=True)


def _add_in_place(left: Tensor, right: Tensor) -> Tensor:
    return left.add_(right)


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _grouped(parameters: list[nn.Parameter], num_bytes: int) -> list[list[nn.Parameter]]:
    """Divide parameters into groups of about so many bytes."""
    groups: list[list[nn.Parameter]] = [[]]
    size = 0
    for parameter in parameters:
        if size >= num_bytes:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    return groups
