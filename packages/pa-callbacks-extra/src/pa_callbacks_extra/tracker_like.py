"""The methods of an experiment tracker that a run uses."""

from __future__ import annotations

from typing import Any, Protocol


class TrackerLike(Protocol):
    """The members of accelerate's trackers that a run uses; a custom tracker needs no others.

    Register a class with these members under a name in ``accelerate.tracking.LOGGER_TYPE_TO_CLASS``, as a subclass of
    accelerate's ``GeneralTracker``, and pass the name to ``open_trackers`` or ``TrackerCallback``. In a test, pass
    objects with these members to ``ExperimentTrackers``.

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

    Attributes:
        tracker: The run or the writer of the tracker's own package.
    """

    tracker: Any

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Record the settings of the run, a flat dictionary as ``flatten_config`` returns it; called at most once."""
        ...

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        """Record numbers by their names at a step, the number of optimizer updates by then."""
        ...

    def finish(self) -> None:
        """Write everything that is left, and end the run."""
        ...
