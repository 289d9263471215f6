"""Batch norm layers that normalize over several processes during a run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from pa_callbacks_extra.sync_batch_norm import BatchStatistics, normalise
from pa_core import UnsupportedConfigurationError
from pa_core.torch_names import INPUT_CHECK

# torch annotates only some of these
_collectives: Any = dist
_not_compiled = cast("Callable[..., Any]", torch.compiler.disable)  # pyright: ignore[reportUnknownMemberType]

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_FORWARDS = (nn.BatchNorm1d.forward, nn.SyncBatchNorm.forward)

# Groups are kept as long as processes are connected: a new group could receive messages left over from the last.
_groups: WeakKeyDictionary[dist.ProcessGroup, dict[int, dist.ProcessGroup]] = WeakKeyDictionary()


class Participants:
    """The processes whose batches are currently normalized together, which are the processes with the lowest ranks.

    Every process must construct this; at first all of them take part.

    Args:
        shares_group: Whether statistics are exchanged in the same process group as gradients. A separate group lets
            both exchanges happen in any order, but would take memory on an accelerator.
        is_left_out: A function that returns whether this process calls the model without taking part.
    """

    def __init__(self, *, shares_group: bool, is_left_out: Callable[[], bool] = lambda: False) -> None:
        world = cast("dist.ProcessGroup", dist.group.WORLD)
        self._of_first = _groups.setdefault(world, {})
        self._everyone = world if shares_group else self._connect(world.size())
        self._chosen: dist.ProcessGroup = self._everyone
        self.is_left_out = is_left_out

    @property
    def group(self) -> dist.ProcessGroup:
        """The participants' process group; on a process that is left out, torch's marker for a group without it."""
        return cast("Any", dist.GroupMember.NON_GROUP_MEMBER) if self.is_left_out() else self._chosen

    def connect_first(self, count: int) -> None:
        """Prepare a process group of the first processes; every process must call this.

        Args:
            count: The number of processes.
        """
        if count < self._everyone.size():
            self._connect(count)

    def choose_first(self, count: int) -> None:
        """Normalize the batches of the first processes together, after ``connect_first`` has connected them.

        Args:
            count: The number of processes.
        """
        self._chosen = self._everyone if count == self._everyone.size() else self._of_first[count]

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """A copied layer normalizes with the same processes."""
        return self

    def _connect(self, count: int) -> dist.ProcessGroup:
        if count not in self._of_first:
            self._of_first[count] = _collectives.new_group(list(range(count)))
        return self._of_first[count]


def synchronise_layers(model: nn.Module, participants: Participants, *, uses_torch: bool) -> None:
    """Make the batch norm layers of a model normalize over the participants, in place.

    The layers remain the same objects, with the same parameters, buffers and hooks; only their class changes.

    Args:
        model: The model.
        participants: The processes that normalize together.
        uses_torch: Whether the layers become ``torch.nn.SyncBatchNorm``, which needs an accelerator.

    Raises:
        UnsupportedConfigurationError: A layer normalizes in its own way. No layer is converted then.
    """
    for layer in [module for module in model.modules() if _is_convertible(module)]:
        vars(layer)["participants"] = participants
        # mypy confuses the hash of modules with the hash of their classes
        layer.__class__ = _synchronised_class(cast("Any", type(layer)), uses_torch)


def restore_layers(model: nn.Module) -> None:
    """Undo ``synchronise_layers``.

    Args:
        model: The model, or a copy of it.
    """
    for layer in model.modules():
        original: type[nn.Module] | None = getattr(type(layer), "converted_from", None)
        if original is not None:
            layer.__class__ = original
            del vars(layer)["participants"]


def _is_convertible(module: nn.Module) -> bool:
    if not isinstance(module, _BATCH_NORMS):
        return False
    if type(module).forward in _FORWARDS and "forward" not in vars(module):
        return True
    raise UnsupportedConfigurationError(
        f"A batch norm layer with a custom forward, a layer of class {type(module).__qualname__}, would lose it when "
        "it is converted. Synchronise such layers yourself, and leave ConvertSyncBatchNormCallback out."
    )


@functools.cache
def _synchronised_class(original: type[nn.Module], uses_torch: bool) -> type[nn.Module]:
    """Derive from the layer's own class, so that the layer is still an instance of it and has all its methods."""
    is_torchs_own = issubclass(original, nn.SyncBatchNorm)
    members: dict[str, Any] = {"converted_from": original}
    bases: tuple[type[nn.Module], ...]
    if uses_torch:
        bases = (original,) if is_torchs_own else (nn.SyncBatchNorm, original)
        members["process_group"] = property(lambda layer: layer.participants.group)
    else:
        # Not derived from torch's class: DistributedDataParallel does not wrap such layers on a CPU.
        bases = (_SynchronisedBatchNorm, nn.BatchNorm1d if is_torchs_own else original)
        members[INPUT_CHECK] = getattr(original, INPUT_CHECK)
        # Python exchanges the statistics even in a compiled model. Disabling loads the compiler, so only do it here.
        members["forward"] = _not_compiled(_SynchronisedBatchNorm.forward)
    return type(f"Synchronised{original.__name__}", bases, members)


class _SynchronisedBatchNorm(nn.Module):
    """The forward pass of a converted batch norm layer if there is no accelerator."""

    participants: Participants
    weight: nn.Parameter | None
    bias: nn.Parameter | None
    eps: float
    momentum: float | None
    track_running_stats: bool
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    @override
    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.participants.is_left_out():
            return cast("Tensor", super().forward(input))
        group = self.participants.group
        if group.size() == 1:
            return cast("Tensor", super().forward(input))
        getattr(self, INPUT_CHECK)(input)
        statistics = BatchStatistics(input, group)
        if statistics.count <= 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.size()}")
        if self.track_running_stats:
            self._track(statistics)
        return normalise(input, self.weight, self.bias, statistics, self.eps)

    @torch.no_grad()
    def _track(self, statistics: BatchStatistics) -> None:
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = statistics.variance * (statistics.count / (statistics.count - 1))
        for running, of_batch in ((self.running_mean, statistics.mean), (self.running_var, unbiased)):
            running.copy_(running.to(of_batch.dtype).lerp(of_batch, share))
