"""Open, log to and finish the experiment trackers that accelerate knows, such as TensorBoard."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import atexit
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor

from pa_callbacks_extra.reported_points import RecentReports, RecordedPoints, WithoutRepeats
from pa_callbacks_extra.tracker_like import TrackerLike
from pa_callbacks_extra.well_known_trackers import WELL_KNOWN, WellKnownTracker
from pa_core import ConfigurationError, UnsupportedConfigurationError
from pa_core.distributed import connect, rank
from pa_core.user_warnings import warn_user

__all__ = [
    "ExperimentTrackers",
    "TrackerLike",
    "flatten_config",
    "known_trackers",
    "open_trackers",
    "require_trackers",
]

_LARGEST_EXACT_INTEGER = 2**53
"""Trackers store numbers in double precision: of a larger one, such as a seed, they would keep the first digits."""
_DIMENSIONS_OF_GREY = 2
_NUMBERS_OF_CHANNELS = (1, 3, 4)


def known_trackers() -> tuple[str, ...]:
    """Return the names of the trackers that can be opened, once their packages are installed.

    Example:
        >>> "tensorboard" in known_trackers()
        True
    """
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    return tuple(sorted(cast("dict[str, Any]", LOGGER_TYPE_TO_CLASS)))


def installed_trackers() -> tuple[str, ...]:
    """Return the ones whose package is installed; a tracker that a program registers itself counts as such."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    from accelerate.utils import LoggerType

    of_accelerate = {str(name) for name in LoggerType}
    available = {str(name) for name in cast("list[Any]", get_available_trackers())}
    names = set(cast("dict[str, Any]", LOGGER_TYPE_TO_CLASS))
    return tuple(sorted(names & available | names - of_accelerate))


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
        pa_core.errors.ConfigurationError: There is no tracker 'tensorbord'. Choose from ...mlflow, ...tensorboard, ...
    """
    wanted = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
    known = known_trackers()
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise ConfigurationError(
            f"There is no tracker {', '.join(map(repr, unknown)) or 'without a name'}. Choose from {', '.join(known)}."
        )
    installed = installed_trackers()
    missing = [name for name in wanted if name not in installed]
    if missing:
        raise UnsupportedConfigurationError(
            f"The package of {', '.join(map(repr, missing))} is not installed. Install it, for example with: "
            f"pip install {' '.join(missing)}"
        )
    return wanted


class ExperimentTrackers:
    """Trackers that are open, as ``open_trackers`` returns them.

    Only the first process of a run has them. On the others, ``names`` and ``run_ids`` are empty and every method does
    nothing, so that a script need not check which process it is.

    Args:
        trackers: The trackers by their names.
        run_ids: What is known of their runs.
        unsettled: What the ``unsettled`` of the trackers before returned, if these continue their runs.

    Attributes:
        run_ids: What names the run in each of the trackers that can continue it; for ``open_trackers``.
        is_open: Whether they are not finished yet.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trackers = open_trackers("tensorboard", "digits", logging_dir=folder)
        ...     trackers.log({"loss": 0.5}, step=1)
        ...     trackers.finish()
        >>> trackers.names, trackers.is_open
        (('tensorboard',), False)
    """

    def __init__(
        self,
        trackers: Mapping[str, TrackerLike],
        run_ids: Mapping[str, str],
        unsettled: Iterable[tuple[int, Mapping[str, float]]] = (),
    ) -> None:
        self.run_ids: dict[str, str] = dict(run_ids)
        self._trackers = dict(trackers)
        self._known = [WELL_KNOWN[name] for name in trackers if name in WELL_KNOWN]
        self._recent = RecentReports(
            max((known.late_seconds for known in self._known), default=0.0),
            max((known.late_reports for known in self._known), default=0),
        )
        for step, values in unsettled:
            self._recent.add(step, values)
        self.is_open: bool = True
        if trackers:
            atexit.register(self._finish_at_exit)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the trackers, in the order in which they were requested."""
        return tuple(self._trackers)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record values.

        Args:
            values: Numbers by their names.
            step: The place on the x axis, in optimizer updates; never less than in the call before.
        """
        for tracker in self._trackers.values():
            tracker.log(dict(values), step=step)
        self._recent.add(step, values)

    def settle(self) -> None:
        """Wait until everything is written that was recorded, in MLflow with its asynchronous logging.

        Other trackers have no way to wait; ``unsettled`` returns what they may not have written.
        """
        if self.is_open:
            for known in self._known:
                known.settle()

    def unsettled(self) -> list[tuple[int, dict[str, float]]]:
        """Return what a tracker may not have written yet, and would lose if this process were killed now.

        Returns:
            Steps and the values recorded at them, in their order; for ``open_trackers``. Nothing once the trackers are
            finished.
        """
        return [(step, values) for step, values in self._recent.reports()] if self.is_open else []

    def log_image(self, name: str, image: Tensor, step: int) -> None:
        """Record an image, in MLflow, SwanLab, TensorBoard, Trackio and Weights & Biases; needs pillow.

        Args:
            name: What the trackers call the image. The images of all steps are shown together.
            image: Of shape ``(channels, height, width)`` with one, three or four channels, or ``(height, width)``, on
                any device: floats from 0 to 1, what is beyond being cut off, or bytes.
            step: As for ``log``.

        Raises:
            ConfigurationError: The tensor is not such an image.
            UnsupportedConfigurationError: A tracker is another one; ``native`` gives you its own object.
        """
        for tracker_name, tracker in self._trackers.items():
            if tracker_name not in WELL_KNOWN:
                raise UnsupportedConfigurationError(
                    f"It is not known how {tracker_name!r} takes images. Use what native({tracker_name!r}) returns."
                )
            WELL_KNOWN[tracker_name].log_image(tracker.tracker, name, _pixels(image), step)

    def native(self, name: str) -> Any:
        """Return the object of a tracker's own package, for figures, text, audio, tables and all else that it takes.

        That is the ``SummaryWriter`` of TensorBoard, the ``Run`` of Weights & Biases or Trackio, the ``ActiveRun`` of
        MLflow.

        Args:
            name: The tracker.

        Returns:
            The object; None on processes other than the first, which have none.

        Raises:
            ConfigurationError: This tracker is not among those that were opened.
        """
        if name in self._trackers:
            return self._trackers[name].tracker
        if self._trackers:
            raise ConfigurationError(
                f"The tracker {name!r} was not opened. Choose from {', '.join(self.names)}, or open that tracker too."
            )
        return None

    def store_config(self, config: Mapping[str, object]) -> None:
        """Record what the run was started with, in the form of ``flatten_config``; once in a run.

        Args:
            config: Settings by their names.
        """
        for tracker in self._trackers.values():
            tracker.store_init_configuration(dict(flatten_config(config)))

    def finish(self) -> None:
        """Write what is left and end the runs, each even if another one fails; does nothing the second time."""
        self._finish(self._trackers)

    def _finish_at_exit(self) -> None:
        """Leave Weights & Biases to itself: it knows by then whether the script has failed."""
        self._finish(name for name in self._trackers if name != "wandb")

    def _finish(self, names: Iterable[str]) -> None:
        atexit.unregister(self._finish_at_exit)
        if self.is_open:
            self.is_open = False
            with ExitStack() as unfinished:
                for name in names:
                    unfinished.callback(self._trackers[name].finish)


def open_trackers(
    names: str | Iterable[str],
    project_name: str,
    *,
    logging_dir: str | Path = "runs",
    config: Mapping[str, object] | None = None,
    init_kwargs: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    run_ids: Mapping[str, str] = MappingProxyType({}),
    last_step: int = 0,
    unsettled: Sequence[tuple[int, Mapping[str, float]]] = (),
) -> ExperimentTrackers:
    """Open trackers on the first process; every process may call this.

    Trackers that are still open when Python ends are finished then.

    A process that is killed leaves runs that lack what the trackers had not written, and that have what it recorded
    after its last training state. With ``unsettled`` and ``last_step`` of that state, the runs get what they lack. What
    MLflow and the local database of Trackio have is not recorded a second time, unless the values differ by more than
    0.1 percent, as they do after a change of settings.

    Args:
        names: One name or several of ``known_trackers``.
        project_name: What the trackers call the project. For TensorBoard it is a folder in ``logging_dir``.
        logging_dir: The folder of trackers that write files; ``tensorboard --logdir runs`` shows the default.
        config: What the run was started with, in any form that ``flatten_config`` takes. Runs that continue in MLflow
            and TensorBoard have it already.
        init_kwargs: For each tracker by its name, further arguments, which override the defaults.
        run_ids: The ``run_ids`` of trackers that were open before: their runs continue, with MLflow, SwanLab,
            TensorBoard, Trackio and Weights & Biases. Others begin a new run.
        last_step: For resumed runs, the last step that belongs to them. What was recorded for later ones before
            an interruption is recorded again; TensorBoard leaves out the first recording.
        unsettled: For resumed runs, what the ``unsettled`` of the trackers before returned. The trackers that write
            late, which are SwanLab, Trackio and Weights & Biases, are sent what they may lack of it.

    Raises:
        ConfigurationError: A name is wrong, or a tracker rejects its arguments.
        UnsupportedConfigurationError: The package of a tracker is not installed.
    """
    names = require_trackers(names)
    if others := ", ".join(repr(name) for name in init_kwargs if name not in names):
        raise ConfigurationError(f"There are init_kwargs for {others}, and the trackers are {', '.join(names)}.")
    trackers: dict[str, TrackerLike] = {}
    ids: dict[str, str] = {}
    connect()  # where no trainer has
    with ExitStack() as opened:
        for name in names if rank() == 0 else ():
            known = WELL_KNOWN.get(name)
            continued = None if name not in run_ids else known
            kwargs = {} if continued is None else continued.arguments(run_ids[name], last_step)
            kwargs.update(init_kwargs.get(name, {}))
            tracker = _start(name, project_name, logging_dir, kwargs, run_ids.get(name))
            opened.callback(tracker.finish)
            if known is not None:
                ids[name] = known.id_of(tracker.tracker)
            if config is not None and (continued is None or continued.forgets_config):
                tracker.store_init_configuration(dict(flatten_config(config)))
            trackers[name] = tracker if continued is None else _catch_up(name, tracker, continued, last_step, unsettled)
        opened.pop_all()
    return ExperimentTrackers(trackers, ids, unsettled)


def _catch_up(
    name: str,
    tracker: TrackerLike,
    known: WellKnownTracker,
    last_step: int,
    unsettled: Sequence[tuple[int, Mapping[str, float]]],
) -> TrackerLike:
    """Send a run what it lacks of the last reports, and return a tracker that sends it nothing twice."""
    since = min([last_step, *(step for step, _ in unsettled)])
    try:
        recorded = RecordedPoints(known.points(tracker.tracker, since))
    except Exception as error:  # of any kind, from a package or a server that is not ours
        warn_user(
            f"What the tracker {name!r} has of this run cannot be read ({error}). Points around step {last_step} may "
            "be there twice, or be missing if the process before was killed."
        )
        return tracker
    continued = WithoutRepeats(tracker, recorded)
    first = known.begins_at(tracker.tracker)
    for step, values in unsettled if known.writes_late else ():
        if step >= first:
            continued.log(dict(values), step=step)
    return continued


def _pixels(image: Tensor) -> Any:
    """The bytes of an image as an array of shape ``(height, width, 3 or 4)``, which every tracker takes."""
    channels_first = image.detach()[None] if image.dim() == _DIMENSIONS_OF_GREY else image.detach()
    if channels_first.dim() != _DIMENSIONS_OF_GREY + 1 or len(channels_first) not in _NUMBERS_OF_CHANNELS:
        raise ConfigurationError(
            f"A tensor of shape {tuple(image.shape)} is not one image. Pass (channels, height, width) with 1, 3 or 4 "
            "channels, or (height, width); torchvision.utils.make_grid makes one image of a batch."
        )
    if image.is_floating_point():
        channels_first = (channels_first.float().clamp(0, 1) * 255).round()
    grey = channels_first.to("cpu", torch.uint8)
    return (grey.expand(3, -1, -1) if len(grey) == 1 else grey).permute(1, 2, 0).numpy()


def _start(
    name: str, project_name: str, logging_dir: str | Path, kwargs: dict[str, Any], continued: str | None
) -> TrackerLike:
    again = (
        ""
        if continued is None
        else f" To continue the run {continued!r}, start in the same working directory, with the same environment "
        "variables (MLFLOW_TRACKING_URI, for example) and project_name as before."
    )
    try:
        return _start_tracker(name, project_name, logging_dir, kwargs)
    except Exception as error:
        raise ConfigurationError(
            f"The tracker {name!r} cannot be opened.",
            # without their values, among which may be keys that are nobody's business
            given=f"project_name={project_name!r}, logging_dir={str(logging_dir)!r}, {', '.join(kwargs) or 'no more'}; "
            f"{type(error).__name__}: {error}",
            do=f"Correct the arguments, or init_kwargs[{name!r}]; see the error above.{again}",
        ) from error


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
        elif isinstance(value, int) and abs(value) <= _LARGEST_EXACT_INTEGER:
            flat[str(name)] = value
        else:
            flat[str(name)] = value if isinstance(value, float) and math.isfinite(value) else str(value)
    return flat


def _start_tracker(name: str, project_name: str, logging_dir: str | Path, kwargs: dict[str, Any]) -> TrackerLike:
    """Start a tracker of accelerate without an Accelerator; to be called on the first process only.

    Args:
        name: One of ``installed_trackers``.
        project_name: What the tracker calls the project.
        logging_dir: The folder of trackers that write files.
        kwargs: Further arguments of the tracker.
    """
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    connect()  # the tracker asks which process this is, and would not look for others
    tracker_class: Any = LOGGER_TYPE_TO_CLASS[name]
    folder = (str(logging_dir),) if tracker_class.requires_logging_directory else ()
    tracker = tracker_class(project_name, *folder, **kwargs)
    tracker.start()
    return cast("TrackerLike", tracker)
