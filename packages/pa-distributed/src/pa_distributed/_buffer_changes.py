"""How the micro-batches of an update change buffers, such as the running statistics of batch norm."""

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
"""By the number of the group, in double precision: its weighed change, or the whole numbers that all agree on.

Of the only micro-batch of an update: what it has left."""

_SMALL: Final = 1 << 13
"""In elements; most masks and tables are larger."""


class _Buffer(NamedTuple):
    name: str
    holder: dict[str, Tensor | None]
    key: str
    tensor: Tensor


class _Group:
    """Buffers of one type that are looked at together, as each operation takes longer for its beginning than for them.

    Attributes:
        tensors: What they are.
        is_weighed: Whether the mean of their changes counts; whole numbers have to agree.
        numel: How many elements they have.
        saved: What they were before the update, one after the other.
    """

    def __init__(self, members: Sequence[_Buffer], *, always_changes: bool) -> None:
        self._members = members
        self._always_changes = always_changes
        self.tensors: list[Tensor] = [one.tensor for one in members]
        self._sizes = [tensor.numel() for tensor in self.tensors]
        self._versions = self._saved_versions = [-1]
        self._copy = foreach("copy_")
        self.is_weighed: bool = self.tensors[0].is_floating_point()
        self.numel: int = sum(self._sizes)
        self.saved: Tensor = torch.empty(0)

    def save(self, versions: list[int]) -> None:
        """Keep what they are; an old copy that is still true stays.

        Args:
            versions: The versions of the tensors.
        """
        self._versions = versions
        if self._always_changes or self._saved_versions != versions:
            self._saved_versions, self.saved = versions, _flat(self.tensors)

    def restore(self) -> None:
        """Let them be what was saved."""
        for one in self._members:
            one.holder[one.key] = one.tensor
        self.assign(self.saved)

    def assign(self, flat: Tensor) -> None:
        """Give them values.

        Args:
            flat: The values one after the other.
        """
        pieces = zip(torch.split(flat, self._sizes), self.tensors, strict=True)
        self._copy(self.tensors, [piece.view(tensor.shape) for piece, tensor in pieces])

    def follow(self, versions: list[int]) -> None:
        """Take what they are from here on for unchanged.

        Args:
            versions: The versions of the tensors.
        """
        self._versions = versions

    def has_changed(self, versions: list[int]) -> bool:
        """Return whether they may be something else than when they were saved.

        Args:
            versions: The versions of the tensors.
        """
        if self._always_changes or versions != self._versions:
            return True
        return any(one.holder.get(one.key) is not one.tensor for one in self._members)

    def values(self) -> Tensor:
        """Return what they are now, one after the other.

        Raises:
            ValueError: One has another shape or type than before.
        """
        now = [one.holder.get(one.key) for one in self._members]
        for one, after in zip(self._members, now, strict=True):
            before = one.tensor
            if after is None or (after.shape, after.dtype) != (before.shape, before.dtype) or after.is_complex():
                raise ValueError(
                    f"The forward pass has given the buffer {one.name} another shape or type, so it has no mean: "
                    f"{_described(after)}, before {_described(before)}. Keep the shape of buffers, or keep what grows "
                    "in a plain attribute."
                )
        return _flat(cast("list[Tensor]", now))

    def name_at(self, index: int) -> str:
        """Return the name of the buffer that an element belongs to.

        Args:
            index: The number of the element.
        """
        ends = accumulate(self._sizes)
        return next(one.name for one, end in zip(self._members, ends, strict=True) if index < end)


