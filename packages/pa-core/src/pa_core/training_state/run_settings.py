"""Comparing the settings of a saved run and of the run that resumes it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, cast

import torch

from pa_core._torch import NESTED_SCHEDULERS
from pa_core.data.custom_loader import describe_loader, innermost, is_keyed, length_of_dataset
from pa_core.errors import CheckpointError, ConfigurationError
from pa_core.training_state.snapshotable import ResumableRun
from pa_core.types import StatefulScheduler

RESUME_OVERRIDES = {
    "samples_per_update": "the boundaries of updates move, and schedules count updates",
    "dataset_length": "the order of the samples changes, and a position in the order means a different sample",
    "shuffle": "the order of the samples changes; some samples are seen twice and others never",
    "order": "a position means a different sample in a different order; some samples are seen twice and others never",
    "drop_last": "different samples are left out at the end of an epoch",
    "loader": "a position in the order of one loader has no meaning for a different loader",
    "model": "weights that the state lacks, or has in a different shape, keep the values of the script",
    "optimizer": "the optimizer's statistics, for example momentum, cannot be carried over",
    "scheduler": "the schedule starts over",
    "reproducible": "gradients are added up in a different order, which changes the exact result",
    "arithmetic": "the same program computes different bits with other settings",
}
"""Differences that change the meaning of a run, by the name that allows each, with the reason of the error."""

LENGTH_OF_SCHEDULE = "length of the schedule"
_KEPT = {"seed", LENGTH_OF_SCHEDULE}
"""Settings that keep their saved values, no matter which values are requested."""


def describe_settings(
    run: ResumableRun, stepping: str, num_scheduler_steps: int, *, reproducible: bool
) -> dict[str, Any]:
    """Return the settings of a run, as plain values, for comparison when it is resumed.

    Args:
        run: The run.
        stepping: When its schedulers are stepped, and with which metric.
        num_scheduler_steps: The number of steps of each scheduler in the whole run.
        reproducible: Whether to include all settings that affect the rounding of results.
    """
    config, loader, schedulers = run.run_config, innermost(run.train_dataloader), run.named_schedulers()
    keyed = loader if is_keyed(loader) else None
    order = None if keyed is None or keyed.given_order.is_plain else keyed.given_order
    dropped = f"batches of {config.train_per_device_batch_size * config.num_processes}"
    if keyed is not None and keyed.samples_per_update is not None:
        dropped = f"updates of {keyed.samples_per_update}"
    processes = f"{config.num_processes} process{'es' if config.num_processes > 1 else ''}"
    size_of_update: int | str = config.train_total_batch_size
    if order is not None and order.makes_batches:  # batches of any size
        batches = config.num_processes * config.gradient_accumulation_steps
        size_of_update = f"{batches} batch{'es' if batches > 1 else ''}"
    micro_batches = f"in micro-batches of {config.train_per_device_batch_size}"
    return {
        "num_epochs": config.num_epochs,
        "max_num_train_steps": config.max_num_train_steps,
        "num_processes": config.num_processes,
        "train_per_device_batch_size": config.train_per_device_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "samples_per_update": size_of_update,
        "dataset_length": length_of_dataset(loader),
        "shuffle": None if keyed is None else keyed.shuffle,
        **({} if order is None else {"order": order.fingerprint}),
        "drop_last": f"from {dropped}" if keyed is not None and keyed.drop_last else False,
        "loader": "keyed" if keyed is not None else f"{describe_loader(loader)}, on {processes}",
        "num_update_steps_per_epoch": config.num_update_steps_per_epoch,
        "gradient_clip_value": config.gradient_clip_value,
        "gradient_clip_norm": config.gradient_clip_norm,
        "mixed_precision": config.mixed_precision,
        "optimizer": _kinds(run.named_optimizers(), "optimizer"),
        "scheduler": _kinds(schedulers, "scheduler"),
        "scheduler is stepped": stepping if schedulers else None,
        LENGTH_OF_SCHEDULE: num_scheduler_steps if schedulers else None,
        **({"reproducible": micro_batches, "arithmetic": describe_arithmetic(run.device)} if reproducible else {}),
    }


def describe_arithmetic(device: torch.device) -> dict[str, str | int]:
    """Return the hardware and software that determine how numbers are rounded, as plain values by name.

    Args:
        device: The device of the run.

    Example:
        >>> describe_arithmetic(torch.device("cpu"))["device"]
        'cpu'
    """
    backends: Any = torch.backends  # not annotated by torch
    name_of_device = getattr(torch.get_device_module(device), "get_device_name", None)
    return {
        "torch": str(torch.__version__),
        "device": device.type if name_of_device is None else name_of_device(device),
        "CPU capability": backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        # Reading float32_matmul_precision or allow_tf32 is an error if a script set only one of these.
        "float32 products on CUDA": backends.cuda.matmul.fp32_precision,
        "float32 products on CPU": backends.mkldnn.matmul.fp32_precision,
        "float32 convolutions on CUDA": backends.cudnn.conv.fp32_precision,
        "float32 convolutions on CPU": backends.mkldnn.conv.fp32_precision,
        "cudnn.benchmark": backends.cudnn.benchmark,
        "cudnn.deterministic": backends.cudnn.deterministic,
        "mkldnn": backends.mkldnn.enabled,
    }


def _kinds(by_name: Mapping[str, object], name_of_single: str) -> str | None:
    kinds = {name: type(item).__name__ for name, item in by_name.items()}
    if list(kinds) == [name_of_single]:
        return kinds[name_of_single]
    return ", ".join(f"{name}: {kind}" for name, kind in kinds.items()) or None


class Difference(NamedTuple):
    """A setting that differs from the saved run.

    Attributes:
        name: The name of the setting; names of ``RESUME_OVERRIDES`` must be allowed.
        saved: The value of the saved run.
        requested: The value that the script requests now.
        used: The value that the run will use.

    Example:
        >>> Difference("num_epochs", saved=10, requested=20, used=20).name
        'num_epochs'
    """

    name: str
    saved: Any
    requested: Any
    used: Any


def compare_settings(saved: Mapping[str, Any], requested: Mapping[str, Any]) -> list[Difference]:
    """Return the settings that differ, in their order.

    Args:
        saved: The settings of the saved run.
        requested: The settings of the run that resumes it.

    Example:
        >>> compare_settings({"shuffle": True, "seed": 7}, {"shuffle": True, "seed": 8})
        [Difference(name='seed', saved=7, requested=8, used=7)]
    """
    differences: list[Difference] = []
    for name in (*requested, *(name for name in saved if name not in requested)):
        before, now = _setting(saved, name), _setting(requested, name)
        if name == "arithmetic":
            before, now = _parts_that_differ(before or {}, now or {})
        if before != now:
            differences.append(Difference(name, before, now, before if name in _KEPT else now))
    return differences


def _parts_that_differ(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str]:
    """Return the differing entries of two settings, as text."""
    names = [name for name in {**before, **now} if before and now and before.get(name) != now.get(name)]
    saved, requested = (", ".join(f"{name}: {of.get(name)}" for name in names) for of in (before, now))
    return saved, requested


def _setting(settings: Mapping[str, Any], name: str) -> Any:
    """Return the value of a setting; plain orders have none, because "shuffle" identifies them."""
    if name == "order" and name not in settings and settings.get("shuffle") is not None:
        return "Shuffled()" if settings["shuffle"] else "Sequential()"
    return settings.get(name)


def with_schedule_lengths(
    differences: Iterable[Difference], schedulers: Mapping[str, StatefulScheduler], *, is_new: bool
) -> list[Difference]:
    """Return the differences with the length of the schedule that the schedulers really use.

    Args:
        differences: The differences from the saved run.
        schedulers: The schedulers with their restored states, by name.
        is_new: Whether the schedules start over instead.
    """
    follows_script = any(_follows_functions(scheduler.state_dict()) for scheduler in schedulers.values())
    return [
        change._replace(used=_length_used(change, is_new=is_new, follows_script=follows_script))
        if change.name == LENGTH_OF_SCHEDULE
        else change
        for change in differences
    ]


def _length_used(length: Difference, *, is_new: bool, follows_script: bool) -> Any:
    if is_new or length.saved is None or length.requested is None:
        return length.requested
    if follows_script:
        return f"{length.requested}, if the function of the script depends on it"
    return (
        f"{length.saved}; then the behaviour of its scheduler after its end"
        if length.requested > length.saved
        else length.saved
    )


def _follows_functions(state: Mapping[str, Any]) -> bool:
    """Whether the schedule is a function, as in ``LambdaLR``, whose state lacks it unless it is a callable object."""
    nested = [
        cast("Mapping[str, Any]", state_of_inner)
        for state_of_inner in state.get(NESTED_SCHEDULERS, ())
        if isinstance(state_of_inner, Mapping)
    ]
    return any(not attributes for attributes in state.get("lr_lambdas", ())) or any(map(_follows_functions, nested))


def check_resume_overrides(allowed: Collection[str]) -> None:
    """Raise an error for unknown names.

    Raises:
        ConfigurationError: A name is not a key of ``RESUME_OVERRIDES``.
    """
    if isinstance(allowed, str) or not set(allowed) <= RESUME_OVERRIDES.keys():
        raise ConfigurationError(
            f"resume_allow must be a collection of some of {', '.join(map(repr, RESUME_OVERRIDES))}, got {allowed!r}."
        )


def reject_differences(differences: Iterable[Difference], allowed: Collection[str], advice: Mapping[str, str]) -> None:
    """Raise an error for differences that change the meaning of the run and were not allowed.

    Args:
        differences: The differences.
        allowed: Names of ``RESUME_OVERRIDES``.
        advice: The advice for avoiding a change, by name.

    Raises:
        CheckpointError: A difference is not allowed.
    """
    refused = [change for change in differences if change.name in RESUME_OVERRIDES and change.name not in allowed]
    if not refused:
        return
    names = ", ".join(f'"{change.name}"' for change in refused)
    reasons = "; ".join(f"{change.name}: {RESUME_OVERRIDES[change.name]}" for change in refused)
    ways = " ".join(advice[change.name] for change in refused if advice.get(change.name))
    raise CheckpointError(
        "The run would not continue like the saved run.",
        given=", ".join(f"{change.name}={change.requested}" for change in refused),
        expected=f"{', '.join(f'{change.name}={change.saved}' for change in refused)} ({reasons})",
        do=f"{f'{ways} Or' if ways else 'Keep the saved values, or'} allow it by name: resume_allow=({names},).",
    )


def describe_differences(differences: Iterable[Difference]) -> str:
    """Return a table of saved, requested and used values.

    Example:
        >>> print(describe_differences([Difference("num_epochs", 10, 20, 20)]))
        setting     saved  requested  used
        num_epochs  10     20         20
    """
    rows = [["setting", "saved", "requested", "used"]]
    rows += [[change.name, *map(_text, (change.saved, change.requested, change.used))] for change in differences]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
