"""The arguments of a run: a record that is checked first, and compared over the ranks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from pa_core.data.data_arguments import DataArgument
from pa_core.data.evaluation_sets import EvaluationSet
from pa_core.engine.rank_checks import describe_data
from pa_core.engine.scheduler_stepping import SchedulerStepping
from pa_core.errors import ConfigurationError
from pa_core.run_config import check_clip_threshold, check_count
from pa_core.training_state.run_settings import check_resume_overrides


def requested_epochs(num_epochs: int | None, max_num_train_steps: int | None) -> int:
    """Return the number of epochs of a run, which a limit of updates overrides later.

    Args:
        num_epochs: The argument of the same name.
        max_num_train_steps: The argument of the same name.

    Raises:
        ConfigurationError: Neither of them was passed.
    """
    if num_epochs is None and max_num_train_steps is None:
        raise ConfigurationError(
            "The length of the run is missing. Pass num_epochs=10 or max_num_train_steps=1000, for example."
        )
    return 1 if num_epochs is None else num_epochs


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """The arguments of ``train()``, ``evaluate()`` or ``Run``; the defaults are for calls without these arguments.

    Attributes:
        call: The name of the call.
        data: The data of the run.
        evaluation_sets: The evaluation sets by name; none for a single dataset.
        stepping: When the scheduler is stepped, and with which metric.

    The other attributes are the arguments of the same names.

    Raises:
        ConfigurationError: A number or a name cannot work.
    """

    call: str
    data: Sequence[DataArgument] = ()
    evaluation_sets: Mapping[str, EvaluationSet] = field(default_factory=dict[str, EvaluationSet])
    per_device_batch_size: int | Literal["fit"]
    num_epochs: int = 1
    gradient_accumulation_steps: int = 1
    samples_per_update: int | None = None
    max_num_train_steps: int | None = None
    gradient_clip_value: float | None = None
    gradient_clip_norm: float | None = None
    max_updates_per_batch: int | None = None
    sanity_eval_steps: int = 0
    create_scheduler_fn: Any = None
    stepping: SchedulerStepping = field(default_factory=SchedulerStepping)
    collate_fn: Any = None
    reset_run_history: bool = True
    resume_from: str | Path | None = None
    resume_missing: Literal["error", "start"] = "error"
    resume_allow: Collection[str] = ()

    def __post_init__(self) -> None:
        check_count("num_epochs", self.num_epochs)
        check_count("gradient_accumulation_steps", self.gradient_accumulation_steps)
        self._check_batch_size()
        check_count("sanity_eval_steps", self.sanity_eval_steps, minimum=0)
        for name in ("max_num_train_steps", "max_updates_per_batch", "samples_per_update"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_clip_threshold("gradient_clip_value", self.gradient_clip_value)
        check_clip_threshold("gradient_clip_norm", self.gradient_clip_norm)
        check_resume_overrides(self.resume_allow)
        if self.samples_per_update is not None and self.max_updates_per_batch is not None:
            raise ConfigurationError(
                "With several updates of a batch, your loop decides the samples of an update: "
                "leave out samples_per_update or max_updates_per_batch."
            )

    def _check_batch_size(self) -> None:
        given: object = self.per_device_batch_size
        if given != "fit":
            if isinstance(given, str):
                raise ConfigurationError(f'per_device_batch_size must be "fit" or a whole number, got {given!r}.')
            check_count("per_device_batch_size", given)
            return
        if self.samples_per_update is None:
            raise ConfigurationError(
                'per_device_batch_size="fit" divides updates by the memory: pass samples_per_update, the '
                "size of updates."
            )
        if any("batch_size" in (argument.kwargs or {}) for argument in self.data if argument.purpose == "train"):
            raise ConfigurationError(
                'train_dataloader_kwargs has a batch_size. Leave it out, or per_device_batch_size="fit".'
            )

    @property
    def batch_size(self) -> int:
        """The batch size to begin with: the largest possible size for "fit"."""
        if self.per_device_batch_size == "fit":
            return self.samples_per_update or 1
        return self.per_device_batch_size

    @property
    def numbers(self) -> tuple[int, int, int, int | None, float | None]:
        """The arguments of ``Trainer._create_run_config``, in their order."""
        sizes = self.batch_size, self.num_epochs, self.gradient_accumulation_steps
        return *sizes, self.max_num_train_steps, self.gradient_clip_value

    def describe(self) -> dict[str, object]:
        """Return the arguments that must be the same on all ranks, by name."""
        requested = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        values: dict[str, object] = {"call": requested.pop("call")}
        for given in requested.pop("data"):
            values |= describe_data(given)
        every = {
            name: evaluation_set.every_n_epochs for name, evaluation_set in requested.pop("evaluation_sets").items()
        }
        if every:
            values["evaluation sets"] = ", ".join(f"{name} every {n}" if n > 1 else name for name, n in every.items())
        requested["scheduler is stepped"] = str(requested.pop("stepping"))
        requested["resume_from"] = _shared_place(self.resume_from)
        requested["resume_allow"] = sorted(self.resume_allow)
        return values | requested


NO_ARGUMENTS = RunArguments(call="", per_device_batch_size=1)
"""The arguments of a trainer before its first run."""


def _shared_place(resume_from: str | Path | None) -> str | None:
    """Describe where a run resumes from; names of temporary folders may differ."""
    path = None if resume_from is None else os.fspath(resume_from)
    if path is not None and Path(path).is_absolute() and Path(path).is_relative_to(tempfile.gettempdir()):
        return f"a folder in {tempfile.gettempdir()}"
    return path
