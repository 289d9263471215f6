"""Trainers whose Accelerator has a plugin that shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from pa_core import Trainer


def accelerator_with(**settings: Any) -> Any:
    """An Accelerator with a plugin, as a script makes it; other arguments begin with an underscore."""
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin

    others = {name.removeprefix("_"): settings.pop(name) for name in [*settings] if name.startswith("_")}
    return Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, **settings), **others)


def sharding(
    model: nn.Module,
    optimizer: Optimizer | None,
    create_optimizer_fn: Callable[[nn.Module], Optimizer] | None = None,
    **settings: Any,
) -> Trainer[nn.Module]:
    """A trainer whose Accelerator has a plugin."""

    class Sharding(Trainer[nn.Module]):
        @override
        def create_accelerator(self) -> Any:
            return accelerator_with(**settings)

    return Sharding(model, nn.CrossEntropyLoss(), optimizer, [], create_optimizer_fn=create_optimizer_fn)
