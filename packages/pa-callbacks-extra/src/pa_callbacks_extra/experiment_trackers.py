"""Opens, logs to and finishes the experiment trackers that accelerate supports, such as TensorBoard."""

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
"""Trackers store numbers in double precision: of a larger integer, such as a seed, they would keep the first digits."""
_DIMENSIONS_OF_GREY = 2
_NUMBERS_OF_CHANNELS = (1, 3, 4)


def known_trackers() -> tuple[str, ...]:
    """Return the names of the trackers that can be opened if their packages are installed.

    Use it to offer a choice, for example on a command line. ``require_trackers`` checks that a name is known and its
    package is installed.

    Returns:
        A sorted tuple of names such as ``"tensorboard"`` and ``"wandb"``: the trackers that accelerate supports, and
        custom trackers that are registered in ``accelerate.tracking.LOGGER_TYPE_TO_CLASS``.

    Example:
        >>> from pa_callbacks_extra.experiment_trackers import known_trackers
        >>> "tensorboard" in known_trackers()
        True
    """
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    return tuple(sorted(cast("dict[str, Any]", LOGGER_TYPE_TO_CLASS)))


def installed_trackers() -> tuple[str, ...]:
    """Return the names of the trackers whose packages are installed, and of those that a program registered itself."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    from accelerate.utils import LoggerType

    of_accelerate = {str(name) for name in LoggerType}
    available = {str(name) for name in cast("list[Any]", get_available_trackers())}
    names = set(cast("dict[str, Any]", LOGGER_TYPE_TO_CLASS))
    return tuple(sorted(names & available | names - of_accelerate))


def require_trackers(names: str | Iterable[str]) -> tuple[str, ...]:
    """Check that trackers can be opened, without opening them.

    Call it early in a script, so that a missing package ends the script before the data is loaded. ``open_trackers``
    and ``TrackerCallback`` call it too.

    Args:
        names: A name or several names of ``known_trackers()``.

    Returns:
        A tuple of the names in the given order, each once.

    Raises:
        ConfigurationError: A name is unknown, or no name is given. It is a ``ValueError``.
        UnsupportedConfigurationError: The package of a tracker is not installed. It is a ``RuntimeError``.

    Example:
        >>> from pa_callbacks_extra.experiment_trackers import require_trackers
        >>> require_trackers("tensorboard")
        ('tensorboard',)
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
    """The open trackers that ``open_trackers`` returns; log to them, and finish them at the end.

    Use it in a custom loop; ``TrackerCallback`` does the same for a trainer. Call ``open_trackers`` to get an object of
    this class; call the constructor only in tests. Only the first process of a run opens trackers. On the others,
    ``names`` and ``run_ids`` are empty and every method does nothing, so a script need not check which process it is.

    Args:
        trackers: The trackers by name.
        run_ids: The run identifiers by tracker name; an empty mapping if there are none.
        unsettled: For runs that continue, the value that ``unsettled()`` of the earlier trackers returned. The default,
            an empty tuple, is for new runs.

    Attributes:
        run_ids: A dictionary with the identifier of the run in each tracker that can continue a run; pass it to
            ``open_trackers`` when you resume.
        is_open: Whether the trackers are open, which they are until ``finish`` is called.

    Example:
        >>> import tempfile
        >>> from pa_callbacks_extra.experiment_trackers import open_trackers
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
        """The names of the trackers, a tuple in the order in which you passed them, for example ``("tensorboard",)``.

        It is empty on processes other than the first, and stays the same after ``finish``.

        Example:
            >>> from pa_callbacks_extra.experiment_trackers import ExperimentTrackers
            >>> ExperimentTrackers({}, run_ids={}).names  # as on other processes
            ()
        """
        return tuple(self._trackers)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record numbers at a step in all open trackers.

        You call it in a custom loop, before ``finish``. You may record the numbers of a step in several calls.

        Args:
            values: Python numbers by name, for example ``{"train/loss": 0.5}``. They are passed on unchanged, so
                convert tensors with ``.item()``.
            step: The position on the x axis, in optimizer updates. Pass the step of the previous call or a later step;
                for an earlier step, the result depends on the tracker. Weights & Biases drops the values with a
                warning, and TensorBoard records them.

        Raises:
            Exception: A tracker's own package raises an error, for example for a value that is not a number. This class
                checks nothing, not even whether ``finish`` has been called.

        Example:
            >>> import tempfile
            >>> from pa_callbacks_extra.experiment_trackers import open_trackers
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     trackers = open_trackers("tensorboard", "digits", logging_dir=folder)
            ...     trackers.log({"train/loss": 0.5, "train/accuracy": 0.75}, step=10)
            ...     trackers.finish()
        """
        for tracker in self._trackers.values():
            tracker.log(dict(values), step=step)
        self._recent.add(step, values)

    def settle(self) -> None:
        """Wait until MLflow has written everything that it logs asynchronously.

        You call it before ``unsettled`` when you save a checkpoint. Other trackers have no way to wait, so for them it
        returns at once; ``unsettled`` returns the values that they may not have written. After ``finish`` it does
        nothing.

        Example:
            >>> import tempfile
            >>> from pa_callbacks_extra.experiment_trackers import open_trackers
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     trackers = open_trackers("tensorboard", "digits", logging_dir=folder)
            ...     trackers.log({"train/loss": 0.5}, step=10)
            ...     trackers.settle()
            ...     print(trackers.unsettled())  # TensorBoard writes at once
            ...     trackers.finish()
            []
        """
        if self.is_open:
            for known in self._known:
                known.settle()

    def unsettled(self) -> list[tuple[int, dict[str, float]]]:
        """Return the values that trackers may not have written yet, and would lose if this process were killed now.

        You call it when you save a checkpoint, after ``settle``, and store the result in the checkpoint. Pass it to
        ``open_trackers`` as ``unsettled`` when you resume.

        Returns:
            A list of steps, in order, each with the values recorded at that step. The list is empty for trackers that
            write at once, such as TensorBoard, after ``finish``, and on processes other than the first.

        Example:
            >>> import tempfile
            >>> from pa_callbacks_extra.experiment_trackers import open_trackers
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     trackers = open_trackers("tensorboard", "digits", logging_dir=folder)
            ...     trackers.settle()
            ...     checkpoint = {"run_ids": trackers.run_ids, "last_step": 0, "unsettled": trackers.unsettled()}
            ...     trackers.finish()
            ...     resumed = open_trackers("tensorboard", "digits", logging_dir=folder, **checkpoint)
            ...     resumed.finish()
        """
        return [(step, values) for step, values in self._recent.reports()] if self.is_open else []

    def log_image(self, name: str, image: Tensor, step: int) -> None:
        """Record an image in MLflow, SwanLab, TensorBoard, Trackio and Weights & Biases.

        You call it in a custom loop, for example with samples of a batch. It needs pillow (``pip install pillow``). For
        figures, audio and tables, use ``native``.

        Args:
            name: The name of the image in the trackers. Images of several steps with the same name are shown together.
            image: A tensor of shape ``(channels, height, width)`` with 1, 3 or 4 channels, or ``(height, width)``, on
                any device. Its values are floating-point numbers from 0 to 1 (values outside this range are clipped),
                or ``torch.uint8`` numbers from 0 to 255.
            step: The position on the x axis, in optimizer updates.

        Raises:
            ConfigurationError: The tensor does not have such a shape.
            UnsupportedConfigurationError: An open tracker is not one of these five. Use ``native`` to get the tracker's
                own object.
            ImportError: pillow is not installed.

        Example:
            >>> import tempfile
            >>> import torch
            >>> from pa_callbacks_extra.experiment_trackers import open_trackers
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     trackers = open_trackers("tensorboard", "digits", logging_dir=folder)
            ...     trackers.log_image("first digit", torch.rand(1, 28, 28), step=1)
            ...     trackers.finish()
        """
        for tracker_name, tracker in self._trackers.items():
            if tracker_name not in WELL_KNOWN:
                raise UnsupportedConfigurationError(
                    f"log_image does not support {tracker_name!r}. Log the image with native({tracker_name!r})."
                )
            WELL_KNOWN[tracker_name].log_image(tracker.tracker, name, _pixels(image), step)

    def native(self, name: str) -> Any:
        """Return the object of a tracker's own package, for figures, text, audio, tables and anything else.

        You call it in a custom loop for everything that ``log`` and ``log_image`` cannot send. Check whether the result
        is None, because only the first process opens trackers.

        Args:
            name: The name of an open tracker.

        Returns:
            The ``SummaryWriter`` of TensorBoard, the ``Run`` of Weights & Biases or Trackio, the ``ActiveRun`` of
            MLflow, or the object of another package; None on processes other than the first.

        Raises:
            ConfigurationError: On the first process, the tracker was not opened.

        Example:
            >>> import tempfile
            >>> from pa_callbacks_extra.experiment_trackers import open_trackers
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     trackers = open_trackers("tensorboard", "digits", logging_dir=folder)
            ...     if (writer := trackers.native("tensorboard")) is not None:
            ...         writer.add_text("notes", "the first run", global_step=1)
            ...     trackers.finish()
        """
        if name in self._trackers:
            return self._trackers[name].tracker
        if self._trackers:
            raise ConfigurationError(
                f"The tracker {name!r} was not opened. Choose from {', '.join(self.names)}, or open that tracker too."
            )
        return None

    def store_config(self, config: Mapping[str, object]) -> None:
        """Record the settings of a run in all open trackers.

        You call it once in a run, for settings that are not known yet when you call ``open_trackers``. Pass all other
        settings to ``open_trackers`` as ``config``.

        Args:
            config: Settings by name. Mappings may be nested, and values may be any objects; ``flatten_config`` converts
                them to numbers, booleans and text.

        Example:
            >>> import tempfile
            >>> from pa_callbacks_extra.experiment_trackers import open_trackers
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     trackers = open_trackers("tensorboard", "digits", logging_dir=folder)
            ...     trackers.store_config({"batch_size": 32, "optimizer": {"lr": 0.1}})
            ...     trackers.finish()
        """
        for tracker in self._trackers.values():
            tracker.store_init_configuration(dict(flatten_config(config)))

    def finish(self) -> None:
        """Write all remaining values, and end the runs in the trackers.

        You call it at the end of a custom loop; otherwise the runs end when Python exits. A second call does nothing.
        If a tracker raises an error, the other trackers are still finished, and the error is raised afterwards.

        Example:
            >>> import tempfile
            >>> from pa_callbacks_extra.experiment_trackers import open_trackers
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     trackers = open_trackers("tensorboard", "digits", logging_dir=folder)
            ...     trackers.finish()
            ...     trackers.is_open
            False
        """
        self._finish(self._trackers)

    def _finish_at_exit(self) -> None:
        """Leave out Weights & Biases, which detects at exit whether the script has failed, and reports the failure."""
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
    """Open experiment trackers on the first process, for a custom loop; every process may call this.

    With a trainer, use ``TrackerCallback`` instead. Trackers that are still open when Python exits are finished then.

    If a process is killed, its runs lack the values that the trackers had not written, and contain values recorded
    after its last checkpoint. Pass ``unsettled`` and ``last_step`` from that checkpoint to send the missing values
    again. Values that MLflow, TensorBoard and the local database of Trackio already have are not recorded a second
    time, unless they differ by more than 0.1 percent, for example after a settings change.

    Args:
        names: A name or several names of ``known_trackers()``.
        project_name: The name of the project in the trackers. For TensorBoard, it is the name of a folder in
            ``logging_dir``.
        logging_dir: The folder for trackers that write files. The default is ``runs``, which ``tensorboard --logdir
            runs`` shows.
        config: Settings to record, in any form that ``flatten_config`` supports. They are not recorded again in MLflow
            and TensorBoard when a run continues. The default, None, records none.
        init_kwargs: Additional arguments for each tracker, by tracker name, for example ``{"wandb": {"mode":
            "offline"}}``. They override the defaults. By default, no additional arguments are passed.
        run_ids: The ``run_ids`` of the earlier trackers. Their runs continue in MLflow, SwanLab, TensorBoard, Trackio
            and Weights & Biases; other trackers begin a new run. The default, an empty mapping, begins new runs.
        last_step: For resumed runs, the last step that belongs to them. Values of later steps that were recorded before
            an interruption are recorded again; TensorBoard then hides the first recording. The default, 0, is for new
            runs.
        unsettled: For resumed runs, the value that ``unsettled()`` of the earlier trackers returned. SwanLab, Trackio
            and Weights & Biases buffer values, so values that may not have reached them are sent again. The default, an
            empty tuple, is for new runs.

    Returns:
        An ``ExperimentTrackers`` with the open trackers. On processes other than the first, it has no trackers.

    Raises:
        ConfigurationError: A name is unknown, ``init_kwargs`` names a tracker that is not among ``names``, or a tracker
            rejects its arguments.
        UnsupportedConfigurationError: The package of a tracker is not installed.

    Example:
        >>> import tempfile
        >>> from pa_callbacks_extra.experiment_trackers import open_trackers
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trackers = open_trackers("tensorboard", "digits", logging_dir=folder, config={"lr": 0.1})
        ...     for step, loss in enumerate([0.5, 0.25], start=1):
        ...         trackers.log({"train/loss": loss}, step=step)
        ...     trackers.finish()
    """
    names = require_trackers(names)
    if others := ", ".join(repr(name) for name in init_kwargs if name not in names):
        raise ConfigurationError(
            f"init_kwargs names {others}, but the trackers are {', '.join(names)}. Correct the names."
        )
    trackers: dict[str, TrackerLike] = {}
    ids: dict[str, str] = {}
    connect()  # a trainer would have done it
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
    """Send a run the reports that it lacks, and return a tracker that sends no report twice."""
    since = min([last_step, *(step for step, _ in unsettled)])
    try:
        recorded = RecordedPoints(known.points(tracker.tracker, since, last_step))
    except Exception as error:  # packages and servers of others raise errors of any class
        warn_user(
            f"The points of this run in the tracker {name!r} cannot be read ({error}). Around step {last_step}, points "
            "may be there twice, or be missing if the process before was killed."
        )
        return tracker
    continued = WithoutRepeats(tracker, recorded)
    first = known.begins_at(tracker.tracker)
    for step, values in unsettled if known.writes_late else ():
        if step >= first:
            continued.log(dict(values), step=step)
    return continued


