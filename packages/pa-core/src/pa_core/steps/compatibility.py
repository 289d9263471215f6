"""Checks of settings of accelerate and torch: an error if results would differ, a warning if they have no effect."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pa_core import _accelerate
from pa_core._tensors import is_sharded_module
from pa_core.errors import ArgumentTypeError, ConfigurationError, UnsupportedConfigurationError
from pa_core.steps.input_checks import check_precision_and_device
from pa_core.user_warnings import warn_user

if TYPE_CHECKING:  # few runs need it
    from pa_core.sharding.deepspeed_config import DeepSpeedConfig

_KINDS_OF_PARALLELISM = "dp_replicate", "dp_shard", "tp", "cp", "sp"
_ENGINE = "It has its own training engine. Launch with accelerate launch --use_fsdp --fsdp_version 2."
_FSDP1 = "It is the first version of FSDP. Pass --fsdp_version 2 to accelerate launch, or fsdp_version=2 to the plugin."
_FP8 = "Layers would not be converted. Use bf16."


_OWN_LOADERS = (
    "has no effect on the trainer's own loaders, whose order follows from the seed of the run. Accelerate applies it "
    "when it splits the samples itself: with an IterableDataset, a sampler or your DataLoader."
)


def _unsupported(given: str, advice: str) -> UnsupportedConfigurationError:
    return UnsupportedConfigurationError(f"{given} is not supported. {advice}")


def create_accelerator(
    create: Callable[[], _accelerate.AcceleratorLike], mixed_precision: str | None, cpu: bool | None
) -> tuple[_accelerate.AcceleratorLike, dict[str, Any]]:
    """Create the Accelerator of a trainer, in the requested precision and on the requested device.

    Args:
        create: ``Trainer.create_accelerator``, or an override of it.
        mixed_precision: The argument of the trainer.
        cpu: The argument of the trainer.

    Returns:
        The Accelerator, and its keyword arguments, with the ``DeepSpeedConfig`` (or None) under "deepspeed".

    Raises:
        ConfigurationError: ``mixed_precision`` is unknown, or ``create`` or the configuration of DeepSpeed sets a
            different precision.
        ArgumentTypeError: ``cpu`` is not a bool, or ``create`` returned an object that is not an Accelerator.
        UnsupportedConfigurationError: The environment requires a feature that a run does not have, or an earlier
            Accelerator has fixed a different precision or device for the whole process.
    """
    check_precision_and_device(mixed_precision, cpu)
    _reject_variables()
    before = _accelerate.precision_of_process()
    if mixed_precision is not None and before not in {None, mixed_precision}:
        # Accelerate itself only compares arguments of Accelerators, not settings in the environment.
        raise _conflict(f"mixed_precision={mixed_precision!r}")
    try:
        with _accelerate.launched_with(mixed_precision, cpu), _accelerate.recording_arguments() as arguments:
            accelerator = create()
    except ValueError as error:
        conflict = re.search(r"already been initialized .* pass `(.+?)` to", str(error))
        if conflict is None:
            raise
        raise _conflict(conflict[1]) from error
    if not hasattr(accelerator, "num_processes"):
        raise ArgumentTypeError(
            "create_accelerator did not return an Accelerator.",
            given=type(accelerator).__name__,
            do="End it with: return Accelerator(...).",
        )
    arguments["deepspeed"] = _read_deepspeed(accelerator, arguments, mixed_precision)
    if mixed_precision is not None and mixed_precision != accelerator.mixed_precision:
        requested, there = f"mixed_precision={mixed_precision!r}", f"mixed_precision={accelerator.mixed_precision!r}"
    elif cpu and accelerator.device.type != "cpu":
        requested, there = "cpu=True", f"the device {accelerator.device}"
    else:
        return accelerator, arguments
    raise ConfigurationError(
        f"{requested} was requested, and the Accelerator from {create.__qualname__} has {there}. Set it once, and "
        "leave it out elsewhere."
    )


def _read_deepspeed(
    accelerator: _accelerate.AcceleratorLike, arguments: dict[str, Any], mixed_precision: str | None
) -> DeepSpeedConfig | None:
    plugin = arguments.pop("deepspeed_plugin")
    if plugin is None:
        return None
    from pa_core.sharding.deepspeed_config import read_deepspeed

    deepspeed = read_deepspeed(plugin)
    by_launcher = arguments.get("mixed_precision") or os.environ.get("ACCELERATE_MIXED_PRECISION", "").lower()
    requested = mixed_precision or (None if by_launcher in {"", "no"} else by_launcher)  # "no" is its default
    deepspeed.require_precision(requested, accelerator.mixed_precision)
    return deepspeed


def _reject_variables() -> None:
    """Raise an error for variables that accelerate's plugins also set, and that accelerate partly ignores on a CPU."""
    if _is_true("ACCELERATE_USE_MEGATRON_LM"):
        raise _unsupported("ACCELERATE_USE_MEGATRON_LM=true", _ENGINE)
    if _is_true("ACCELERATE_USE_FSDP") and os.environ.get("FSDP_VERSION", "1") == "1":
        raise _unsupported("ACCELERATE_USE_FSDP with FSDP_VERSION=1, the default,", _FSDP1)
    if os.environ.get("ACCELERATE_MIXED_PRECISION", "").lower() == "fp8":
        raise _unsupported("ACCELERATE_MIXED_PRECISION=fp8", _FP8)


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "false").lower() in {"1", "true", "yes", "y", "on", "t"}


