"""Configurations of accelerate and torch that a trainer does not support, found beforehand."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pa_core import _accelerate, accelerator_settings
from pa_core.errors import ConfigurationError, UnsupportedConfigurationError
from pa_core.input_checks import check_precision_and_device
from pa_core.model_tensors import is_sharded_module

__all__ = ["create_accelerator", "require_usable", "require_usable_model", "require_whole_model"]

_REFUSED_VARIABLES = "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM"
_KINDS_OF_PARALLELISM = "dp_replicate", "dp_shard", "tp", "cp", "sp"
_ENGINE = "It brings its own training engine. Launch with accelerate launch --use_fsdp --fsdp_version 2."
_FSDP1 = "It is the first version of FSDP. Pass --fsdp_version 2 to accelerate launch, or fsdp_version=2 to the plugin."
_FP8 = "Layers would not be converted. Use bf16."
_FSDP_VARIABLE = "ACCELERATE_USE_FSDP"
_PRECISION_VARIABLE = "ACCELERATE_MIXED_PRECISION"


def create_accelerator(
    create: Callable[[], _accelerate.AcceleratorLike], mixed_precision: str | None, cpu: bool | None
) -> tuple[_accelerate.AcceleratorLike, dict[str, Any]]:
    """Create the Accelerator of a trainer, in the requested precision and on the requested device.

    Args:
        create: ``Trainer._create_accelerator``, or an override of it.
        mixed_precision: The argument of the trainer.
        cpu: The argument of the trainer.

    Returns:
        The Accelerator, and the keyword arguments that it was made with.

    Raises:
        ConfigurationError: ``mixed_precision`` is none, or ``create`` set another one.
        ArgumentTypeError: ``cpu`` is not a bool.
        UnsupportedConfigurationError: The environment requires what a run cannot do, or an earlier Accelerator has
            fixed another precision or device for the whole process.
    """
    check_precision_and_device(mixed_precision, cpu)
    launched = _accelerate.launched_with(mixed_precision, cpu)
    with _refuse_conflicts(mixed_precision), launched, _accelerate.noting_arguments() as arguments:
        accelerator = create()
    if mixed_precision is not None and mixed_precision != accelerator.mixed_precision:
        raise ConfigurationError(
            f"mixed_precision={mixed_precision!r} was requested, and the Accelerator from {create.__qualname__} has "
            f"mixed_precision={accelerator.mixed_precision!r}. Set it in one place, and leave it out in the other."
        )
    if cpu and accelerator.device.type != "cpu":
        raise ConfigurationError(
            f"cpu=True was requested, and the Accelerator from {create.__qualname__} has the device "
            f"{accelerator.device}. Set it in one place, and leave it out in the other."
        )
    return accelerator, arguments


@contextmanager
def _refuse_conflicts(mixed_precision: str | None) -> Generator[None]:
    """Explain what an Accelerator that is made within the context cannot have in this process."""
    _require_supported_environment()
    if mixed_precision is not None and _accelerate.precision_of_process() not in {None, mixed_precision}:
        # Accelerate itself only compares what an Accelerator is made with, and not what it finds in the environment.
        raise _conflict(f"mixed_precision={mixed_precision!r}")
    try:
        yield
    except ValueError as error:
        conflict = re.search(r"already been initialized .* pass `(.+?)` to", str(error))
        if conflict is None:
            raise
        raise _conflict(conflict[1]) from error


def _conflict(asked: str) -> UnsupportedConfigurationError:
    there = f"mixed_precision={_accelerate.precision_of_process()!r}"
    return UnsupportedConfigurationError(
        f"{asked} comes after {there}: accelerate has one precision and one device for each process, and an earlier "
        f"trainer or run has chosen them. Pass the same here too, or train in a separate process."
    )


def _unsupported(given: str, text: str) -> UnsupportedConfigurationError:
    return UnsupportedConfigurationError(f"{given} is not supported. {text}")


def _require_supported_environment() -> None:
    """Plugins of accelerate set these variables too, and accelerate ignores some of them on a CPU."""
    for variable in _REFUSED_VARIABLES:
        if _is_set(variable):
            raise _unsupported(f"{variable}={os.environ[variable]}", _ENGINE)
    if _is_set(_FSDP_VARIABLE) and os.environ.get("FSDP_VERSION", "1") == "1":
        raise _unsupported(f"{_FSDP_VARIABLE}={os.environ[_FSDP_VARIABLE]} with FSDP_VERSION=1, the default,", _FSDP1)
    if os.environ.get(_PRECISION_VARIABLE, "").lower() == "fp8":
        raise _unsupported(f"{_PRECISION_VARIABLE}=fp8", _FP8)


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "false").lower() in {"1", "true", "yes", "y", "on", "t"}


def require_usable(accelerator: _accelerate.AcceleratorLike, arguments: dict[str, Any], model: nn.Module) -> None:
    """Raise an error for an Accelerator or a model that a run cannot use; warn about settings without effect.

    Args:
        accelerator: The Accelerator of the trainer.
        arguments: What it was made with, from ``create_accelerator``.
        model: The model of the trainer.

    Raises:
        UnsupportedConfigurationError: The run would need another engine or fp8, its processes would not be connected,
            or it would not do what a setting requires.
    """
    for argument in _accelerate.OTHER_ENGINES & arguments.keys():
        if arguments[argument] is not None:
            raise _unsupported(f"{argument}={type(arguments[argument]).__name__}(...)", _ENGINE)
    _require_connected(accelerator)
    kind = str(accelerator.distributed_type.value)
    if kind not in {"NO", "FSDP"} and not kind.startswith("MULTI_"):
        raise _unsupported(f"The distributed type {kind}", _ENGINE)
    if accelerator.mixed_precision == "fp8":
        raise _unsupported("mixed_precision='fp8'", _FP8)
    _require_working_hook(accelerator)
    plugin = _accelerate.sharding_plugin(accelerator, arguments)
    if plugin is not None and plugin.fsdp_version == 1:
        raise _unsupported("FullyShardedDataParallelPlugin(fsdp_version=1)", _FSDP1)
    if plugin is not None and _accelerate.computed_precision(accelerator) == "fp16":
        raise _unsupported("mixed_precision='fp16' with FSDP", "Its gradients would not be scaled. Use bf16.")
    parallelism = _accelerate.parallelism_config(accelerator, arguments)
    if parallelism is not None:
        _require_data_parallel(accelerator, parallelism, is_sharded=plugin is not None)
    accelerator_settings.require_usable_settings(accelerator, arguments)
    require_usable_model(model)
    accelerator_settings.warn_of_ignored_settings(accelerator)


def _require_data_parallel(accelerator: _accelerate.AcceleratorLike, parallelism: Any, *, is_sharded: bool) -> None:
    """Accelerate itself checks a ``ParallelismConfig`` on an accelerator only."""
    sizes = {name: int(getattr(parallelism, f"{name}_size")) for name in _KINDS_OF_PARALLELISM}
    given = f"ParallelismConfig({', '.join(f'{name}_size={size}' for name, size in sizes.items() if size > 1)})"
    if any(sizes[name] > 1 for name in ("tp", "cp", "sp")):
        raise _unsupported(
            given,
            "Samples are divided over all processes: leave out tensor, context and sequence parallelism, and let "
            "dp_shard_size take their processes.",
        )
    # With neither of them, accelerate means as many replicas as there are processes.
    is_of_others = parallelism.total_size not in {1, accelerator.num_processes}
    if is_of_others or (is_sharded and sizes["dp_replicate"] > 1 and sizes["dp_shard"] == 1):
        raise _unsupported(
            f"{given} on {accelerator.num_processes} processes{' with FSDP' if is_sharded else ''}",
            f"Set dp_replicate_size x dp_shard_size = {accelerator.num_processes}, and with FSDP dp_shard_size > 1.",
        )


def _require_connected(accelerator: _accelerate.AcceleratorLike) -> None:
    launched = _accelerate.launched_processes()
    if launched > 1 and accelerator.num_processes == 1:
        raise UnsupportedConfigurationError(
            f"WORLD_SIZE={launched}, while accelerate runs 1 process: each of the launched processes would train by "
            "itself. Create the Accelerator with cpu=True (or set ACCELERATE_USE_CPU=true) to train on CPU, or start "
            "the script without the launcher."
        )


def _require_working_hook(accelerator: _accelerate.AcceleratorLike) -> None:
    handler: Any = getattr(accelerator, "ddp_handler", None)
    if handler is not None and "power_sgd" in str(handler.comm_hook.value):
        raise _unsupported(
            f"comm_hook={handler.comm_hook.name}",
            "Gradients are not compressed by PowerSGD. Use BF16 or FP16, which send half as much.",
        )


def require_usable_model(model: nn.Module) -> None:
    """Raise an error for a model that was wrapped for several processes before the trainer got it.

    Args:
        model: The user's module, which ``torch.distributed.fsdp.fully_shard`` may have sharded.

    Raises:
        UnsupportedConfigurationError: It is wrapped in ``DistributedDataParallel`` or in FSDP1.
    """
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise _unsupported(
            f"{type(model).__name__}, in which there is a DistributedDataParallel,",
            "Pass the module inside, and DistributedDataParallelKwargs to the Accelerator.",
        )
    # Where the module is not imported, nothing is wrapped in its classes; importing it here would cost a second.
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules()):
        raise _unsupported(
            f"{type(model).__name__}, in which there is a FullyShardedDataParallel,",
            "It is the first version of FSDP. Shard the model with torch.distributed.fsdp.fully_shard.",
        )


def require_whole_model(model: nn.Module) -> None:
    """Raise an error for a module that was wrapped for several processes, or split over them.

    Args:
        model: The user's module.

    Raises:
        UnsupportedConfigurationError: It is not a whole module on this process.
    """
    require_usable_model(model)
    if is_sharded_module(model):
        raise _unsupported(
            f"{type(model).__name__} with parameters that are split over processes (DTensor), as an added module,",
            "Pass the whole module; for several sharded models, use Run.",
        )
