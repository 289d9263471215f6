"""How the micro-batches of an update change buffers, such as the running statistics of batch norm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from pa_distributed._errors import InvalidArgumentError
from pa_distributed._torch import BUFFERS, versions_of

Changes: TypeAlias = dict[int, Tensor]
"""By the number of the buffer, in double precision: its weighed change, or the whole numbers that all agree on."""

_SMALL: Final = 1 << 13
"""In elements; most masks and tables are larger."""


class _Buffer(NamedTuple):
    name: str
    holder: dict[str, Tensor | None]
    key: str
    tensor: Tensor


class Buffers:
    """Lets each micro-batch of an update begin with the same buffers, and finds what it has changed.

    Args:
        modules: The modules by name.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self._holders: list[tuple[str, dict[str, Tensor | None]]] = []
        self._buffers: list[_Buffer] = []
        self._saved: dict[int, tuple[int, Tensor]] = {}  # by their numbers: version and copy
        self._versions: list[int] = []
        self.find()

    @property
    def exist(self) -> bool:
        """Whether any module has one."""
        return bool(self._holders)

    def __len__(self) -> int:
        """Return the number of buffers."""
        return len(self._buffers)

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
        if [id(one.tensor) for one in self._buffers] != list(found):
            self._buffers, self._saved = list(found.values()), {}
        self._versions = self._versions_now()
        for number, (one, version) in enumerate(zip(self._buffers, self._versions, strict=True)):
            if number not in self._saved or _is_small(one.tensor) or self._saved[number][0] != version:
                self._saved[number] = version, one.tensor.clone()

    @torch.no_grad()
    def restore(self) -> None:
        """Let the buffers be what they were before the update."""
        for number in self._changed():
            one = self._buffers[number]
            one.holder[one.key] = one.tensor
            one.tensor.copy_(self._saved[number][1])
        self._versions = self._versions_now()

    @torch.no_grad()
    def changes(self, weight: float) -> Changes:
        """Return what a micro-batch has changed.

        Args:
            weight: Its part in the samples of the update.

        Raises:
            InvalidArgumentError: A buffer has another shape or type than before.
        """
        changes: Changes = {}
        for number in self._changed():
            one = self._buffers[number]
            before, after = self._saved[number][1], one.holder[one.key]
            if after is None or (after.shape, after.dtype) != (before.shape, before.dtype) or after.is_complex():
                raise InvalidArgumentError(
                    f"The forward pass has given the buffer {one.name} another shape or type, so it has no mean.",
                    given=f"{_described(after)}, before {_described(before)}",
                    do="Keep the shape of buffers, or keep what grows in a plain attribute.",
                )
            changes[number] = (after.double() - _base(before)) * weight if after.is_floating_point() else after.double()
        return changes

    def add(self, left: Changes, right: Changes) -> Changes:
        """Return the changes of two nodes together.

        Raises:
            InvalidArgumentError: Whole numbers differ; on an accelerator nobody waits for them to be compared.
        """
        for number, change in right.items():
            one, other = self._buffers[number], left.get(number)
            if other is None:
                left[number] = change
            elif one.tensor.is_floating_point():
                left[number] = other + change
            else:
                left[number] = joined = torch.where(other.isnan(), change, other)
                if change.device.type == "cpu" and not ((joined == change) | change.isnan()).all():
                    raise InvalidArgumentError(
                        f"Micro-batches have left different whole numbers in the buffer {one.name}.",
                        do="Count in a floating-point buffer, whose changes are averaged, or outside of the model.",
                    )
        return left

    @torch.no_grad()
    def apply(self, changes: Changes) -> None:
        """Change the buffers by what all micro-batches of the update add up to.

        Args:
            changes: The sum.
        """
        self.restore()
        for number, change in changes.items():
            tensor = self._buffers[number].tensor
            if tensor.is_floating_point():
                tensor.copy_(_base(tensor) + change)
            else:  # what is larger than a double holds exactly, and did not change, stays
                tensor.copy_(torch.where(tensor.double() == change, tensor, change.to(tensor.dtype)))

    def flat(self, changes: Changes, numbers: Sequence[int]) -> Tensor:
        """Return the changes of some buffers one after the other; whole numbers that are the same as before are NaN.

        Args:
            changes: The changes.
            numbers: The numbers of the buffers.
        """
        return torch.cat([self._change(changes, number).reshape(-1) for number in numbers])

    def _change(self, changes: Changes, number: int) -> Tensor:
        tensor = self._buffers[number].tensor
        nothing = 0.0 if tensor.is_floating_point() else math.nan
        return changes[number] if number in changes else torch.full_like(tensor, nothing, dtype=torch.float64)

    def unflat(self, flat: Tensor, numbers: Sequence[int]) -> Changes:
        """Return what ``flat`` was made of.

        Args:
            flat: Its result.
            numbers: As there.
        """
        tensors = [self._buffers[number].tensor for number in numbers]
        pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
        return {number: piece.view(one.shape) for number, piece, one in zip(numbers, pieces, tensors, strict=True)}

    def numel(self, numbers: Sequence[int]) -> int:
        """Return how many elements buffers have.

        Args:
            numbers: Their numbers.
        """
        return sum(self._buffers[number].tensor.numel() for number in numbers)

    def _changed(self) -> list[int]:
        versions = zip(self._versions, self._versions_now(), strict=True)
        return [
            number
            for number, (one, (before, now)) in enumerate(zip(self._buffers, versions, strict=True))
            if _is_small(one.tensor) or one.holder.get(one.key) is not one.tensor or before != now
        ]

    def _versions_now(self) -> list[int]:
        return versions_of(one.tensor for one in self._buffers)


def _base(tensor: Tensor) -> Tensor:
    """Return what changes are relative to: zero where a buffer is infinite, as a mask or the minimum of nothing is."""
    exact = tensor.double()
    return torch.where(exact.isinf(), 0.0, exact)


def _is_small(tensor: Tensor) -> bool:
    """Whether it counts as changed in any case: kernels such as batch norm's do not tell torch what they change."""
    return (tensor.numel() <= _SMALL or tensor.dim() == 1) and not tensor.is_complex()


def _described(tensor: Any) -> str:
    return "none" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"
