"""The configuration of a trial: hyperparameters, an experiment configuration, and the arguments of ``init``."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, cast

from pa_trial.errors import ArgumentTypeError, ConfigurationError, InvalidExperimentException, UsageError
from pa_trial.units import Batch, Epoch, TrainUnit
from pa_trial.user_warnings import warn_user

_log = logging.getLogger("pa_trial")

_UNITS: Mapping[str, type[TrainUnit]] = {"batches": Batch, "epochs": Epoch}


@dataclass(frozen=True)
class RunSettings:
    """The arguments of ``init`` that are not part of the experiment.

    Attributes:
        checkpoint_dir: The folder that checkpoints are written to.
        has_own_checkpoint_dir: Whether it was chosen for this training; all trials of the user share the default
            folder.
        tensorboard_path: The folder for TensorBoard; None if none was chosen.
        metric: The validation metric that decides which checkpoint is the best; None if it was not given.
        smaller_is_better: Whether smaller values of the metric are better.
        max_checkpoints: The number of checkpoints to keep; None keeps all of them.
        stop_on_signals: The signals after which training is saved and left.
        max_wait_seconds: The number of seconds that a process waits for another process; None waits forever.
        samples_per_update: The number of samples of all processes in an optimizer step; None where it follows from the
            batches.
        per_device_batch_size: With it, the most samples that a process computes at a time.

    Raises:
        ConfigurationError: A value cannot work.
    """

    checkpoint_dir: Path
    has_own_checkpoint_dir: bool = True
    tensorboard_path: Path | None = None
    metric: str | None = None
    smaller_is_better: bool = True
    max_checkpoints: int | None = None
    stop_on_signals: tuple[str, ...] = ("SIGTERM",)
    max_wait_seconds: float | None = 600.0
    samples_per_update: int | None = None
    per_device_batch_size: int | None = None

    def __post_init__(self) -> None:
        number, seconds = self.max_checkpoints, self.max_wait_seconds
        if number is not None and not (is_whole(number) and number >= 1):
            raise ConfigurationError(f"max_checkpoints must be a whole number >= 1 or None, got {number!r}.")
        is_time = is_whole(seconds) or isinstance(seconds, float)
        if seconds is not None and not (is_time and 0 < seconds < math.inf):
            raise ConfigurationError(f"max_wait_seconds must be a positive number or None, got {seconds!r}.")


def default_checkpoint_dir() -> Path:
    """Return the folder in which Determined keeps the checkpoints of local trainings of this user."""
    if sys.platform == "darwin":
        data = Path.home() / "Library" / "Application Support"
    elif sys.platform == "win32":
        data = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return data / "determined"


class ExperimentSettings:
    """Hyperparameters and experiment configuration, and the settings that follow from them.

    Args:
        hparams: Hyperparameters by name; None if there are none.
        exp_conf: The experiment configuration; None if there is none.
        num_slots: The number of processes that a global batch is split over.

    Attributes:
        hparams: As passed.
        exp_conf: As passed.
        num_slots: As passed.
        per_slot_batch_size: The number of samples in a batch of a process; None if the hyperparameters have no
            ``global_batch_size``.
        metric: ``searcher.metric``, None without it.
        smaller_is_better: ``searcher.smaller_is_better``, True without it.
        scheduling_unit: The batches after which training reports; None without it.
        min_checkpoint_period: The longest time without a checkpoint; None without it.
        min_validation_period: The longest time without a validation; None without it.

    Raises:
        ArgumentTypeError: ``hparams`` or ``exp_conf`` is not a dictionary.
        InvalidExperimentException: An entry that is read here has the wrong type.
    """

    def __init__(self, hparams: dict[str, Any] | None, exp_conf: dict[str, Any] | None, num_slots: int) -> None:
        _require_dict("hparams", hparams)
        _require_dict("exp_conf", exp_conf)
        self.hparams = hparams
        self.exp_conf = exp_conf
        self.per_slot_batch_size: int | None = _per_slot_batch_size((hparams or {}).get("global_batch_size"), num_slots)
        self.num_slots: int = num_slots
        configured = exp_conf or {}
        searcher: Mapping[str, Any] = _entry(configured, "searcher", Mapping) or {}
        self.metric: str | None = _entry(searcher, "metric", str, in_section="searcher")
        self.smaller_is_better: bool = _entry(searcher, "smaller_is_better", bool, in_section="searcher") is not False
        self.scheduling_unit: int | None = _entry(configured, "scheduling_unit", int)
        self.min_checkpoint_period: TrainUnit | None = _period(configured, "min_checkpoint_period")
        self.min_validation_period: TrainUnit | None = _period(configured, "min_validation_period")


class TellsSettings:
    """The part of a context that returns hyperparameters, the experiment configuration and batch sizes."""

    _settings: ExperimentSettings
    _run_settings: RunSettings

    def get_hparams(self) -> dict[str, Any]:
        """Return the dictionary of all hyperparameters, which was passed as ``init(hparams=...)``.

        Call it in the trial, for example to log them all; ``get_hparam`` returns a single value.

        Raises:
            ConfigurationError: No hyperparameters were passed. The error is also a ``ValueError``.

        Example:
            >>> import pa_trial
            >>> with pa_trial.init(hparams={"lr": 0.1}) as context:
            ...     context.get_hparams()
            {'lr': 0.1}
        """
        if self._settings.hparams is None:
            raise ConfigurationError("There are no hyperparameters.", do="Pass them: init(hparams={...}).")
        return self._settings.hparams

    def get_hparam(self, name: str) -> Any:
        """Return the value of a hyperparameter, as it was passed in ``init(hparams=...)``.

        Call it in the trial, usually in ``__init__``.

        Args:
            name: The name of the hyperparameter. For "global_batch_size", a logged warning recommends
                ``get_per_slot_batch_size`` and ``get_global_batch_size`` instead.

        Returns:
            The value, of any type.

        Raises:
            ConfigurationError: No hyperparameter has this name, or none were passed. The error is also a
                ``ValueError``.

        Example:
            >>> import pa_trial
            >>> with pa_trial.init(hparams={"lr": 0.1}) as context:
            ...     context.get_hparam("lr")
            0.1
        """
        hparams = self.get_hparams()
        if name not in hparams:
            known = ", ".join(map(repr, hparams)) or "none"
            problem = f"There is no hyperparameter {name!r}; there are {known}."
            raise ConfigurationError(problem, do=f"Add it: init(hparams={{{name!r}: ...}}).")
        if name == "global_batch_size":
            _log.warning(
                "The hyperparameter global_batch_size counts the samples of all processes together: use "
                "context.get_per_slot_batch_size() for the batches of a data loader, and "
                "context.get_global_batch_size() for the total."
            )
        return hparams[name]

    def get_experiment_config(self) -> dict[str, Any]:
        """Return the experiment configuration: the dictionary that was passed as ``init(exp_conf=...)``.

        In Determined, the configuration is the content of an experiment's YAML file. Here, it may be any dictionary.
        The documentation of ``init`` lists the entries that have an effect.

        Raises:
            ConfigurationError: No configuration was passed. The error is also a ``ValueError``.

        Example:
            >>> import pa_trial
            >>> with pa_trial.init(exp_conf={"name": "digits", "data": {"folder": "/data"}}) as context:
            ...     context.get_experiment_config()["name"], context.get_data_config()
            ('digits', {'folder': '/data'})
        """
        if self._settings.exp_conf is None:
            raise ConfigurationError("There is no experiment configuration.", do="Pass it: init(exp_conf={...}).")
        return self._settings.exp_conf

    def get_data_config(self) -> dict[str, Any]:
        """Return the "data" entry of the experiment configuration that was passed as ``init(exp_conf=...)``.

        Call it in the loader methods of a trial, for example for the folder of a dataset.

        Returns:
            The value of the entry, a dictionary; an empty dictionary if there is no such entry.

        Raises:
            ConfigurationError: ``init`` was called without ``exp_conf``. The error is also a ``ValueError``.

        Example:
            >>> import pa_trial
            >>> with pa_trial.init(exp_conf={"data": {"folder": "/data"}}) as context:
            ...     context.get_data_config()["folder"]
            '/data'
        """
        data = self.get_experiment_config().get("data")
        return {} if data is None else cast("dict[str, Any]", data)

    def get_per_slot_batch_size(self) -> int:
        """Return the number of samples in a batch of each process; pass it to the data loaders.

        The number is ``per_device_batch_size`` if this was passed to ``init``. Otherwise, it is the
        ``global_batch_size`` hyperparameter divided by the number of processes, rounded down. Determined calls a
        process a slot.

        Raises:
            ConfigurationError: The hyperparameters have no ``global_batch_size``. The error is also a ``ValueError``.

        Example:
            >>> import pa_trial
            >>> with pa_trial.init(hparams={"global_batch_size": 32}) as context:
            ...     context.get_per_slot_batch_size(), context.get_global_batch_size()  # on 4 processes (8, 32)
            (32, 32)
        """
        if (size := self._run_settings.per_device_batch_size or self._settings.per_slot_batch_size) is None:
            raise ConfigurationError(
                'The batch size is not known: pass it, for example init(hparams={"global_batch_size": 32}).'
            )
        return size

    def get_global_batch_size(self) -> int:
        """Return the number of samples in a batch of all processes together; with ``samples_per_update``, in an update.

        Use it to scale a learning rate, and ``get_per_slot_batch_size`` for data loaders. Gradient aggregation does not
        change this number. With ``aggregation_frequency``, an update has this many samples for each aggregated batch.

        Raises:
            ConfigurationError: The hyperparameters have no ``global_batch_size``. The error is also a ``ValueError``.

        Example:
            >>> import pa_trial
            >>> with pa_trial.init(hparams={"global_batch_size": 32}) as context:
            ...     lr = 0.1 * context.get_global_batch_size() / 256
            >>> lr
            0.0125
        """
        return self._run_settings.samples_per_update or self.get_per_slot_batch_size() * self._settings.num_slots


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is an int, and not a bool, which Python counts as an int.

    Args:
        value: Any value.
    """
    return isinstance(value, int) and not isinstance(value, bool)