class Buffers:
    """Lets each micro-batch of an update begin with the same buffers, and adds up what all of them change.

    Args:
        modules: The modules by name.
        world: The number of processes.

    Attributes:
        num_groups: The number of groups that the buffers are looked at in; 0 where there are none.
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
        """Look again for the modules that have buffers; what they hold is looked at for each update."""
        self._holders = [
            (f"{name}.{path}".rstrip("."), vars(part)[BUFFERS])
            for name, module in self._modules.items()
            for path, part in cast("Iterable[tuple[str, nn.Module]]", module.named_modules())  # annotated in part
            if vars(part)[BUFFERS]
        ]

    def start_update(self, count: int) -> None:
        """Keep what the buffers are before an update.

        Args:
            count: The number of its micro-batches on all processes.
        """
        self._nodes, self._count = [], count
        self.save()

    @torch.no_grad()
    def save(self) -> None:
        """Keep what the buffers are, between two updates; only those that have changed since are copied."""
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
        """Let the buffers be what they were when they were kept."""
        changed = [group for group, versions in self._with_versions() if group.has_changed(versions)]
        for group in changed:
            group.restore()
        if changed:
            self._follow()

    @torch.no_grad()
    def take(self, index: int, weight: float) -> None:
        """Take what a micro-batch has changed.

        Args:
            index: Its number in the update.
            weight: Its part in the samples of the update.

        Raises:
            ValueError: A buffer has another shape or type than before; or whole numbers differ.
        """
        if not self._groups:
            return
        changes: Changes = {}
        for number, (group, versions) in enumerate(self._with_versions()):
            if group.has_changed(versions):
                changes[number] = now = group.values().double()
                # Of the only one, what buffers are now: a difference that is added again may be rounded.
                if self._count > 1 and group.is_weighed:
                    changes[number] = (now - _base(group.saved)) * weight
        push(self._nodes, Node(0, index, changes), self._count, self._add)

    def changed(self) -> list[bool]:
        """Return which groups any micro-batch of this process has changed."""
        numbers = {number for node in self._nodes for number in node.value}
        return [number in numbers for number in range(self.num_groups)]

    @torch.no_grad()
    def finish(self, changed: Sequence[bool]) -> None:
        """Change the buffers by what all micro-batches of the update add up to; every process must call this.

        Args:
            changed: Which groups any process has changed.
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
            else:  # what is larger than a double holds exactly, and did not change, stays
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
            for one, flat in zip(of_rank, flats, strict=False):
                value = dict(zip(numbers, torch.split(flat, sizes), strict=True))
                push(self._nodes, Node(one.level, one.place, value), self._count, self._add)

    def _with_versions(self) -> Iterator[tuple[_Group, list[int]]]:
        """Iterate over the groups and the versions of their tensors, which are read at once."""
        versions = iter(versions_of([tensor for group in self._groups for tensor in group.tensors]))
        return ((group, list(islice(versions, len(group.tensors)))) for group in self._groups)

    def _follow(self) -> None:
        for group, versions in self._with_versions():
            group.follow(versions)

    def _add(self, left: Changes, right: Changes) -> Changes:
        """Return the changes of two nodes together.

        Raises:
            ValueError: Whole numbers differ; on an accelerator nobody waits for them to be compared.
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
        """Return the change of a group; whole numbers that are the same as before are NaN."""
        if number in changes:
            return changes[number]
        group = self._groups[number]
        return torch.full_like(group.saved, 0.0 if group.is_weighed else math.nan, dtype=torch.float64)


def _grouped(buffers: Iterable[_Buffer]) -> list[_Group]:
    """Small buffers of a type are looked at together, others one by one."""
    together: dict[torch.dtype, list[_Buffer]] = {}
    alone: list[_Group] = []
    for one in buffers:
        if _is_small(one.tensor):
            together.setdefault(one.tensor.dtype, []).append(one)
        else:
            alone.append(_Group([one], always_changes=False))
    return [*(_Group(members, always_changes=True) for members in together.values()), *alone]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _base(tensor: Tensor) -> Tensor:
    """Return what changes are relative to: zero where a buffer is infinite, as a mask or the minimum of nothing is."""
    exact = tensor.double()
    return torch.where(exact.isinf(), 0.0, exact)


def _is_small(tensor: Tensor) -> bool:
    """Whether it counts as changed in any case: kernels such as batch norm's do not tell torch what they change."""
    return (tensor.numel() <= _SMALL or tensor.dim() == 1) and not tensor.is_complex()


def _described(tensor: Any) -> str:
    return "none" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"
