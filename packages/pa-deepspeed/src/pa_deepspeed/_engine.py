"""Starting DeepSpeed's engine for a model, and removing all of its traces from the model again.

DeepSpeed is imported when the first engine starts. It has no types, so the protocols of this module describe what is
used of it.
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

SPLITS_WEIGHTS: Final = 3
"""The stage in which weights are divided, too."""

_SHARED_MEMORY: Final = "deepspeed_shm_comm"
"""The operation for CPUs that DeepSpeed would compile at its first start."""

_LARGEST_BUCKET: Final = 25_000_448
"""The number of elements in a message, 100 MB; DeepSpeed's own default allocates 2 GB before each backward pass."""

_ALIGNED: Final = 512
"""DeepSpeed needs sizes that are multiples of a small power of two."""

_NEVER: Final = 2**31

_DEPRECATED: Final = r"`torch\.distributed\.\w+` is deprecated"
"""The beginning of torch's warnings of functions that DeepSpeed calls in each backward pass."""


class ZeroOptimizer(Protocol):
    """DeepSpeed's optimizer of ZeRO, in any stage.

    Attributes:
        optimizer: The optimizer of torch that steps the shares of this process.
        averaged_gradients: The gradients of these shares, by group; None after a step.
    """

    optimizer: Optimizer
    averaged_gradients: dict[int, list[Tensor] | None]

    def clear_backward_seen_flag(self) -> None:
        """Begin a backward pass, which adds to the gradients of the passes before it."""
        ...

    def finalize_gradient_accumulation_boundary(self) -> None:
        """Collect the gradients of all passes of an update, in the stages 2 and 3."""
        ...


class Engine(Protocol):
    """DeepSpeed's engine.

    Attributes:
        optimizer: The optimizer of ZeRO.
        module: The model.
        module_forward_pre_hook: A hook of the model.
        module_forward_post_hook: A hook of the model.
    """

    optimizer: ZeroOptimizer
    module: nn.Module
    module_forward_pre_hook: Any
    module_forward_post_hook: Any

    def set_gradient_accumulation_boundary(self, is_boundary: bool, /) -> None:
        """Set whether the gradients of the update are complete."""
        ...

    def allreduce_gradients(self) -> None:
        """Exchange gradients."""
        ...

    def step(self) -> None:
        """Step the shares, and send the new weights."""
        ...

    def was_step_applied(self) -> bool:
        """Return whether the last step was made; False if the gradients were not finite."""
        ...

    def destroy(self) -> None:
        """Remove the hooks of the engine."""
        ...


def start_engine(
    module: nn.Module, optimizer: Optimizer, stage: int, settings: Mapping[str, object], device: torch.device
) -> Engine:
    """Start an engine; every process must call this.

    Args:
        module: The model, on the device.
        optimizer: The optimizer of torch that steps the shares; its parameters are replaced.
        stage: The stage of ZeRO.
        settings: Settings of ``zero_optimization``.
        device: The device of the run.
    """
    deepspeed = _import(device)
    elements = min(_LARGEST_BUCKET, sum(parameter.numel() for parameter in module.parameters()))
    size = elements + -elements % _ALIGNED
    sizes = {"reduce_bucket_size": size, "allgather_bucket_size": size, "stage3_prefetch_bucket_size": size}
    config: dict[str, object] = {
        "train_micro_batch_size_per_gpu": 1,  # the run weights and counts batches itself
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,  # DeepSpeed's default clips at 1.0
        "zero_allow_untested_optimizer": True,
        "steps_per_print": _NEVER,
        "zero_optimization": {**sizes, "overlap_comm": False, **settings, "stage": stage},
    }
    compatible: dict[str, bool] = deepspeed.ops.__compatible_ops__
    before = compatible.get(_SHARED_MEMORY, False)
    compatible[_SHARED_MEMORY] = False
    try:
        return cast("Engine", deepspeed.initialize(model=module, optimizer=optimizer, config=config)[0])
    finally:
        compatible[_SHARED_MEMORY] = before


def _import(device: torch.device) -> Any:
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # a machine may have accelerators that the run does not use
    deepspeed: Any = importlib.import_module("deepspeed")
    deepspeed.utils.logger.setLevel(logging.ERROR)  # it warns of optimizers that `_requirements` has checked
    warnings.filterwarnings("ignore", _DEPRECATED, FutureWarning)  # each exchange would warn
    return deepspeed


def begin_pass(engine: Engine) -> None:
    """Begin a backward pass, within the pass; DeepSpeed calls the same method when it begins at an output of a model.

    Args:
        engine: The engine.
    """
    cast("Any", engine)._backward_prologue()


@contextmanager
def gathered(parameters: Iterable[nn.Parameter]) -> Generator[None]:
    """Return a context in which the parameters of stage 3 are whole; every process must enter it.

    Args:
        parameters: The parameters.
    """
    zero: Any = importlib.import_module("deepspeed").zero
    with zero.GatheredParameters(list(parameters), modifier_rank=None):
        yield


class Traces:
    """The attributes of a model before an engine starts, to remove what the engine adds.

    Args:
        module: The model.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        objects = [*module.modules(), *module.parameters()]
        self._attributes = [(held, frozenset(vars(held))) for held in objects]
        self._tables = [(part, vars(part)["_parameters"]) for part in module.modules()]

    def remove(self, engine: Engine) -> None:
        """Remove the hooks and attributes of an engine, without communication.

        Args:
            engine: The engine, which is not used again.
        """
        engine.destroy()
        for hook in (engine.module_forward_pre_hook, engine.module_forward_post_hook):
            hook.remove()
        stack: list[nn.Module] = importlib.import_module("deepspeed.runtime.zero.parameter_offload").FWD_MODULE_STACK
        stack[:] = [held for held in stack if held is not self._module]
        for part, table in self._tables:
            vars(part)["_parameters"] = table
        for held, before in self._attributes:
            for name in vars(held).keys() - before:
                delattr(held, name)
