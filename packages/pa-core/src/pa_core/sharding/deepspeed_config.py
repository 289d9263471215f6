"""DeepSpeed's configuration, which torch's FSDP2 runs: the sharding that it requests, and settings of the run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from pa_core.errors import ConfigurationError, UnsupportedConfigurationError
from pa_core.run_config import TrainerRunConfig
from pa_core.user_warnings import warn_user

_AUTO: Final = "auto"
_PRECISIONS: Final = "bf16", "fp16"
_ZERO: Final = "zero_optimization"
_OFFLOADED: Final = f"{_ZERO}.offload_optimizer", f"{_ZERO}.offload_param"
_EXPERTS: Final = "transformer_moe_cls_names"

_OF_RUN: Final = {
    "train_micro_batch_size_per_gpu": "per_device_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "train_batch_size": "samples_per_update",
    "gradient_clipping": "gradient_clip_norm",
}
"""The settings of a run that the configuration repeats, with their names in ``train()``."""

_WITHOUT_EFFECT: Final = {
    *(f"{section}.pin_memory" for section in _OFFLOADED),
    *(f"fp16.{name}" for name in ("hysteresis", "initial_scale_power", "loss_scale_window", "min_loss_scale")),
    f"{_ZERO}.allgather_bucket_size",
    f"{_ZERO}.allgather_partitions",
    f"{_ZERO}.contiguous_gradients",
    f"{_ZERO}.overlap_comm",
    f"{_ZERO}.reduce_bucket_size",
    f"{_ZERO}.reduce_scatter",
    f"{_ZERO}.round_robin_gradients",
    f"{_ZERO}.stage3_max_live_parameters",
    f"{_ZERO}.stage3_max_reuse_distance",
    f"{_ZERO}.stage3_param_persistence_threshold",
    f"{_ZERO}.stage3_prefetch_bucket_size",
    f"{_ZERO}.sub_group_size",
}
"""Settings that change only how fast a run is, and how the scale of fp16 changes."""

_NOT_NEEDED: Final = {
    *(f"{section}.nvme_path" for section in _OFFLOADED),  # for a device that is an error
    f"{_ZERO}.stage3_gather_16bit_weights_on_model_save",  # models are always saved whole
    "steps_per_print",
    "zero_allow_untested_optimizer",
}

_WITH_VALUES: Final[Mapping[str, tuple[object, ...]]] = {
    **{f"{name}.enabled": (True, _AUTO) for name in _PRECISIONS},
    **{f"{section}.device": ("none", "cpu") for section in _OFFLOADED},
    "fp16.auto_cast": (True, _AUTO),
    "fp16.loss_scale": (0, _AUTO),
    "gradient_predivide_factor": (1,),
    "prescale_gradients": (False,),
    "wall_clock_breakdown": (False,),
    "zero_force_ds_cpu_optimizer": (False,),
    f"{_ZERO}.stage": (0, 1, 2, 3),
    f"{_ZERO}.zero_hpz_partition_size": (1,),
    f"{_ZERO}.zero_quantized_gradients": (False,),
    f"{_ZERO}.zero_quantized_weights": (False,),
}
"""Settings that are supported only with these values."""

_ADVICE: Final = {
    "activation_checkpointing": "Use FullyShardedDataParallelPlugin(fsdp_version=2, activation_checkpointing=True).",
    "optimizer": "Pass the optimizer to the trainer.",
    "scheduler": "Pass create_scheduler_fn to train().",
    **{f"{section}.device": 'Offload to "cpu".' for section in _OFFLOADED},
}
_SHARDS_WEIGHTS: Final = 3  # the stage that also frees them between the forward and the backward pass
_REMOVE: Final = "Remove these settings from the configuration."


class DeepSpeedConfig(NamedTuple):
    """The content of a DeepSpeed configuration.

    Attributes:
        stage: The stage of ZeRO, from 0 to 3.
        offloads_to_cpu: Whether the optimizer or the parameters are kept in host memory.
        precisions: Whether a precision is switched on, by its name; only the precisions that are mentioned.
        of_run: The values that the run must have, by their names in the configuration.
    """

    stage: int
    offloads_to_cpu: bool
    precisions: dict[str, bool]
    of_run: dict[str, float]

    @property
    def reshards_after_forward(self) -> bool:
        """Whether the whole weights of a block are freed between its forward and backward pass."""
        return self.stage == _SHARDS_WEIGHTS

    def require_precision(self, requested: str | None, computed: str) -> None:
        """Raise an error if the configuration has a different precision from the run.

        Args:
            requested: The precision that the script or the launcher requests, or None.
            computed: The precision of the Accelerator.

        Raises:
            ConfigurationError: The precisions differ.
        """
        for name, is_on in self.precisions.items():
            differing = [other for other in (requested, computed) if other is not None and (other == name) is not is_on]
            if differing and (is_on or name in differing):
                raise ConfigurationError(
                    "DeepSpeed's configuration and the run have different precisions.",
                    given=f"{name}.enabled={str(is_on).lower()} and mixed_precision={differing[0]!r}",
                    do=f'Change one of them, or set {name}.enabled to "{_AUTO}", which takes the precision of the run.',
                )

    def require_agreement(self, config: TrainerRunConfig) -> None:
        """Raise an error if the configuration has different batches, accumulation or clipping from the run.

        Args:
            config: The settings of the run.

        Raises:
            ConfigurationError: A value differs.
        """
        of_run = {
            "train_micro_batch_size_per_gpu": config.train_per_device_batch_size,
            "gradient_accumulation_steps": config.gradient_accumulation_steps,
            "train_batch_size": config.train_total_batch_size,
            "gradient_clipping": config.gradient_clip_norm or 0.0,
        }
        for name, value in self.of_run.items():
            if value != of_run[name]:
                raise ConfigurationError(
                    "DeepSpeed's configuration and the run have different settings.",
                    given=f"{name}={value:g} in the configuration, and {_OF_RUN[name]}={of_run[name]:g} in the run",
                    do=f'Pass the same value, or set {name} to "{_AUTO}", which takes the value of the run.',
                )

    def describe(self, num_processes: int) -> str:
        """Return a line that says how the configuration is run.

        Args:
            num_processes: The number of processes of the run.
        """
        sharded = {
            0: "nothing is sharded",
            1: "optimizer states are sharded, and so are gradients, and weights between updates",
            2: "optimizer states and gradients are sharded, and so are weights between updates",
            3: "optimizer states, gradients and weights are sharded",
        }
        what = sharded[0] if num_processes == 1 else sharded[self.stage]
        where = ", in host memory" if self.offloads_to_cpu and what != sharded[0] else ""
        by = "FSDP2" if self.stage > 0 else "DDP"
        return f"DeepSpeed's configuration, run by {by}: ZeRO {self.stage}, {what}{where}"


def read_deepspeed(plugin: Any) -> DeepSpeedConfig:
    """Return the content of a DeepSpeed configuration, and warn about settings without effect.

    Args:
        plugin: The ``DeepSpeedPlugin`` of accelerate, which has read the file and the variables of the launcher.

    Raises:
        UnsupportedConfigurationError: The configuration has settings without a counterpart, or there are several.
    """
    config: dict[str, Any] | None = getattr(plugin, "deepspeed_config", None)
    if config is None:
        raise UnsupportedConfigurationError(
            "deepspeed_plugin is not supported if it is not a single DeepSpeedPlugin.",
            given=f"an object of the type {type(plugin).__name__}",
            do="Pass deepspeed_plugin=DeepSpeedPlugin(...).",
        )
    settings = dict(_settings(config))
    experts = plugin.transformer_moe_cls_names or os.environ.get("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES")
    if experts:
        settings[_EXPERTS] = experts
    _require_supported(settings)
    ignored = _WITHOUT_EFFECT & settings.keys()
    if os.environ.get("ACCELERATE_DEEPSPEED_ZERO3_INIT", "false").lower() == "true":
        ignored |= {"zero3_init_flag"}
    if ignored:
        warn_user(f"These settings of DeepSpeed's configuration have no effect: {', '.join(sorted(ignored))}.")
    sections = {name: cast("dict[str, Any]", config.get(name) or {}) for name in _PRECISIONS}
    switches = {name: section.get("enabled", _AUTO) for name, section in sections.items()}
    return DeepSpeedConfig(
        stage=settings.get(f"{_ZERO}.stage", 0),
        offloads_to_cpu=any(settings.get(f"{section}.device") == "cpu" for section in _OFFLOADED),
        precisions={name: value for name, value in switches.items() if value != _AUTO},
        of_run={name: float(settings[name]) for name in _OF_RUN if settings.get(name, _AUTO) != _AUTO},
    )


def _settings(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over the settings, with dots in their names, without empty values and disabled sections."""
    for name, value in config.items():
        if isinstance(value, dict):
            section = cast("dict[str, Any]", value)
            if section.get("enabled") is not False:
                yield from _settings(section, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value


def _require_supported(settings: Mapping[str, Any]) -> None:
    problems: dict[str, str] = {}
    for name, value in settings.items():
        section = name.partition(".")[0]
        if name in _WITHOUT_EFFECT | _NOT_NEEDED or value in _WITH_VALUES.get(name, ()):
            continue
        if name in _OF_RUN and (value == _AUTO or isinstance(value, int | float)):
            continue
        if section == name or section in (_ZERO, *_PRECISIONS):
            problems[name] = f"{name}={value!r}"
        else:
            problems[section] = f"the section {section}"
    if problems:
        advice = [_ADVICE[name] for name in problems if name in _ADVICE]
        raise UnsupportedConfigurationError(
            "FSDP2, which runs DeepSpeed's configuration, has no counterpart for some of its settings.",
            given=", ".join(problems.values()),
            do=" ".join([*advice, _REMOVE]),
        )