def _conflict(requested: str) -> UnsupportedConfigurationError:
    there = f"mixed_precision={_accelerate.precision_of_process()!r}"
    return UnsupportedConfigurationError(
        f"{requested} comes after {there}: accelerate has a single precision and device in a process, and an earlier "
        f"trainer or run has chosen them. Pass the same here, or train in a separate process."
    )


def require_usable(accelerator: _accelerate.AcceleratorLike, arguments: dict[str, Any], model: nn.Module) -> None:
    """Raise an error for an Accelerator or a model that a run cannot use; warn about settings without effect.

    Args:
        accelerator: The Accelerator of the trainer.
        arguments: The arguments of the Accelerator, from ``create_accelerator``.
        model: The model of the trainer.

    Raises:
        UnsupportedConfigurationError: The run would need another engine or fp8, its processes would not be connected,
            or a setting would have no effect on its results.
    """
    settings: Any = accelerator
    processes, launched = accelerator.num_processes, _accelerate.launched_processes()
    _require_no_other_engine(str(accelerator.distributed_type.value), arguments)
    if launched > 1 and processes == 1:
        raise UnsupportedConfigurationError(
            f"WORLD_SIZE={launched}, while accelerate runs 1 process: each of the launched processes would train by "
            "itself. Create the Accelerator with cpu=True (or set ACCELERATE_USE_CPU=true) to train on CPU, or start "
            "the script without the launcher."
        )
    handler: Any = getattr(accelerator, "ddp_handler", None)
    plugin = _accelerate.sharding_plugin(accelerator, arguments)
    deepspeed: DeepSpeedConfig | None = arguments["deepspeed"]
    is_sharded = plugin is not None or (deepspeed is not None and deepspeed.stage > 0)
    if plugin is not None and deepspeed is not None:
        raise _unsupported("A configuration of DeepSpeed together with a plugin of FSDP", "Pass one of them.")
    if accelerator.mixed_precision == "fp8":
        raise _unsupported("mixed_precision='fp8'", _FP8)
    if handler is not None and "power_sgd" in str(handler.comm_hook.value):
        raise _unsupported(f"comm_hook={handler.comm_hook.name}", "Use BF16 or FP16, which send half as much.")
    if plugin is not None and plugin.fsdp_version == 1:
        raise _unsupported("FullyShardedDataParallelPlugin(fsdp_version=1)", _FSDP1)
    if is_sharded and _accelerate.computed_precision(accelerator) == "fp16":
        raise _unsupported("mixed_precision='fp16' with FSDP", "Its gradients would not be scaled. Use bf16.")
    _require_data_parallel(_accelerate.parallelism_config(accelerator, arguments), processes, is_sharded)
    if not settings.device_placement:
        raise _unsupported("device_placement=False", "Leave it out, and choose the device when launching.")
    # Accelerate takes the argument and ignores it; only the setting of DataLoaderConfiguration has an effect.
    if processes > 1 and (settings.split_batches or arguments.get("split_batches") is True):
        advice = f"Leave it out, and divide per_device_batch_size by {processes}."
        raise _unsupported(f"split_batches=True on {processes} processes", advice)
    require_usable_model(model)
    _warn_of_ignored_settings(accelerator)


def _require_no_other_engine(kind: str, arguments: dict[str, Any]) -> None:
    if arguments.get("megatron_lm_plugin") is not None:
        raise _unsupported(f"megatron_lm_plugin={type(arguments['megatron_lm_plugin']).__name__}(...)", _ENGINE)
    if kind not in {"NO", "FSDP"} and not kind.startswith("MULTI_"):
        raise _unsupported(f"The distributed type {kind}", _ENGINE)


