"""The door to the experiment trackers that accelerate knows, such as TensorBoard: open, log, finish."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from pa_core import _accelerate
from pa_core.errors import ConfigurationError, UnsupportedConfigurationError

__all__ = [
    "ExperimentTrackers",
    "flatten_config",
    "known_trackers",
    "open_trackers",
    "require_trackers",
]

_LARGEST_EXACT_INTEGER = 2**53
"""Trackers store numbers in double precision: of a larger one, such as a seed, they would keep the first digits."""


def known_trackers() -> tuple[str, ...]:
    """Return the names of the trackers that can be opened, once their packages are installed.

    Example:
        >>> "tensorboard" in known_trackers()
        True
    """
    return _accelerate.known_trackers()


def require_trackers(names: str | Iterable[str]) -> tuple[str, ...]:
    """Check that trackers can be opened, without opening them.

    Args:
        names: One name or several.

    Returns:
        The names, each once.

    Raises:
        ConfigurationError: There is no such tracker, or no name at all.
        UnsupportedConfigurationError: The package of a tracker is not installed.

    Example:
        >>> require_trackers("tensorbord")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        pa_core.errors.ConfigurationError: There is no such tracker.
          given:    'tensorbord'
          expected: one or several of ...mlflow, ...tensorboard, ...
          do:       Correct the name.
    """
    wanted = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
    known = known_trackers()
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise ConfigurationError(
            "There is no such tracker.",
            given=", ".join(map(repr, unknown)) or "no name",
            expected=f"one or several of {', '.join(known)}",
            do="Correct the name.",
        )
    installed = _accelerate.installed_trackers()
    missing = [name for name in wanted if name not in installed]
    if missing:
        raise UnsupportedConfigurationError(
            "The package of a tracker is not installed.",
            given=", ".join(map(repr, missing)),
            expected=f"trackers whose packages are installed: {', '.join(installed) or 'none is'}",
            do=f"Install it, for example with: pip install {' '.join(missing)}",
        )
    return wanted


class ExperimentTrackers:
    """Trackers that are open, as ``open_trackers`` returns them.

    Only the first process of a run has them. On the others, ``names`` and ``run_ids`` are empty and every method does
    nothing, so that a script need not ask which process it is.

    Args:
        trackers: The trackers by their names.
        run_ids: What is known of their runs.

    Attributes:
        run_ids: What names the run in each of the trackers that can continue it; for ``open_trackers``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trackers = open_trackers("tensorboard", "digits", logging_dir=folder)
        ...     trackers.log({"loss": 0.5}, step=1)
        ...     trackers.finish()
        >>> trackers.names
        ('tensorboard',)
    """

    def __init__(self, trackers: Mapping[str, _accelerate.TrackerLike], run_ids: Mapping[str, str]) -> None:
        self.run_ids: dict[str, str] = dict(run_ids)
        self._trackers = dict(trackers)
        self._unfinished = ExitStack()
        for tracker in trackers.values():
            self._unfinished.callback(tracker.finish)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the trackers, in the order in which they were asked for."""
        return tuple(self._trackers)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record values.

        Args:
            values: Numbers by their names.
            step: The place on the x axis, in optimizer updates; never less than in the call before.
        """
        for tracker in self._trackers.values():
            tracker.log(dict(values), step=step)

    def store_config(self, config: Mapping[str, object]) -> None:
        """Record what the run was started with, in the form of ``flatten_config``; once in a run.

        Args:
            config: Settings by their names.
        """
        _store(config, self._trackers.values())

    def finish(self) -> None:
        """Write what is left and end the runs, each even if another one fails; does nothing the second time."""
        self._unfinished.close()


def open_trackers(
    names: str | Iterable[str],
    project_name: str,
    *,
    logging_dir: str | Path = "runs",
    config: Mapping[str, object] | None = None,
    init_kwargs: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    run_ids: Mapping[str, str] = MappingProxyType({}),
    last_step: int = 0,
) -> ExperimentTrackers:
    """Open trackers on the first process; every process may call this.

    Args:
        names: One name or several of ``known_trackers``.
        project_name: What the trackers call the project. TensorBoard takes it for a folder in ``logging_dir``.
        logging_dir: The folder of trackers that write files of their own; ``tensorboard --logdir runs`` shows the
            default.
        config: What the run was started with, in any form that ``flatten_config`` takes. A resumed run has it
            already, and is given it again only by Trackio, which would forget it.
        init_kwargs: For each tracker by its name, further arguments of its own, which win over ours.
        run_ids: The ``run_ids`` of trackers that were open before: their runs continue, with MLflow, TensorBoard,
            Trackio and Weights & Biases. Others begin a new run.
        last_step: For resumed runs, the last step that belongs to them. What was recorded for later ones before
            an interruption is recorded again; TensorBoard leaves out the first recording.

    Raises:
        ConfigurationError: A name is wrong, or a tracker refuses its arguments.
        UnsupportedConfigurationError: The package of a tracker is not installed.
    """
    names = require_trackers(names)
    _check_arguments(names, project_name, init_kwargs)
    trackers: dict[str, _accelerate.TrackerLike] = {}
    ids: dict[str, str] = {}
    with ExitStack() as opened:
        for name in names if _accelerate.process_state().is_main_process else ():
            going_on = _going_on(name, run_ids.get(name), last_step)
            kwargs = {**going_on, **init_kwargs.get(name, {})}
            trackers[name] = _start(name, project_name, logging_dir, kwargs)
            opened.callback(trackers[name].finish)
            if name in _CONTINUATIONS:
                ids[name] = _CONTINUATIONS[name].id_of(trackers[name].tracker)
        if config is not None:
            _store(config, [one for name, one in trackers.items() if not _has_config(name, run_ids)])
        opened.pop_all()
    return ExperimentTrackers(trackers, ids)


@dataclass(frozen=True)
class _Continuation:
    """How a tracker names a run, by which arguments it continues one, and whether the config is lost by that."""

    id_of: Callable[[Any], str]
    arguments: Callable[[str, int], dict[str, Any]]
    forgets_config: bool = False


_CONTINUATIONS = {
    "mlflow": _Continuation(lambda run: str(run.info.run_id), lambda run, step: {"run_id": run}),
    # A folder is the run; what was written there for later steps is not shown any more.
    "tensorboard": _Continuation(lambda writer: str(writer.log_dir), lambda run, step: {"purge_step": step + 1}),
    "trackio": _Continuation(
        lambda run: str(run.name), lambda run, step: {"name": run, "resume": "allow"}, forgets_config=True
    ),
    "wandb": _Continuation(lambda run: str(run.id), lambda run, step: {"id": run, "resume": "allow"}),
}


def _going_on(name: str, run_id: str | None, last_step: int) -> dict[str, Any]:
    if run_id is None or name not in _CONTINUATIONS:
        return {}
    return _CONTINUATIONS[name].arguments(run_id, last_step)


def _has_config(name: str, run_ids: Mapping[str, str]) -> bool:
    return name in run_ids and name in _CONTINUATIONS and not _CONTINUATIONS[name].forgets_config


def _store(config: Mapping[str, object], trackers: Iterable[_accelerate.TrackerLike]) -> None:
    plain = flatten_config(config)
    for tracker in trackers:
        tracker.store_init_configuration(dict(plain))


def _start(name: str, project_name: str, logging_dir: str | Path, kwargs: dict[str, Any]) -> _accelerate.TrackerLike:
    try:
        return _accelerate.start_tracker(name, project_name, logging_dir, kwargs)
    except Exception as error:
        raise ConfigurationError(
            f"The tracker {name!r} cannot be opened.",
            # without their values, among which may be keys that are nobody's business
            given=f"project_name={project_name!r}, logging_dir={str(logging_dir)!r}, {', '.join(kwargs) or 'no more'}; "
            f"{type(error).__name__}: {error}",
            expected="what its package accepts",
            do=f"Correct the arguments, or init_kwargs[{name!r}]; see the error above.",
        ) from error


def _check_arguments(names: tuple[str, ...], project_name: str, init_kwargs: Mapping[str, Mapping[str, Any]]) -> None:
    if not project_name:
        raise ConfigurationError(
            "The project has no name.",
            given=f"project_name={project_name!r}",
            expected="some text",
            do="Pass the name under which the trackers shall show the run.",
        )
    if others := [name for name in init_kwargs if name not in names]:
        raise ConfigurationError(
            "There are arguments for trackers that are not opened.",
            given=f"init_kwargs for {', '.join(map(repr, others))}",
            expected=f"arguments for {', '.join(map(repr, names))}",
            do="Correct the names in init_kwargs, or open those trackers too.",
        )


def flatten_config(config: Mapping[str, object]) -> dict[str, bool | int | float | str]:
    """Return settings in the form that every tracker takes: one level, with numbers, truth values and text.

    The items of nested mappings are named ``outer.inner``. Anything else, None and lists included, becomes text, and
    so do integers that double precision cannot hold, such as seeds.

    Args:
        config: Settings by their names.

    Example:
        >>> flatten_config({"epochs": 2, "loader": {"shuffle": True, "sampler": None}, "size": (8, 8)})
        {'epochs': 2, 'loader.shuffle': True, 'loader.sampler': 'None', 'size': '(8, 8)'}
    """
    flat: dict[str, bool | int | float | str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            inner = flatten_config(cast("Mapping[str, object]", value))
            flat.update({f"{name}.{key}": item for key, item in inner.items()})
        elif isinstance(value, bool | str):
            flat[str(name)] = value
        elif isinstance(value, int):
            flat[str(name)] = value if abs(value) <= _LARGEST_EXACT_INTEGER else str(value)
        else:
            flat[str(name)] = value if isinstance(value, float) and math.isfinite(value) else str(value)
    return flat
