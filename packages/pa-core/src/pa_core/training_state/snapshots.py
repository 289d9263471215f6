"""Snapshots of what a run consists of, for states that are written while training continues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from pa_core._torch import calls_step_hooks, version_of
from pa_core.storage.background import HostPool
from pa_core.storage.encoding import Encoded
from pa_core.storage.late_copies import LateCopies, differ

__all__ = ["Snapshots"]

_LARGE = 1 << 16
"""Bytes from which on a tensor may be copied late; what is less is copied at once in microseconds."""


class Snapshots:
    """Copies tensors to host memory without holding up training, as far as only optimizers change them.

    Weights and the states of optimizers are copied in the background until the next optimizer step begins, which
    completes the copies. The first snapshot is copied at once, and compared with the tensors when that step begins:
    what the forward pass or a callback has changed by then, is copied at once from then on. Should something else
    change a tensor in a later window, no state is written of it.

    Args:
        report: Called where a snapshot is of no use, since tensors changed while they were copied.
    """

    def __init__(self, report: Callable[[], object]) -> None:
        self._report = report
        self._pool = HostPool()
        self._copies: LateCopies | None = None
        self._candidates: list[tuple[str, Tensor, int]] = []
        self._copied: Mapping[str, Tensor] = {}
        self._knows_what_changes = False
        self._restless: set[str] = set()
        self._copies_at_once = False
        self._hooks: list[Any] = []

    def trusts(self, optimizers: Collection[Optimizer]) -> bool:
        """Whether tensors stay unchanged until one of the optimizers makes a step.

        Args:
            optimizers: Those that change the weights next.
        """
        return bool(optimizers) and not self._copies_at_once and all(map(calls_step_hooks, optimizers))

    def take(
        self, parts: Mapping[str, Encoded], optimizers: Collection[Optimizer], live: Collection[str]
    ) -> tuple[dict[str, Encoded], LateCopies]:
        """Begin a snapshot; nothing may read the one before any more.

        Args:
            parts: The parts of a state.
            optimizers: As for ``trusts``; where it is wrong, everything is copied at once.
            live: The names of tensors that need no copy.

        Returns:
            The snapshot, and what the writing thread waits for before it reads it.
        """
        self.finish()
        names = [] if any(part.pieces for part in parts.values()) else list(_changed_by_optimizers(parts))
        if not self.trusts(optimizers):
            names = []
        tensors = {name: tensor for part in parts.values() for name, tensor in part.tensors.items()}
        late = {name for name in names if name not in self._restless} if self._knows_what_changes else set[str]()
        snapshot, copies = self._pool.begin(parts, late=late, live=live, probed=["models"])
        if not self._knows_what_changes:
            self._candidates = [(name, tensors[name], version_of(tensors[name])) for name in names]
            self._copied = {name: tensor for part in snapshot.values() for name, tensor in part.tensors.items()}
        self._copies = copies
        if names:
            self._hooks = [one.register_step_pre_hook(self._hook()) for one in optimizers]
        else:
            self.finish()
        return snapshot, copies

    def finish(self) -> None:
        """Complete the copies, before something may change the tensors."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        copies, self._copies = self._copies, None
        if copies is not None and not copies.finish():
            self.distrust()
        self._candidates, self._copied = [], {}

    def distrust(self) -> None:
        """Copy everything at once from now on, since something changed unexpectedly."""
        self._copies_at_once = True
        self._report()

    def _hook(self) -> Callable[..., None]:
        def before_step(*_: object) -> None:  # a function, which is not copied with an optimizer
            self._note_what_changed()
            self.finish()

        return before_step

    def _note_what_changed(self) -> None:
        """Look once which tensors are as they were after the update, now that the next one begins."""
        if not self._knows_what_changes and self._candidates:
            self._restless |= {
                name
                for name, tensor, version in self._candidates
                if version_of(tensor) != version or differ(tensor, self._copied[name])
            }
            self._knows_what_changes = True


def _changed_by_optimizers(parts: Mapping[str, Encoded]) -> Iterator[str]:
    """Yield the names of the large tensors on the CPU of models and optimizers."""
    for part in ("models", "optimizers"):
        for name, tensor in parts[part].tensors.items():
            if tensor.nbytes >= _LARGE and tensor.device.type == "cpu" and not tensor.is_inference():
                yield name
