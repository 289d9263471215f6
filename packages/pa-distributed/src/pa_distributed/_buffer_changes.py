"""How the micro-batches of an update change buffers, such as the running statistics of batch norm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from pa_distributed._torch import BUFFERS, foreach, versions_of

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
        is_weighed: Whether the mean of their changes counts; whole numbers have to agree.
        numel: How many elements they have.
        saved: What they were before the update, one after the other.
    """

    def __init__(self, members: Sequence[_Buffer], *, always_changes: bool) -> None:
        self._members = members
        self._always_changes = always_changes
        self._tensors = [one.tensor for one in members]
        self._sizes = [tensor.numel() for tensor in self._tensors]
        self._versions = self._saved_versions = [-1]
        self.is_weighed: bool = self._tensors[0].is_floating_point()
        self.numel: int = sum(self._sizes)
        self.saved: Tensor = torch.empty(0)

    def save(self) -> None:
        """Keep what they are; a copy that is still true is kept."""
        self._versions = versions_of(self._tensors)
        if self._always_changes or self._saved_versions != self._versions:
            self._saved_versions, self.saved = self._versions, _flat(self._tensors)

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
        pieces = zip(torch.split(flat, self._sizes), self._tensors, strict=True)
        foreach("copy_", self._tensors, [piece.view(tensor.shape) for piece, tensor in pieces])
        self._versions = versions_of(self._tensors)

    @property
    def has_changed(self) -> bool:
        """Whether they may be something else than when they were saved."""
        if self._always_changes or versions_of(self._tensors) != self._versions:
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
    """Lets each micro-batch of an update begin with the same buffers, and finds what it has changed.

    Args:
        modules: The modules by name.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self._holders: list[tuple[str, dict[str, Tensor | None]]] = []
        self._found: list[int] = []
        self._groups: list[_Group] = []
        self.find()

    @property
    def exist(self) -> bool:
        """Whether any module has one."""
        return bool(self._holders)

    def __len__(self) -> int:
        """Return the number of groups that they are looked at in."""
        return len(self._groups)

    def find(self) -> None:
        """Look again for the modules that have buffers; what they hold is looked at for each update."""
        self._holders = [
            (f"{name}.{path}".rstrip("."), vars(part)[BUFFERS])
            for name, module in self._modules.items()
            for path, part in cast("Iterable[tuple[str, nn.Module]]", module.named_modules())  # annotated in part
            if vars(part)[BUFFERS]
        ]

    @torch.no_grad()
    def save(self) -> None:
        """Keep what the buffers are before the update; only those that have changed since the last one are copied."""
        found = {
            id(tensor): _Buffer(f"{path}.{key}", holder, key, tensor)
            for path, holder in self._holders
            for key, tensor in holder.items()
            if tensor is not None
        }
        if self._found != list(found):
            self._found, self._groups = list(found), _grouped(found.values())
        for group in self._groups:
            group.save()

    @torch.no_grad()
    def restore(self) -> None:
        """Let the buffers be what they were before the update."""
        for group in self._groups:
            if group.has_changed:
                group.restore()

    @torch.no_grad()
    def changes(self, weight: float | None) -> Changes:
        """Return what a micro-batch has changed.

        Args:
            weight: Its part in the samples of the update; None for the only one, which tells what buffers are now, as
                a difference that is added again may be rounded.

        Raises:
            ValueError: A buffer has another shape or type than before.
        """
        changes: Changes = {}
        for number, group in enumerate(self._groups):
            if group.has_changed:
                changes[number] = now = group.values().double()
                if weight is not None and group.is_weighed:
                    changes[number] = (now - _base(group.saved)) * weight
        return changes

    def add(self, left: Changes, right: Changes) -> Changes:
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

    @torch.no_grad()
    def apply(self, changes: Changes, *, is_only: bool) -> None:
        """Change the buffers by what all micro-batches of the update add up to.

        Args:
            changes: The sum.
            is_only: Whether they are of the only one.
        """
        self.restore()
        for number, change in changes.items():
            group = self._groups[number]
            saved = group.saved
            if group.is_weighed:
                group.assign((change if is_only else _base(saved) + change).to(saved.dtype))
            else:  # what is larger than a double holds exactly, and did not change, stays
                group.assign(torch.where(saved.double() == change, saved, change.to(saved.dtype)))

    def flat(self, changes: Changes, numbers: Sequence[int]) -> Tensor:
        """Return the changes of some buffers one after the other; whole numbers that are the same as before are NaN.

        Args:
            changes: The changes.
            numbers: The numbers of the groups.
        """
        return torch.cat([self._change(changes, number) for number in numbers])

    def _change(self, changes: Changes, number: int) -> Tensor:
        if number in changes:
            return changes[number]
        group = self._groups[number]
        return torch.full_like(group.saved, 0.0 if group.is_weighed else math.nan, dtype=torch.float64)

    def unflat(self, flat: Tensor, numbers: Sequence[int]) -> Changes:
        """Return what ``flat`` was made of.

        Args:
            flat: Its result.
            numbers: As there.
        """
        pieces = torch.split(flat, [self._groups[number].numel for number in numbers])
        return dict(zip(numbers, pieces, strict=True))

    def numel(self, numbers: Sequence[int]) -> int:
        """Return how many elements groups have.

        Args:
            numbers: Their numbers.
        """
        return sum(self._groups[number].numel for number in numbers)


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