def _require_data_parallel(parallelism: Any, processes: int, is_sharded: bool) -> None:
    """Check a ``ParallelismConfig``, which accelerate itself does only on an accelerator."""
    if parallelism is None:
        return
    sizes = {name: int(getattr(parallelism, f"{name}_size")) for name in _KINDS_OF_PARALLELISM}
    given = f"ParallelismConfig({', '.join(f'{name}_size={size}' for name, size in sizes.items() if size > 1)})"
    if any(sizes[name] > 1 for name in ("tp", "cp", "sp")):
        raise _unsupported(
            given,
            "Samples are divided over all processes: leave out tensor, context and sequence parallelism, and let "
            "dp_shard_size take their processes.",
        )
    # Without both of them, accelerate uses as many replicas as there are processes.
    is_of_others = parallelism.total_size not in {1, processes}
    if is_of_others or (is_sharded and sizes["dp_replicate"] > 1 and sizes["dp_shard"] == 1):
        raise _unsupported(
            f"{given} on {processes} processes{' with FSDP' if is_sharded else ''}",
            f"Set dp_replicate_size x dp_shard_size = {processes}, and with FSDP dp_shard_size > 1.",
        )


def _warn_of_ignored_settings(accelerator: _accelerate.AcceleratorLike) -> None:
    """Warn about each setting that has no effect on a run, and name the alternative."""
    settings: Any = accelerator
    loading, accumulating = settings.dataloader_config, settings.gradient_state
    computed, steps = _accelerate.computed_precision(accelerator), accelerator.gradient_accumulation_steps
    is_scaled = accelerator.scaler is not None
    data_seed = getattr(loading, "data_seed", None)
    project = cast("dict[str, object]", vars(settings.project_configuration)).values()
    ignored = {
        f"mixed_precision={accelerator.mixed_precision!r} has no effect on the device "
        f"{_accelerate.device_of(accelerator)}: the run computes in fp32. Use 'bf16' there, or 'no'.": (
            computed != accelerator.mixed_precision
        ),
        f"GradScalerKwargs have no effect in {computed!r}.": settings.scaler_handler is not None and not is_scaled,
        f"gradient_accumulation_steps={steps} of accelerate has no effect. Pass it to train(), or to Run.": steps != 1,
        "sync_with_dataloader=False has no effect.": not accumulating.sync_with_dataloader,
        "sync_each_batch=True has no effect.": accumulating.plugin_kwargs.get("sync_each_batch"),
        f"dispatch_batches={loading.dispatch_batches} {_OWN_LOADERS}": loading.dispatch_batches is not None,
        f"use_seedable_sampler=True {_OWN_LOADERS}": loading.use_seedable_sampler,
        f"data_seed={data_seed} {_OWN_LOADERS}": data_seed,
        f"rng_types={settings.rng_types} {_OWN_LOADERS}": settings.rng_types != ["generator"],
        "log_with has no effect. Pass TrackerCallback of pa-callbacks-extra as a callback.": settings.log_with,
        "project_dir and project_config have no effect: callbacks take their folder as an argument.": any(project),
        "step_scheduler_with_optimizer=False has no effect. Override scheduler_step() to step otherwise.": (
            not settings.step_scheduler_with_optimizer
        ),
        "ProfileKwargs have no effect. Use ProfilerCallback of pa-callbacks-extra.": settings.profile_handler,
    }
    for text, is_set in ignored.items():
        if is_set:
            warn_user(text)


def require_even_batches(accelerator: _accelerate.AcceleratorLike) -> None:
    """Raise an error if accelerate would give some processes more batches, because others would wait for them.

    Args:
        accelerator: The Accelerator of the trainer.

    Raises:
        UnsupportedConfigurationError: ``even_batches=False`` is set.
    """
    settings: Any = accelerator
    if not settings.even_batches:
        raise _unsupported(
            "even_batches=False with a custom DataLoader on several processes",
            "Some processes would time out. Leave it out, or let the trainer make the loader from the dataset.",
        )


def require_usable_model(model: nn.Module) -> None:
    """Raise an error for a model that was wrapped for several processes before the trainer got it.

    Args:
        model: The user's module, which ``torch.distributed.fsdp.fully_shard`` may have sharded.

    Raises:
        UnsupportedConfigurationError: The model is wrapped in ``DistributedDataParallel`` or in FSDP1.
    """
    given = f"{type(model).__name__}, which contains a"
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        advice = "Pass the module inside, and DistributedDataParallelKwargs to the Accelerator."
        raise _unsupported(f"{given} DistributedDataParallel,", advice)
    # If the module is not imported, nothing is wrapped in its classes; importing it here would take a second.
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules()):
        advice = "It is the first version of FSDP. Shard the model with torch.distributed.fsdp.fully_shard."
        raise _unsupported(f"{given} FullyShardedDataParallel,", advice)


def require_whole_model(model: nn.Module) -> None:
    """Raise an error for a module that was wrapped for several processes, or split over them.

    Args:
        model: The user's module.

    Raises:
        UnsupportedConfigurationError: The module is wrapped or split.
    """
    require_usable_model(model)
    if is_sharded_module(model):
        given = f"{type(model).__name__} with parameters that are split over processes (DTensor), as an added module,"
        raise _unsupported(given, "Pass the whole module; for several sharded models, use Run.")
