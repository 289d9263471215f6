"""Settings of an Accelerator that a run cannot follow: an error if results would differ, and otherwise a warning."""

from __future__ import annotations

from typing import Any, cast

from pa_core import _accelerate
from pa_core.errors import UnsupportedConfigurationError
from pa_core.user_warnings import warn_user

__all__ = ["require_even_batches", "require_usable_settings", "warn_of_ignored_settings"]

_OWN_LOADERS = (
    "has no effect on the trainer's own loaders, whose order follows from the seed of the run. Accelerate applies it "
    "where it splits the samples itself: with an IterableDataset, a sampler or your DataLoader."
)


def require_usable_settings(accelerator: _accelerate.AcceleratorLike, arguments: dict[str, Any]) -> None:
    """Raise an error for settings under which a run would not do what was requested.

    Args:
        accelerator: What ``Trainer._create_accelerator`` returned.
        arguments: What it was made with, as far as this is known.

    Raises:
        UnsupportedConfigurationError: One of them is set.
    """
    settings: Any = accelerator
    if not settings.device_placement:
        raise UnsupportedConfigurationError(
            "Accelerator(device_placement=False) is not supported: a run places the model and its batches itself. "
            "Leave it out, and choose the device when launching."
        )
    # Accelerate takes the argument and ignores it; only that of DataLoaderConfiguration has an effect.
    splits_batches = settings.split_batches or arguments.get("split_batches") is True
    processes = accelerator.num_processes
    if splits_batches and processes > 1:
        raise UnsupportedConfigurationError(
            f"split_batches=True is not supported on {processes} processes: a batch belongs to one of them. Leave it "
            f"out, and divide per_device_batch_size by {processes}."
        )


def require_even_batches(accelerator: _accelerate.AcceleratorLike) -> None:
    """Raise an error if accelerate would give some processes more batches, for which others would wait.

    Raises:
        UnsupportedConfigurationError: ``even_batches=False`` is set.
    """
    settings: Any = accelerator
    if not settings.even_batches:
        raise UnsupportedConfigurationError(
            "even_batches=False is not supported with a custom DataLoader on several processes: some would wait "
            "forever. Leave even_batches out, or let the trainer make the loader from the dataset."
        )


def warn_of_ignored_settings(accelerator: _accelerate.AcceleratorLike) -> None:
    """Warn about each setting that has no effect on a run, with what does the same here.

    Args:
        accelerator: What ``Trainer._create_accelerator`` returned.
    """
    settings: Any = accelerator
    loading, accumulating = settings.dataloader_config, settings.gradient_state
    computed = _accelerate.computed_precision(accelerator)
    project = cast("dict[str, object]", vars(settings.project_configuration)).values()
    ignored = {
        f"mixed_precision={accelerator.mixed_precision!r} has no effect on the device "
        f"{_accelerate.device_of(accelerator)}: the run computes in fp32. Use 'bf16' there, or 'no'.": (
            computed != accelerator.mixed_precision
        ),
        f"GradScalerKwargs have no effect in {computed!r}: only fp16 on an accelerator scales gradients.": (
            settings.scaler_handler is not None and accelerator.scaler is None
        ),
        f"gradient_accumulation_steps={accelerator.gradient_accumulation_steps} of accelerate has no effect. Pass it "
        "to train(), or to Run.": accelerator.gradient_accumulation_steps != 1,
        "sync_with_dataloader=False has no effect.": not accumulating.sync_with_dataloader,
        "sync_each_batch=True has no effect.": accumulating.plugin_kwargs.get("sync_each_batch"),
        f"dispatch_batches={loading.dispatch_batches} {_OWN_LOADERS}": loading.dispatch_batches is not None,
        f"use_seedable_sampler=True {_OWN_LOADERS}": loading.use_seedable_sampler,
        f"data_seed={getattr(loading, 'data_seed', None)} {_OWN_LOADERS}": getattr(loading, "data_seed", None),
        f"rng_types={settings.rng_types} {_OWN_LOADERS}": settings.rng_types != ["generator"],
        "log_with has no effect. Pass TrackerCallback of pa-callbacks-extra as a callback.": settings.log_with,
        "project_dir and project_config have no effect: what saves takes its folder as an argument.": any(project),
        "step_scheduler_with_optimizer=False has no effect. Override scheduler_step() to step otherwise.": (
            not settings.step_scheduler_with_optimizer
        ),
        "ProfileKwargs have no effect. Use ProfilerCallback of pa-callbacks-extra.": settings.profile_handler,
    }
    for text, is_set in ignored.items():
        if is_set:
            warn_user(text)
