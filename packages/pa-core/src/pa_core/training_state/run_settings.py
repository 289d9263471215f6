"""What may differ between a saved run and the one that resumes it, and what may not."""

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
    "samples_per_update": "the boundaries of updates would move, and schedules count updates",
    "dataset_length": "the order of the samples changes, and a position in it means different samples",
    "shuffle": "the order of the samples changes, and some would be seen twice and others never",
    "order": "a position means different samples in another order, so some would be seen twice and others never",
    "drop_last": "different samples are left out at the end of an epoch",
    "loader": "a position in one loader's order means nothing in another's",
    "model": "weights that the state lacks, or has in another shape, keep the values that the script gave them",
    "optimizer": "the optimizer's statistics, such as momentum, cannot be carried over",
    "scheduler": "the schedule starts over",
    "reproducible": "gradients are added up in another order, which gives other bits",
    "arithmetic": "the same program gives other bits there",
}
"""Differences that change what a run means, by the name that allows each, and why they are an error otherwise."""

LENGTH_OF_SCHEDULE = "length of the schedule"
_KEPT = {"seed", LENGTH_OF_SCHEDULE}
"""Settings that keep their saved values, no matter what is requested."""


def describe_settings(
    run: ResumableRun, stepping: str, num_scheduler_steps: int, *, reproducible: bool
) -> dict[str, Any]:
    """Return the settings by which a run is compared with one that resumes it, as plain values.

    Args:
        run: The run.
        stepping: When its schedulers are stepped, and with what.
        num_scheduler_steps: How often the whole run steps each.
        reproducible: Whether the bits of the run are to follow from the program and from what is named here.
    """
    config, loader, schedulers = run.run_config, innermost(run.train_dataloader), run.named_schedulers()
    keyed = loader if is_keyed(loader) else None
    order = None if keyed is None or keyed.given_order.is_plain else keyed.given_order
    dropped = f"batches of {config.train_per_device_batch_size * config.num_processes}"
    if keyed is not None and keyed.samples_per_update is not None:
        dropped = f"updates of {keyed.samples_per_update}"
    processes = f"{config.num_processes} process{'es' if config.num_processes > 1 else ''}"
    size_of_update: int | str = config.train_total_batch_size
    if order is not None and order.makes_batches:  # of any size
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
    """Return what decides how numbers are rounded, as plain values by name.

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
        # Asking for float32_matmul_precision or allow_tf32 is an error where a script has set only one of these.
        "float32 products on CUDA": backends.cuda.matmul.fp32_precision,
        "float32 products on CPU": backends.mkldnn.matmul.fp32_precision,
        "float32 convolutions on CUDA": backends.cudnn.conv.fp32_precision,
        "float32 convolutions on CPU": backends.mkldnn.conv.fp32_precision,
        "cudnn.benchmark": backends.cudnn.benchmark,
        "cudnn.deterministic": backends.cudnn.deterministic,
        "mkldnn": backends.mkldnn.enabled,
    }


def _kinds(by_name: Mapping[str, object], name_of_single: str) -> str | None:
    kinds = {name: type(one).__name__ for name, one in by_name.items()}
    if list(kinds) == [name_of_single]:
        return kinds[name_of_single]
    return ", ".join(f"{name}: {kind}" for name, kind in kinds.items()) or None


class Difference(NamedTuple):
    """A setting that is not what it was when the state was saved.

    Attributes:
        name: The setting; one of ``RESUME_OVERRIDES`` has to be allowed.
        saved: What it was.
        requested: What the script requests now.
        used: What the run will use.

    Example:
        >>> Difference("num_epochs", saved=10, requested=20, used=20).name
        'num_epochs'
    """

    name: str
    saved: Any
    requested: Any
    used: Any


def compare_settings(saved: Mapping[str, Any], requested: Mapping[str, Any]) -> list[Difference]:
    """Return the settings that differ, in the order in which they are listed.

    Args:
        saved: The settings of the run that was saved.
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
    """The entries of two settings that differ, as text; none where only one run has the setting."""
    names = [name for name in {**before, **now} if before and now and before.get(name) != now.get(name)]
    saved, requested = (", ".join(f"{name}: {of.get(name)}" for name in names) for of in (before, now))
    return saved, requested


def _setting(settings: Mapping[str, Any], name: str) -> Any:
    """The value of a setting; plain orders have none, as whether samples are shuffled tells them."""
    if name == "order" and name not in settings and settings.get("shuffle") is not None:
        return "Shuffled()" if settings["shuffle"] else "Sequential()"
    return settings.get(name)


def with_schedule_lengths(
    differences: Iterable[Difference], schedulers: Mapping[str, StatefulScheduler], *, is_new: bool
) -> list[Difference]:
    """Return the differences with the length that the schedulers really use.

    Args:
        differences: What differs from the saved run.
        schedulers: The schedulers with their restored states, by name.
        is_new: Whether the schedules start over instead.
    """
    follows_script = any(_follows_functions(one.state_dict()) for one in schedulers.values())
    return [
        one._replace(used=_length_used(one, is_new=is_new, follows_script=follows_script))
        if one.name == LENGTH_OF_SCHEDULE
        else one
        for one in differences
    ]


def _length_used(one: Difference, *, is_new: bool, follows_script: bool) -> Any:
    if is_new or one.saved is None or one.requested is None:
        return one.requested
    if follows_script:
        return f"{one.requested}, as far as the function of the script depends on it"
    return f"{one.saved}; then what its scheduler does after its end" if one.requested > one.saved else one.saved


def _follows_functions(state: Mapping[str, Any]) -> bool:
    """Whether the schedule is a function, as in ``LambdaLR``: a state has the attributes of objects alone."""
    nested = [cast("Mapping[str, Any]", one) for one in state.get(NESTED_SCHEDULERS, ()) if isinstance(one, Mapping)]
    return any(not one for one in state.get("lr_lambdas", ())) or any(map(_follows_functions, nested))


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
    """Raise an error for differences that change what the run means and were not allowed.

    Args:
        differences: What differs.
        allowed: Names of ``RESUME_OVERRIDES``.
        advice: By name, how to avoid a difference.

    Raises:
        CheckpointError: At least one is not allowed.
    """
    refused = [one for one in differences if one.name in RESUME_OVERRIDES and one.name not in allowed]
    if not refused:
        return
    names = ", ".join(f'"{one.name}"' for one in refused)
    reasons = "; ".join(f"{one.name}: {RESUME_OVERRIDES[one.name]}" for one in refused)
    ways = " ".join(advice[one.name] for one in refused if advice.get(one.name))
    raise CheckpointError(
        "The run would not continue as the one that was saved.",
        given=", ".join(f"{one.name}={one.requested}" for one in refused),
        expected=f"{', '.join(f'{one.name}={one.saved}' for one in refused)} ({reasons})",
        do=f"{f'{ways} Or' if ways else 'Keep what was saved, or'} allow it by name: resume_allow=({names},).",
    )


def describe_differences(differences: Iterable[Difference]) -> str:
    """Return a table of what was saved, what is requested, and what is used.

    Example:
        >>> print(describe_differences([Difference("num_epochs", 10, 20, 20)]))
        setting     saved  requested  used
        num_epochs  10     20         20
    """
    rows = [["setting", "saved", "requested", "used"]]
    rows += [[one.name, *map(_text, (one.saved, one.requested, one.used))] for one in differences]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
