"""The methods of an experiment tracker that a run uses."""

from __future__ import annotations

from typing import Any, Protocol


class TrackerLike(Protocol):
    """The members of accelerate's trackers that a run uses; a custom tracker needs no others.

    Implement it to send metrics to a tracker that is not in ``known_trackers()``. Register the class under a name in
    ``accelerate.tracking.LOGGER_TYPE_TO_CLASS``, as a subclass of accelerate's ``GeneralTracker``, and pass the name to
    ``open_trackers`` or ``TrackerCallback``. In a test, pass objects with these members to ``ExperimentTrackers``. The
    methods are called on the first process only. An exception that ``log`` or ``store_init_configuration`` raises ends
    the run.

    Attributes:
        tracker: The run or the writer of the tracker's own package, which ``native`` returns; None if there is no such
            object.

    Example:
        >>> from pa_callbacks_extra.experiment_trackers import ExperimentTrackers
        >>> class Printing:
        ...     tracker = None
        ...     def store_init_configuration(self, values):
        ...         print("settings", values)
        ...     def log(self, values, step=None):
        ...         print(step, values)
        ...     def finish(self):
        ...         print("finished")
        >>> trackers = ExperimentTrackers({"printing": Printing()}, run_ids={})
        >>> trackers.log({"loss": 0.5}, step=1)
        1 {'loss': 0.5}
        >>> trackers.finish()
        finished
    """

    tracker: Any

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Record the settings of the run.

        It is called on the first process, at most once in a run: when the tracker is opened with a ``config``, or by
        ``ExperimentTrackers.store_config``. ``TrackerCallback`` calls it before the first training step.

        Args:
            values: A flat dictionary of numbers, booleans and text, as ``flatten_config`` returns it.

        Example:
            >>> class Printing:  # a subclass of accelerate's GeneralTracker in a real program
            ...     def store_init_configuration(self, values):
            ...         print("settings", values)
            >>> Printing().store_init_configuration({"batch_size": 32, "optimizer.lr": 0.1})
            settings {'batch_size': 32, 'optimizer.lr': 0.1}
        """
        ...

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        """Record numbers at a step.

        It is called in the training loop on the first process, once for each report, in the order of the steps. Return
        quickly; if sending the numbers takes time, send them in the background.

        Args:
            values: Python numbers by name. The dictionary is a copy, which the tracker may keep.
            step: The position on the x axis, the number of optimizer updates so far. A run always passes it; the
                default, None, is part of accelerate's interface.

        Example:
            >>> class Printing:  # a subclass of accelerate's GeneralTracker in a real program
            ...     def log(self, values, step=None):
            ...         print(step, values)
            >>> Printing().log({"train/loss": 0.5}, step=10)
            10 {'train/loss': 0.5}
        """
        ...

    def finish(self) -> None:
        """Write all remaining values, and end the run of the tracker.

        It is called once on the first process, when the trackers are finished or Python exits; nothing is logged after
        that. Close files and connections here. If it raises an error, the other trackers are still finished. See also
        the example in :class:`TrackerLike`.

        Example:
            >>> from pathlib import Path
            >>> class ToFile:  # a subclass of accelerate's GeneralTracker in a real program
            ...     def __init__(self, path):
            ...         self.file = Path(path).open("a")
            ...     def finish(self):
            ...         self.file.close()
        """
        ...