def require_bool(name: str, value: object) -> None:
    """Raise an error for anything but True and False.

    Args:
        name: The name of the argument.
        value: Its value.

    Raises:
        UsageError: The value is not a bool.
    """
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False, got {value!r}.")


def _per_slot_batch_size(global_batch_size: object, num_slots: int) -> int | None:
    if global_batch_size is None or (global_batch_size == 0 and isinstance(global_batch_size, int)):
        return None
    if not is_whole(global_batch_size) or global_batch_size < num_slots:
        wanted = f"an int of at least {num_slots}, a sample for each process"
        raise InvalidExperimentException(
            f"The batch size must be {wanted}, got global_batch_size={global_batch_size!r}."
        )
    per_slot = global_batch_size // num_slots
    if per_slot * num_slots != global_batch_size:
        warn_user(
            f"global_batch_size={global_batch_size} is not a multiple of the {num_slots} processes: each of them takes "
            f"{per_slot}, together {per_slot * num_slots}."
        )
    return per_slot


def _require_dict(name: str, value: object) -> None:
    if value is not None and not isinstance(value, dict):
        raise ArgumentTypeError(f"{name} must be a dictionary or None, got {value!r}.")


def _entry(configured: Mapping[str, Any], name: str, kind: type[Any], in_section: str = "") -> Any:
    value = configured.get(name)
    if value is None or (is_whole(value) if kind is int else isinstance(value, kind)):
        return value
    raise _unusable(f"{in_section}.{name}".lstrip("."), value, f"of type {kind.__name__}")


def _period(configured: Mapping[str, Any], name: str) -> TrainUnit | None:
    """Read a period such as ``{"batches": 100}`` or ``{"epochs": 1}``; a length of 0 means no period."""
    section: Mapping[str, Any] | None = _entry(configured, name, Mapping)
    if not section:
        return None
    if len(section) != 1 or next(iter(section)) not in _UNITS:
        raise _unusable(name, dict(section), '{"batches": n} or {"epochs": n}')
    unit = next(iter(section))
    length = _entry(section, unit, int, in_section=name)
    return _UNITS[unit](length) if length else None


def _unusable(name: str, value: object, expected: str) -> InvalidExperimentException:
    return InvalidExperimentException(f"exp_conf: the entry {name} must be {expected}, got {value!r}.")
