"""Adds up the gradients of an update in an order that does not depend on how many processes compute them.

The position of a sample in the update determines the micro-batch to which it belongs. Each process computes a
contiguous block of micro-batches, and all gradients are added up in a fixed binary tree. Each process first adds up the
nodes that it can compute alone. The remaining nodes are cut into chunks, and each process adds up one chunk in the
order of the tree. So the result is bit-for-bit identical on any number of processes. If the number of micro-batches is
a power of two times the number of processes, this sends as many bytes as a ring all-reduce does.
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
from pa_distributed._errors import require_count
from pa_distributed._processes import num_processes
from pa_distributed._torch import all_gather_single, foreach, versions_of
from pa_distributed._tree import Node, block_of, nodes_of_ranks, push

__all__ = ["GradientTree"]

# torch annotates its collectives only in part
_collectives: Any = dist

_PAIR: Final = 2
_ALIGNMENT: Final = 64
"""In bytes: kernels use different code for tensors that begin elsewhere."""


class _Flat:
    """The gradients of one bucket in consecutive memory.

    Attributes:
        whole: The tensor that two processes swap; the next two attributes are its parts.
        tensor: All gradients, with zeros between and after them.
        notes: Room for numbers that are sent with the gradients.
        views: A view for each parameter, in its shape and with the strides that autograd uses.
    """

    def __init__(self, parameters: Sequence[Tensor], sizes: Sequence[int], numel: int, num_notes: int) -> None:
        like = parameters[0]
        numel_of_notes = -(-num_notes * 8 // like.element_size())
        self.whole = torch.zeros(numel + numel_of_notes, dtype=like.dtype, device=like.device)
        self.tensor, notes = self.whole.split_with_sizes([numel, numel_of_notes])
        self.notes = notes.view(torch.float64)[:num_notes]
        pieces = zip(torch.split(self.tensor[: sum(sizes)], list(sizes)), parameters, strict=True)
        self.views = [
            piece.as_strided(parameter.shape, torch.empty_like(parameter, device="meta").stride())
            for piece, parameter in pieces
        ]


class _Bucket:
    """Gradients of one type that are sent together.

    Attributes:
        parameters: The parameters of these gradients.
        num_notes: How many numbers may be sent with the gradients.
        nodes: The sums over the micro-batches of this process so far.
        awaited: The identifiers of the parameters that the last backward pass has not reached yet; None while nothing
            is sent.
        is_sent: Whether the gradients of the update were sent.
        received: The chunks that have arrived from all processes.
        swapped: The gradients that have arrived from the other of two processes.
        work: The collective in progress.
    """

    def __init__(self, parameters: list[nn.Parameter], num_processes: int) -> None:
        self.parameters = parameters
        self.num_notes = 0
        unit = max(1, _ALIGNMENT // parameters[0].element_size())
        self._sizes = [_rounded(parameter.numel(), unit) for parameter in parameters]
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
        """Mark all memory as free."""
        self._free += self._lent
        self._lent, self.nodes, self.awaited, self.is_sent = [], [], None, False

    def reserve(self, num_notes: int) -> None:
        """Make room for a number of values, between two updates."""
        if num_notes != self.num_notes:
            self.num_notes, self._free = num_notes, []

    def take(self, index: int, count: int) -> None:
        """Add the gradients of a micro-batch, which are in the parameters, to the nodes."""
        flat = self.lend()
        there = [
            (view, parameter.grad)
            for view, parameter in zip(flat.views, self.parameters, strict=True)
            if parameter.grad is not None
        ]
        absent = [view for view, parameter in zip(flat.views, self.parameters, strict=True) if parameter.grad is None]
        if there:
            self._copy(*map(list, zip(*there, strict=True)))
        if absent:
            self._zero(absent)
        push(self.nodes, Node(0, index, flat), count, self._add)

    def lend(self) -> _Flat:
        """Return memory for a node."""
        flat = self._free.pop() if self._free else _Flat(self.parameters, self._sizes, self.numel, self.num_notes)
        self._lent.append(flat)
        return flat

    def result(self) -> _Flat:
        """Return the value of the first node, or free memory if this process has no node."""
        self.nodes = self.nodes[:1] or [Node(0, 0, self.lend())]
        return self.nodes[0].value

    def _add(self, left: _Flat, right: _Flat) -> _Flat:
        """Add the right sum to the left, and free the memory of the right."""
        left.tensor.add_(right.tensor)
        self._lent.remove(right)
        self._free.append(right)
        return left


class GradientTree:
    """Computes bit-for-bit identical gradients and buffers on any number of processes.

    The order of floating-point additions affects their rounding, so a run on eight processes normally diverges from the
    same run on one process. Use this class to compare runs on different numbers of processes, to debug on one process,
    or to resume a run on fewer machines with identical results. It adds the gradients of all micro-batches of an update
    in a fixed binary tree. A micro-batch is the part of the batch that a process uses in one forward and backward pass;
    an update is one optimizer step. If identical results do not matter, ``GradientExchange`` is faster and needs no
    fixed number of micro-batches.

    For each update, call ``start_update``. Then, for each micro-batch of this process, call ``start_batch``, run the
    forward and backward pass, and call ``end_batch``. Then call ``finish``. The ``grad`` of each parameter is now the
    sum over all micro-batches, so divide each loss by the number of micro-batches, or weight it by its number of
    samples. After the optimizer step, call ``end_update``, or call ``drop_update`` if the update is abandoned. With
    ``n`` micro-batches on ``p`` processes, each process computes a contiguous block of ``n / p`` micro-batches, in the
    order of the ranks; if they do not divide evenly, the first processes compute one more.

    Buffers, for example the running statistics of batch norm, have the same values before each micro-batch. After the
    update, they have changed by the weighted mean of the changes of all micro-batches, in double precision. Integer
    buffers, for example batch norm's count of batches, must change to the same value in each micro-batch. In an update
    of a single micro-batch, buffers keep the exact values of that micro-batch.

    Do not wrap the modules in ``DistributedDataParallel``. Without ``torch.distributed``, this process computes all
    micro-batches.

    Args:
        modules: The trained modules, with the same parameters on each process.
        num_values: How many numbers ``finish`` adds up over the processes in each update. The default is 0, for none.
        called: The modules whose buffers are averaged, by name, if they are not the trained modules, for example
            because they include a frozen teacher. The names appear in error messages. The default, None, uses
            ``modules``.
        bucket_bytes: The bytes of gradients that are sent together. The default of 25 MiB is the default of
            ``DistributedDataParallel``: large enough for an efficient exchange, and small enough to begin early.

    Example:
        >>> import torch
        >>> from pa_distributed.gradient_tree import GradientTree
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> tree = GradientTree([model])
        >>> tree.start_update(count=2)
        >>> for samples in torch.tensor([[[1.0], [2.0]], [[3.0], [6.0]]]):
        ...     tree.start_batch()
        ...     (model(samples).mean() / 2).backward()
        ...     tree.end_batch(weight=0.5)
        >>> _ = tree.finish()
        >>> model.weight.grad
        tensor([[3.]])
        >>> optimizer.step()
        >>> tree.end_update()
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
        """Whether any micro-batch of the update had a gradient on this process, even before ``finish`` sets it.

        A bool. ``start_update`` sets it to False, and ``end_batch`` to True once a parameter has a gradient. Read it
        instead of ``parameter.grad``, which ``start_batch`` clears, for example to detect a loop whose losses do not
        depend on any trained parameter.
        """
        return any(self._present)

    def find(self) -> None:
        """Search the modules again for parameters and buffers, between two updates.

        You call it on every process after layers or buffers were added or removed. The constructor calls it itself, and
        a parameter that was frozen or unfrozen is noticed without a call.

        Example:
            >>> import torch
            >>> from pa_distributed.gradient_tree import GradientTree
            >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
            >>> tree = GradientTree([model])
            >>> _ = model.append(torch.nn.Linear(1, 1, bias=False))
            >>> tree.find()
            >>> tree.start_update(count=1)
            >>> tree.start_batch()
            >>> model(torch.ones(1, 1)).sum().backward()
            >>> tree.end_batch(weight=1.0)
            >>> tree.has_gradients
            True
        """
        found = list(dict.fromkeys(parameter for module in self._modules for parameter in module.parameters()))
        if list(map(id, found)) != list(map(id, self._all)):
            self.close()
            self._all = found
        self._buffers.find()

    def start_update(self, count: int) -> None:
        """Begin an update, which is one optimizer step.

        You call it on every process, before the first ``start_batch``. It does not communicate.

        Args:
            count: The number of micro-batches of the update on all processes together, the same on each process. This
                process then computes its block of them: ``count`` divided by the number of processes, and one more on
                the first processes if they do not divide evenly.

        Example:
            >>> import torch
            >>> from pa_distributed.gradient_tree import GradientTree
            >>> model = torch.nn.Linear(1, 1)
            >>> tree = GradientTree([model])
            >>> tree.start_update(count=4)
            >>> tree.has_gradients
            False
        """
        trainable = [parameter.requires_grad for parameter in self._all]
        if trainable != self._trainable:
            self._set_parameters(trainable)
        for bucket in self._buckets:
            bucket.start_update()
        self._present = [False] * len(self._parameters)
        self._count, self._num_started = count, 0
        self._is_open = self._is_first = True
        self._upcoming = list(reversed(block_of(count, self._rank, self._world)))
        self._buffers.start_update(count)
        # Then both may send all gradients: as many bytes, in one exchange instead of two.
        self._swaps = self._world == _PAIR and max(map(len, nodes_of_ranks(count, self._world))) == 1
        if self._swaps and self._buckets:
            self._buckets[-1].reserve(self._num_values + len(self._present) + self._buffers.num_groups)

    def start_batch(self, *, overlaps: bool = False) -> None:
        """Begin the next micro-batch of this process: clear the gradients, and restore the buffers.

        You call it before the forward pass of each micro-batch that this process has in the update.

        Args:
            overlaps: Whether to send gradients during the backward pass if this is the last micro-batch of the process,
                which is faster. Pass True only if the micro-batch has exactly one backward pass; a second pass then
                raises a ``ValueError``. The default, False, allows several.

        Raises:
            ValueError: This process has already ended all of its micro-batches of the update.

        Example:
            >>> import torch
            >>> from pa_distributed.gradient_tree import GradientTree
            >>> model = torch.nn.Linear(1, 1)
            >>> tree = GradientTree([model])
            >>> tree.start_update(count=1)
            >>> tree.start_batch(overlaps=True)
            >>> model(torch.ones(4, 1)).mean().backward()
            >>> tree.end_batch(weight=1.0)
        """
        self._require_upcoming("start_batch")
        self._clear_gradients()
        if not self._is_first:
            self._buffers.restore()
        self._is_first = False
        self._versions = versions_of(self._parameters_to_watch())
        if overlaps and len(self._upcoming) == 1 and self._world > 1:
            for bucket in self._buckets:
                bucket.awaited = set(map(id, bucket.parameters))

    def end_batch(self, weight: float) -> None:
        """End a micro-batch: store its gradients and the changes that it made to the buffers.

        You call it after the backward pass of each micro-batch.

        Args:
            weight: The number of samples in the micro-batch divided by the number of samples in the update on all
                processes, from 0 to 1. It is the weight of the buffer changes; gradients are added without a weight.

        Raises:
            ValueError: The micro-batch has changed a parameter, or a buffer in a way that has no mean, for example its
                shape; or this process has already ended all of its micro-batches of the update.

        Example:
            >>> import torch
            >>> from pa_distributed.gradient_tree import GradientTree
            >>> model = torch.nn.BatchNorm1d(1, momentum=0.5)
            >>> tree = GradientTree([model])
            >>> tree.start_update(count=2)
            >>> for samples in torch.tensor([[[1.0], [3.0]], [[5.0], [7.0]]]):
            ...     tree.start_batch()
            ...     model(samples).mean().backward()
            ...     tree.end_batch(weight=2 / 4)
            >>> _ = tree.finish()
            >>> model.running_mean  # half of the mean of all samples
            tensor([2.])
        """
        self._require_upcoming("end_batch")
        if self._versions != versions_of(self._parameters_to_watch()):
            raise ValueError(
                "A parameter was changed between two updates, within the forward or backward pass of a micro-batch, "
                "so that the next micro-batches depend on who computes them. Change weights after an update, or keep "
                "what a forward pass changes in a buffer."
            )
        self._versions = None
        index = self._upcoming.pop()
        for number, parameter in enumerate(self._parameters):
            self._present[number] |= parameter.grad is not None
        if self._world == self._count == 1:  # gradients and buffers are the result already
            return
        self._buffers.take(index, weight)
        for bucket in self._buckets:
            if not bucket.is_sent:
                bucket.take(index, self._count)

    def finish(self, values: Sequence[float] = ()) -> Tensor:
        """Set the gradients and the buffers to the results of the update.

        You call it on every process after the last ``end_batch`` of the update, even on a process without
        micro-batches, since all processes exchange their gradients here. Afterwards, the ``grad`` of each parameter is
        the sum over all micro-batches, or None if no micro-batch has a gradient for it. Clip gradients and step the
        optimizer after this call.

        Args:
            values: The numbers of this process, exactly as many as ``num_values``, for example its number of samples.
                They are sent with the gradients, so they need no further collective. The default is none.

        Returns:
            The sums of the numbers over all processes, as a one-dimensional tensor of ``torch.float64`` on the device
            of the parameters.

        Raises:
            ValueError: There are more or fewer numbers than ``num_values``, this process has not ended all of its
                micro-batches, or micro-batches have changed an integer buffer to different values.

        Example:
            >>> import torch
            >>> from pa_distributed.gradient_tree import GradientTree
            >>> model = torch.nn.Linear(1, 1)
            >>> tree = GradientTree([model], num_values=1)
            >>> tree.start_update(count=1)
            >>> tree.start_batch()
            >>> model(torch.ones(8, 1)).mean().backward()
            >>> tree.end_batch(weight=1.0)
            >>> tree.finish([8.0])  # samples of all processes
            tensor([8.], dtype=torch.float64)
        """
        require_count(values, self._num_values)
        if self._upcoming:
            raise ValueError(
                f"finish() was called before end_batch() for {len(self._upcoming)} of the {self._count} micro-batches "
                "of the update, so their gradients would be missing. Compute them first, or call drop_update()."
            )
        if self._world == self._count == 1:
            return torch.tensor(values, dtype=torch.float64, device=self._device)
        sums, present = self._exchange(values)
        if self._buffers.num_groups:
            self._buffers.finish(present[len(self._parameters) :])
        if self._world > 1:
            self._receive()
        is_present = dict(zip(map(id, self._parameters), present, strict=False))
        for bucket in self._buckets:
            for parameter, view in zip(bucket.parameters, bucket.nodes[0].value.views, strict=True):
                parameter.grad = view if is_present[id(parameter)] else None
        return sums

    def end_update(self) -> None:
        """End an update, and keep the buffers that ``finish`` has set.

        You call it after the optimizer step. To abandon the update, call ``drop_update`` instead. It does not
        communicate.

        Example:
            >>> import torch
            >>> from pa_distributed.gradient_tree import GradientTree
            >>> model = torch.nn.BatchNorm1d(1, momentum=0.5)
            >>> tree = GradientTree([model])
            >>> tree.start_update(count=1)
            >>> tree.start_batch()
            >>> model(torch.tensor([[2.0], [4.0]])).mean().backward()
            >>> tree.end_batch(weight=1.0)
            >>> _ = tree.finish()
            >>> tree.end_update()
            >>> model.running_mean
            tensor([1.5000])
        """
        self._is_first_update = self._is_first_update and not self._is_open
        self._is_open = False

    def drop_update(self) -> None:
        """Abandon an update: restore the buffers, and set the gradients to None.

        You call it instead of ``end_update`` if the optimizer makes no step, for example because a loss is not finite.
        Call it on every process or on none, before or after ``finish``, so that the buffers stay the same. Between two
        updates it does nothing.

        Example:
            >>> import torch
            >>> from pa_distributed.gradient_tree import GradientTree
            >>> model = torch.nn.BatchNorm1d(1, momentum=0.5)
            >>> tree = GradientTree([model])
            >>> tree.start_update(count=1)
            >>> tree.start_batch()
            >>> model(torch.tensor([[2.0], [4.0]])).mean().backward()
            >>> tree.end_batch(weight=1.0)
            >>> tree.drop_update()
            >>> model.running_mean, model.weight.grad
            (tensor([0.]), None)
        """
        if self._is_open:
            self._is_open = False
            self.restore_buffers()
            self._clear_gradients()

    def save_buffers(self) -> None:
        """Remember the current values of the buffers, between two updates.

        You call it before forward passes that must not change the running statistics, for example the passes of an
        LBFGS closure, and ``restore_buffers`` after them. ``start_update`` remembers the buffers by itself, so you need
        no call within an update.

        Example:
            >>> import torch
            >>> from pa_distributed.gradient_tree import GradientTree
            >>> model = torch.nn.BatchNorm1d(1, momentum=0.5)
            >>> tree = GradientTree([model])
            >>> tree.save_buffers()
            >>> _ = model(torch.tensor([[2.0], [4.0]]))
            >>> tree.restore_buffers()
            >>> model.running_mean
            tensor([0.])
        """
        self._buffers.save()

    def restore_buffers(self) -> None:
        """Set the buffers to the values that ``save_buffers`` or ``start_update`` has remembered, whichever came last.

        You call it after forward passes that must not change the running statistics. ``start_batch`` and
        ``drop_update`` restore the buffers by themselves.

        Example:
            >>> import torch
            >>> from pa_distributed.gradient_tree import GradientTree
            >>> model = torch.nn.BatchNorm1d(1, momentum=0.5)
            >>> tree = GradientTree([model])
            >>> tree.start_update(count=1)
            >>> _ = model(torch.tensor([[2.0], [4.0]]))  # only to look at the outputs
            >>> tree.restore_buffers()
            >>> model.running_mean
            tensor([0.])
        """
        self._buffers.restore()

    def close(self) -> None:
        """Remove the gradient hooks from the parameters, and free the memory of the gradients.

        You call it when training has ended and the modules live longer than this object. A second call has no effect.
        The next ``start_update`` would add the hooks again.

        Example:
            >>> import torch
            >>> from pa_distributed.gradient_tree import GradientTree
            >>> model = torch.nn.Linear(1, 1)
            >>> tree = GradientTree([model])
            >>> tree.close()
            >>> model(torch.ones(8, 1)).sum().backward()  # an ordinary backward pass again
        """
        while self._hooks:
            self._hooks.pop().remove()
        self._buckets, self._parameters, self._trainable = [], [], []

    # Parameters

    def _set_parameters(self, trainable: list[bool]) -> None:
        """Build the buckets for the parameters that are trained now."""
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
        """Return the parameters that no micro-batch may change, in the first update including frozen parameters."""
        if not self._is_first_update:
            return self._parameters
        return list(dict.fromkeys(parameter for module in self._called for parameter in module.parameters()))

    def _require_upcoming(self, method: str) -> None:
        if not self._upcoming:
            num_own = len(block_of(self._count, self._rank, self._world))
            raise ValueError(
                f"{method}() was called after all {num_own} micro-batches that this process has in the update of "
                f"count={self._count}. Pass the number of micro-batches of all processes to start_update(count), and "
                "call it before each update."
            )

    def _note_gradient(self, bucket: _Bucket, parameter: Tensor) -> None:
        """Record that a backward pass has added to a gradient, and send the buckets that are complete."""
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
        """Set the gradients of all parameters to None."""
        for parameter in self._parameters:
            parameter.grad = None

    # Exchange

    @torch.no_grad()
    def _exchange(self, values: Sequence[float]) -> tuple[Tensor, list[bool]]:
        """Send the remaining gradients and the notes of this process.

        Returns:
            The sums of the values, and for each parameter and buffer whether any process has a gradient or a change.
            The device is read only if this process lacks a gradient, or if there are buffers.
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
            all_gather_single(
                gathered, own, async_op=True
            ).wait()  # here, so that hang reports show the exchange of gradients
            of_each = gathered.view(self._world, -1)
        sums, of_any = torch.tensor_split(of_each.sum(0), [self._num_values])
        if all(self._present) and not self._buffers.num_groups:
            return sums, present
        return sums, cast("list[bool]", (of_any > 0).tolist())  # pyright: ignore[reportUnknownMemberType]  # not annotated by torch

    def _send(self, bucket: _Bucket, notes: Tensor | None = None) -> None:
        """Send a bucket: all of it to the other of two processes, or to each process its chunk of the nodes."""
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
            sent = torch.cat([node.view(self._world, -1) for node in nodes], dim=1).view(-1)
        if len(bucket.received) != sum(of_ranks) * bucket.chunk:
            bucket.received = sent.new_empty(sum(of_ranks) * bucket.chunk)
        sizes = [number * bucket.chunk for number in of_ranks]
        bucket.work = _all_to_all(bucket.received, sent, sizes, [len(nodes) * bucket.chunk] * self._world)

    @torch.no_grad()
    def _receive(self) -> None:
        """Add up the received gradients in the order of the tree: all of them, or a chunk that is then sent to all."""
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
            elif self._rank > 0:  # the first process has the only node
                result.tensor.copy_(bucket.swapped.tensor)
        for bucket in self._buckets:
            bucket.work.wait()
            bucket.work = bucket.awaited = None

    @property
    def _device(self) -> torch.device:
        """The device of the parameters."""
        return self._parameters[0].device if self._parameters else torch.device("cpu")


def _all_to_all(received: Tensor, sent: Tensor, received_sizes: list[int], sent_sizes: list[int]) -> Any:
    """Begin to send each process its part of a tensor."""
    return _collectives.all_to_all_single(received, sent, received_sizes, sent_sizes, async_op=True)


def _add_in_place(left: Tensor, right: Tensor) -> Tensor:
    return left.add_(right)


def _rounded(number: int, unit: int) -> int:
    """Return the smallest multiple of a unit that is not smaller than a number."""
    return -(-number // unit) * unit


def _grouped(parameters: list[nn.Parameter], num_bytes: int) -> list[list[nn.Parameter]]:
    """Divide parameters into groups of about the given number of bytes."""
    groups: list[list[nn.Parameter]] = [[]]
    size = 0
    for parameter in parameters:
        if size >= num_bytes:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    return groups
