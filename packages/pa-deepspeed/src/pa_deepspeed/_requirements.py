"""What DeepSpeed's engine cannot train, each refused by name before the first update."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final, cast

import torch
from torch import nn
from torch.optim import Optimizer

from pa_core import AnyTrainer
from pa_core.engine.exchange import Part
from pa_core.errors import ConfigurationError, UnsupportedConfigurationError
from pa_deepspeed._engine import SPLITS_WEIGHTS

OLDEST: Final = (0, 19, 8)
"""The oldest supported version of DeepSpeed; the next minor version may change what the engine is driven with."""
_NEXT_MINOR: Final = (0, 20)

SETTINGS: Final = frozenset(
    {
        *("allgather_bucket_size", "allgather_partitions", "contiguous_gradients", "overlap_comm"),
        *("reduce_bucket_size", "reduce_scatter", "round_robin_gradients", "sub_group_size"),
        *("stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_module_granularity_threshold"),
        *("stage3_param_persistence_threshold", "stage3_prefetch_bucket_size"),
    }
)
"""The settings of ``zero_optimization`` that change the size and order of messages, but not what is trained."""

_ELEMENTWISE: Final = (
    *(torch.optim.ASGD, torch.optim.Adadelta, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax),
    *(torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SGD),
)
"""The optimizers whose update of an element depends on this element alone, so that shares can be stepped apart."""

_AVERAGES: Final = "ModelEmaCallback"


def check_settings(stage: int, settings: Mapping[str, object]) -> None:
    """Raise an error for a stage that ZeRO does not have, and for settings that are not supported.

    Args:
        stage: The stage.
        settings: Settings of ``zero_optimization``.

    Raises:
        ConfigurationError: There is no such stage.
        UnsupportedConfigurationError: A setting is not supported.
    """
    if type(stage) is not int or stage not in {1, 2, 3}:
        raise ConfigurationError(f"stage must be 1, 2 or 3, got {stage!r}.")
    for name in settings:
        if name not in SETTINGS:
            raise UnsupportedConfigurationError(
                f"ZeroEngine does not support the setting {name!r}.",
                given=f"{name}={settings[name]!r}",
                expected=", ".join(sorted(SETTINGS)),
                do="To keep weights or optimizer states in host memory, use FSDP2 with cpu_offload."
                if "offload" in name
                else "Leave it out.",
            )
    if stage == 1 and settings.get("overlap_comm"):
        raise UnsupportedConfigurationError(
            "In stage 1, gradients are sent after the last backward pass of an update, so overlap_comm has no effect. "
            "Leave it out, or pass stage=2."
        )


def check_installation() -> None:
    """Raise an error if DeepSpeed is missing, or has an untested version.

    Raises:
        UnsupportedConfigurationError: DeepSpeed cannot be used.
    """
    needed = f"deepspeed>={_dotted(OLDEST)},<{_dotted(_NEXT_MINOR)}"
    do = f'Install it: pip install "{needed}", or "pa-deepspeed[deepspeed]".'
    try:
        installed = version("deepspeed")
    except PackageNotFoundError:
        raise UnsupportedConfigurationError("ZeroEngine needs DeepSpeed, which is not installed.", do=do) from None
    numbers = tuple(int(number) for number in installed.split("+")[0].split(".")[:3] if number.isdigit())
    if not OLDEST <= numbers < _NEXT_MINOR:
        raise UnsupportedConfigurationError(
            "ZeroEngine does not support the installed version of DeepSpeed.", given=installed, expected=needed, do=do
        )


def check_run(run: AnyTrainer) -> None:
    """Raise an error for a run that another configuration of DeepSpeed, or another precision, is requested for.

    Args:
        run: The trainer or the run.

    Raises:
        UnsupportedConfigurationError: The run cannot be trained by the engine.
    """
    variables = sorted(name for name in os.environ if name.startswith("ACCELERATE_DEEPSPEED_"))
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() in {"1", "true", "yes", "on"}:
        variables = ["ACCELERATE_USE_DEEPSPEED", *variables]
    if variables:
        raise UnsupportedConfigurationError(
            "ZeroEngine and accelerate's own configuration of DeepSpeed exclude each other.",
            given=", ".join(f"{name}={os.environ[name]}" for name in variables),
            do="Launch with torchrun, or with accelerate launch without --use_deepspeed. Or remove create_exchange: "
            "pa-core runs the configuration with FSDP2.",
        )
    if run.mixed_precision == "fp16":
        raise UnsupportedConfigurationError(
            "ZeroEngine does not support fp16, whose loss scale DeepSpeed would have to control. Use bf16.",
            given="mixed_precision='fp16'",
        )


def check_modules(run: AnyTrainer, part: Part, earlier: Iterable[Part], stage: int) -> None:
    """Raise an error for several modules, and for a module that the engine cannot train.

    Args:
        run: The trainer or the run.
        part: The part that begins.
        earlier: The parts that already began.
        stage: The stage of ZeRO.

    Raises:
        UnsupportedConfigurationError: There are several modules, or the engine cannot train it.
    """
    names = [name for one in (*earlier, part) for name in one.modules]
    if len(names) > 1:
        raise _several("modules", names)
    if part.is_split:
        raise UnsupportedConfigurationError(
            "The model is already split by fully_shard (FSDP2). Leave out either fully_shard and --use_fsdp, or "
            "create_exchange."
        )
    if run.get_model() is not run.get_model(keep_torch_compile=False):
        raise UnsupportedConfigurationError("ZeroEngine does not support torch.compile. Pass the model itself.")
    if stage == SPLITS_WEIGHTS:
        _check_callbacks(run)


def check_optimizers(part: Part) -> tuple[nn.Module, Optimizer]:
    """Return the module and the optimizer that the engine trains.

    Args:
        part: The part, whose optimizers exist.

    Raises:
        UnsupportedConfigurationError: There are several optimizers, or the engine cannot step it.
    """
    if len(part.optimizers) > 1:
        raise _several("optimizers", part.optimizers)
    (module,), (optimizer,) = part.modules.values(), part.optimizers.values()
    _check_optimizer(optimizer)
    _check_parameters(module, optimizer)
    return module, optimizer


def _several(what: str, names: Iterable[str]) -> UnsupportedConfigurationError:
    return UnsupportedConfigurationError(
        "ZeroEngine trains a single model with a single optimizer.",
        given=f"the {what} {', '.join(names)}",
        do="Put the modules into one module, with the parameter groups of a single optimizer.",
    )


def _check_optimizer(optimizer: Optimizer) -> None:
    if type(optimizer) not in _ELEMENTWISE:
        raise UnsupportedConfigurationError(
            "ZeRO steps shares of the weights that begin and end within a weight. This is exact only for an optimizer "
            "that updates each element on its own.",
            given=f"{type(optimizer).__module__}.{type(optimizer).__qualname__}",
            expected=", ".join(kind.__name__ for kind in _ELEMENTWISE) + " of torch.optim",
            do="Use one of these, or FSDP2.",
        )


def _check_parameters(module: nn.Module, optimizer: Optimizer) -> None:
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    named = dict(module.named_parameters())
    if beside := trained - {id(parameter) for parameter in named.values()}:
        raise UnsupportedConfigurationError(
            f"The optimizer trains {len(beside)} parameters that are not in the model, which ZeroEngine does not split."
        )
    for name, parameter in named.items():
        if parameter.requires_grad and id(parameter) not in trained:
            raise UnsupportedConfigurationError(
                f"The parameter {name!r} is trainable, but no optimizer has it. Pass it to the optimizer, or freeze it."
            )
        if parameter.dtype != torch.float32:
            raise UnsupportedConfigurationError(
                "ZeroEngine keeps weights in fp32.",
                given=f"the parameter {name!r} in {parameter.dtype}",
                do="Convert the model: model.float(). To compute in bf16, set the precision of the run.",
            )
    for name, layer in cast("Iterable[tuple[str, nn.Module]]", module.named_modules()):  # annotated in part
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse and layer.weight.requires_grad:
            raise UnsupportedConfigurationError(
                f"The layer {name!r} has sparse gradients, which ZeroEngine does not support. Pass sparse=False."
            )


def _check_callbacks(run: AnyTrainer) -> None:
    for callback in run.callback_handler.callbacks:
        if any(kind.__name__ == _AVERAGES for kind in type(callback).__mro__):
            raise UnsupportedConfigurationError(
                "In stage 3, no process has the whole weights between two steps, so they cannot be averaged.",
                given=type(callback).__name__,
                do="Pass stage=2, in which weights are whole.",
            )


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
