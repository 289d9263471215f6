"""Settings of an Accelerator that a run cannot follow: an error if results would differ, and otherwise a warning."""

from __future__ import annotations

from typing import Any, cast

from pa_core import _accelerate
from pa_core.errors import UnsupportedConfigurationError
from pa_core.user_warnings import warn_user

__all__ = ["require_even_batches", "require_usable_settings", "warn_of_ignored_settings"]

_OWN_LOADERS = (
    "has no effect on the trainer's own loaders, whose order and shares follow from the seed of the run. Accelerate "
    "applies it on several processes where it splits the samples itself, for an IterableDataset, a sampler or "
    "your DataLoader."
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
            "A run places the model and its batches itself.",
            given="Accelerator(device_placement=False)",
            do="Leave it out, and choose the device when launching.",
        )
    # Accelerate takes the argument and ignores it; only that of DataLoaderConfiguration has an effect.
    splits_batches = settings.split_batches or arguments.get("split_batches") is True
    if splits_batches and accelerator.num_processes > 1:
        raise UnsupportedConfigurationError(
            "A batch belongs to one process here, and is not split over the processes.",
            given=f"split_batches=True on {accelerator.num_processes} processes",
            do=f"Leave it out, and divide per_device_batch_size by {accelerator.num_processes}.",
        )


def require_even_batches(accelerator: _accelerate.AcceleratorLike) -> None:
    """Raise an error if accelerate would give some processes more batches, for which others would wait.

    Raises:
        UnsupportedConfigurationError: ``even_batches=False`` is set.
    """
    settings: Any = accelerator
    if not settings.even_batches:
        raise UnsupportedConfigurationError(
            "Processes with more batches would wait for the others forever.",
            given="even_batches=False and a custom DataLoader on several processes",
            do="Leave even_batches out, or let the trainer make the loader from the dataset.",
        )


def warn_of_ignored_settings(accelerator: _accelerate.AcceleratorLike) -> None:
    """Warn about each setting that has no effect on a run, with what does the same here.

    Args:
        accelerator: What ``Trainer._create_accelerator`` returned.
    """
    settings: Any = accelerator
    steps, asked, computed = (
        accelerator.gradient_accumulation_steps,
        accelerator.mixed_precision,
        _accelerate.computed_precision(accelerator),
    )
    project_settings = cast("dict[str, object]", vars(settings.project_configuration))
    project = [f"{name}={value!r}" for name, value in project_settings.items() if value]
    ignored = {
        f"mixed_precision={asked!r} has no effect on the device {_accelerate.device_of(accelerator)}: the run computes "
        "in fp32. Use 'bf16' there, or 'no'.": computed != asked,
        f"GradScalerKwargs have no effect in {computed!r}: only fp16 on an accelerator scales gradients.": (
            settings.scaler_handler is not None and accelerator.scaler is None
        ),
        f"gradient_accumulation_steps={steps} of accelerate has no effect. Pass it to train(), or to Run.": steps != 1,
        "sync_with_dataloader=False has no effect: an update never reaches beyond its epoch.": (
            not settings.gradient_state.sync_with_dataloader
        ),
        "sync_each_batch=True has no effect: gradients are exchanged once an update.": (
            settings.gradient_state.plugin_kwargs.get("sync_each_batch")
        ),
        **_ignored_by_loaders(settings),
        "log_with has no effect. Pass TrackerCallback of pa-callbacks-extra as a callback.": settings.log_with,
        f"The project configuration ({', '.join(project)}) has no effect: what saves takes its folder as an argument, "
        "such as SaveTrainingStateCallback(save_dir, max_checkpoints=...).": project,
        "step_scheduler_with_optimizer=False has no effect: a scheduler is stepped after each update that was made. "
        "Override scheduler_step() to step it otherwise.": not settings.step_scheduler_with_optimizer,
        "ProfileKwargs have no effect. Use ProfilerCallback of pa-callbacks-extra.": settings.profile_handler,
    }
    for text, is_set in ignored.items():
        if is_set:
            warn_user(text)


def _ignored_by_loaders(settings: Any) -> dict[str, bool]:
    defaults: dict[str, Any] = {"dispatch_batches": None, "use_seedable_sampler": False, "data_seed": None}
    given = {name: getattr(settings.dataloader_config, name, default) for name, default in defaults.items()}
    given["rng_types"], defaults["rng_types"] = settings.rng_types, ["generator"]
    return {f"{name}={value!r} {_OWN_LOADERS}": value != defaults[name] for name, value in given.items()}
