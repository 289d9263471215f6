"""Combines the changes that the micro-batches of an update make to buffers, such as batch norm's running statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from pa_distributed._torch import BUFFERS, all_gather_single, foreach, versions_of
from pa_distributed._tree import Node, nodes_of_ranks, push

Changes: TypeAlias = dict[int, Tensor]
"""By the number of the group, in double precision: its weighted change, or the integers of all micro-batches.

In an update of a single micro-batch: the new values.
"""

_SMALL: Final = 1 << 13
"""In elements; most masks and tables are larger."""


class _Buffer(NamedTuple):
    name: str
    holder: dict[str, Tensor | None]
    key: str
    tensor: Tensor


class _Group:
    """Buffers of one type, processed together because starting an operation takes longer than the operation.

    Attributes:
        tensors: The buffers.
        is_weighed: Whether the mean of the changes counts; integers have to agree.
        numel: The number of elements of all buffers.
        saved: The values before the update, in consecutive memory.
    """

    def __init__(self, members: Sequence[_Buffer], *, always_changes: bool) -> None:
        self._members = members
        self._always_changes = always_changes
        self.tensors: list[Tensor] = [member.tensor for member in members]
        self._sizes = [tensor.numel() for tensor in self.tensors]
        self._versions = self._saved_versions = [-1]
        self._copy = foreach("copy_")
        self.is_weighed: bool = self.tensors[0].is_floating_point()
        self.numel: int = sum(self._sizes)
        self.saved: Tensor = torch.empty(0)

    def save(self, versions: list[int]) -> None:
        """Remember the current values, unless the last copy is still up to date.

        Args:
            versions: The versions of the tensors.
        """
        self._versions = versions
        if self._always_changes or self._saved_versions != versions:
            self._saved_versions, self.saved = versions, _flat(self.tensors)

    def restore(self) -> None:
        """Set the buffers to the saved values."""
        for member in self._members:
            member.holder[member.key] = member.tensor
        self.assign(self.saved)

    def assign(self, flat: Tensor) -> None:
        """Set the buffers to some values.

        Args:
            flat: The values of all buffers in consecutive memory.
        """
        pieces = zip(torch.split(flat, self._sizes), self.tensors, strict=True)
        self._copy(self.tensors, [piece.view(tensor.shape) for piece, tensor in pieces])

    def follow(self, versions: list[int]) -> None:
        """Consider the current values unchanged.

        Args:
            versions: The versions of the tensors.
        """
        self._versions = versions

    def has_changed(self, versions: list[int]) -> bool:
        """Return whether the values may differ from the saved values.

        Args:
            versions: The versions of the tensors.
        """
        if self._always_changes or versions != self._versions:
            return True
        return any(member.holder.get(member.key) is not member.tensor for member in self._members)

    def values(self) -> Tensor:
        """Return the current values in consecutive memory.

        Raises:
            ValueError: The shape or type of a buffer has changed.
        """
        now = [member.holder.get(member.key) for member in self._members]
        for member, after in zip(self._members, now, strict=True):
            before = member.tensor
            if after is None or (after.shape, after.dtype) != (before.shape, before.dtype) or after.is_complex():
                raise ValueError(
                    f"The forward pass has given the buffer {member.name} another shape or type, so it has no mean: "
                    f"{_described(after)}, before {_described(before)}. Keep the shape of buffers, or keep what grows "
                    "in a plain attribute."
                )
        return _flat(cast("list[Tensor]", now))

    def name_at(self, index: int) -> str:
        """Return the name of the buffer that contains an element.

        Args:
            index: The number of the element.
        """
        ends = accumulate(self._sizes)
        return next(member.name for member, end in zip(self._members, ends, strict=True) if index < end)


class Buffers:
    """Restores the same buffers before each micro-batch of an update, and adds up the changes of all micro-batches.

    Args:
        modules: The modules by name.
        world: The number of processes.

    Attributes:
        num_groups: The number of groups of buffers; 0 without buffers.
    """

    def __init__(self, modules: Mapping[str, nn.Module], world: int) -> None:
        self._modules = modules
        self._world = world
        self._holders: list[tuple[str, dict[str, Tensor | None]]] = []
        self._found: list[int] = []
        self._groups: list[_Group] = []
        self._nodes: list[Node[Changes]] = []
        self._count = 0
        self.num_groups: int = 0
        self.find()

    def find(self) -> None:
        """Search the modules again for modules with buffers. The buffers themselves are looked up in each update."""
        self._holders = [
            (f"{name}.{path}".rstrip("."), vars(part)[BUFFERS])
            for name, module in self._modules.items()
            for path, part in cast("Iterable[tuple[str, nn.Module]]", module.named_modules())  # annotated in part
            if vars(part)[BUFFERS]
        ]

    def start_update(self, count: int) -> None:
        """Remember the buffers before an update.

        Args:
            count: The number of its micro-batches on all processes.
        """
        self._nodes, self._count = [], count
        self.save()

    @torch.no_grad()
    def save(self) -> None:
        """Remember the buffers between two updates; only buffers that have changed are copied."""
        found = {
            id(tensor): _Buffer(f"{path}.{key}", holder, key, tensor)
            for path, holder in self._holders
            for key, tensor in holder.items()
            if tensor is not None
        }
        if self._found != list(found):
            self._found, self._groups = list(found), _grouped(found.values())
            self.num_groups = len(self._groups)
        for group, versions in self._with_versions():
            group.save(versions)

    @torch.no_grad()
    def restore(self) -> None:
        """Set the buffers to the remembered values."""
        changed = [group for group, versions in self._with_versions() if group.has_changed(versions)]
        for group in changed:
            group.restore()
        if changed:
            self._follow()

    @torch.no_grad()
    def take(self, index: int, weight: float) -> None:
        """Store the changes that a micro-batch has made.

        Args:
            index: The number of the micro-batch in the update.
            weight: The number of its samples divided by the number of samples in the update.

        Raises:
            ValueError: The shape or type of a buffer has changed, or integers differ.
        """
        if not self._groups:
            return
        changes: Changes = {}
        for number, (group, versions) in enumerate(self._with_versions()):
            if group.has_changed(versions):
                changes[number] = now = group.values().double()
                # Of a single micro-batch the values themselves: a difference that is added again may be rounded.
                if self._count > 1 and group.is_weighed:
                    changes[number] = (now - _base(group.saved)) * weight
        push(self._nodes, Node(0, index, changes), self._count, self._add)

    def changed(self) -> list[bool]:
        """Return for each group whether any micro-batch of this process has changed it."""
        numbers = {number for node in self._nodes for number in node.value}
        return [number in numbers for number in range(self.num_groups)]

    @torch.no_grad()
    def finish(self, changed: Sequence[bool]) -> None:
        """Apply the sum of the changes of all micro-batches to the buffers; every process must call this.

        Args:
            changed: For each group, whether any process has changed it.
        """
        numbers = [number for number, is_changed in enumerate(changed) if is_changed]
        if self._world > 1 and numbers:
            self._gather(numbers)
        self.restore()
        for number, change in (self._nodes[0].value if self._nodes else {}).items():
            group = self._groups[number]
            saved = group.saved
            if group.is_weighed:
                group.assign((change if self._count == 1 else _base(saved) + change).to(saved.dtype))
            else:  # integers that are too large for a double, and did not change, are kept
                group.assign(torch.where(saved.double() == change, saved, change.to(saved.dtype)))
        self._follow()

    def _gather(self, numbers: Sequence[int]) -> None:
        """Add up the nodes of all processes."""
        of_ranks = nodes_of_ranks(self._count, self._world)
        sizes = [self._groups[number].numel for number in numbers]
        most = max(map(len, of_ranks))
        own = torch.zeros(most, sum(sizes), dtype=torch.float64, device=self._groups[0].saved.device)
        for node, row in zip(self._nodes, own, strict=False):
            row.copy_(torch.cat([self._change(node.value, number) for number in numbers]))
        gathered = own.new_empty(self._world * most, sum(sizes))
        all_gather_single(gathered, own)
        self._nodes = []
        for of_rank, flats in zip(of_ranks, gathered.view(self._world, most, sum(sizes)), strict=True):
            for place, flat in zip(of_rank, flats, strict=False):
                value = dict(zip(numbers, torch.split(flat, sizes), strict=True))
                push(self._nodes, Node(place.level, place.place, value), self._count, self._add)

    def _with_versions(self) -> Iterator[tuple[_Group, list[int]]]:
        """Iterate over the groups and the versions of their tensors, which are read in one call."""
        versions = iter(versions_of([tensor for group in self._groups for tensor in group.tensors]))
        return ((group, list(islice(versions, len(group.tensors)))) for group in self._groups)

    def _follow(self) -> None:
        """Consider the current values of all groups unchanged."""
        for group, versions in self._with_versions():
            group.follow(versions)

    def _add(self, left: Changes, right: Changes) -> Changes:
        """Return the changes of two nodes together.

        Raises:
            ValueError: Integers differ. On an accelerator, they are not compared, since comparing them would wait for
                the device.
        """
        for number, change in right.items():
            group, other = self._groups[number], left.get(number)
            if other is None:
                left[number] = change
            elif group.is_weighed:
                left[number] = other + change
            else:
                left[number] = joined = torch.where(other.isnan(), change, other)
                differs = (joined != change) & ~change.isnan()
                if change.device.type == "cpu" and differs.any():
                    name = group.name_at(int(differs.nonzero()[0]))
                    raise ValueError(
                        f"Micro-batches have left different whole numbers in the buffer {name}. Count in a "
                        "floating-point buffer, whose changes are averaged, or outside of the model."
                    )
        return left

    def _change(self, changes: Changes, number: int) -> Tensor:
        """Return the change in a group; integers that have not changed are NaN."""
        if number in changes:
            return changes[number]
        group = self._groups[number]
        return torch.full_like(group.saved, 0.0 if group.is_weighed else math.nan, dtype=torch.float64)


def _grouped(buffers: Iterable[_Buffer]) -> list[_Group]:
    """Return small buffers in a group for each type, and each large buffer in a group alone."""
    together: dict[torch.dtype, list[_Buffer]] = {}
    alone: list[_Group] = []
    for buffer in buffers:
        if _is_small(buffer.tensor):
            together.setdefault(buffer.tensor.dtype, []).append(buffer)
        else:
            alone.append(_Group([buffer], always_changes=False))
    return [*(_Group(members, always_changes=True) for members in together.values()), *alone]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return the elements of some tensors in consecutive memory."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _base(tensor: Tensor) -> Tensor:
    """Return the values that changes are relative to: zero where a buffer is infinite, as in a mask."""
    exact = tensor.double()
    return torch.where(exact.isinf(), 0.0, exact)


def _is_small(tensor: Tensor) -> bool:
    """Return whether a buffer always counts as changed, since some kernels do not report their changes."""
    return (tensor.numel() <= _SMALL or tensor.dim() == 1) and not tensor.is_complex()


def _described(tensor: Any) -> str:
    """Return the shape and type of a buffer in words."""
    return "none" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"