def _pixels(image: Tensor) -> Any:
    """The bytes of an image as an array of shape ``(height, width, 3 or 4)``, which every tracker supports."""
    channels_first = image.detach()[None] if image.dim() == _DIMENSIONS_OF_GREY else image.detach()
    if channels_first.dim() != _DIMENSIONS_OF_GREY + 1 or len(channels_first) not in _NUMBERS_OF_CHANNELS:
        raise ConfigurationError(
            f"A tensor of shape {tuple(image.shape)} is not an image. Pass (channels, height, width) with 1, 3 or 4 "
            "channels, or (height, width); torchvision.utils.make_grid makes an image of a batch."
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
            # without their values, which may contain secret keys
            given=f"project_name={project_name!r}, logging_dir={str(logging_dir)!r}, {', '.join(kwargs) or 'no more'}; "
            f"{type(error).__name__}: {error}",
            do=f"Correct the arguments, or init_kwargs[{name!r}]; see the error above.{again}",
        ) from error


def flatten_config(config: Mapping[str, object]) -> dict[str, bool | int | float | str]:
    """Return settings as a flat dictionary of numbers, booleans and text, which every tracker supports.

    Use it to send settings to a tracker's own object; ``open_trackers`` and ``store_config`` call it for you. The items
    of nested mappings are named ``outer.inner``. Anything else, including None and lists, becomes text. So do numbers
    that are not finite, and integers that double precision cannot represent, such as large seeds.

    Args:
        config: Settings by name; values may be any objects. The mapping is not changed.

    Returns:
        A new dictionary with the flat settings, in the same order.

    Example:
        >>> from pa_callbacks_extra.experiment_trackers import flatten_config
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
    """Start an accelerate tracker without an Accelerator, on the first process only.

    Args:
        name: A name of ``installed_trackers()``.
        project_name: The name of the project in the tracker.
        logging_dir: The folder for trackers that write files.
        kwargs: Additional arguments for the tracker.
    """
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    connect()  # the tracker reads the rank of this process, and would not connect the processes
    tracker_class: Any = LOGGER_TYPE_TO_CLASS[name]
    folder = (str(logging_dir),) if tracker_class.requires_logging_directory else ()
    tracker = tracker_class(project_name, *folder, **kwargs)
    tracker.start()
    return cast("TrackerLike", tracker)
