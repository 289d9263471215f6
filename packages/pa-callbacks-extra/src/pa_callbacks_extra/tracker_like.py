"""The methods of an experiment tracker that a run uses."""

from __future__ import annotations

from typing import Any, Protocol


class TrackerLike(Protocol):
    """The members of accelerate's trackers that a run uses.

    Attributes:
        tracker: The run or the writer of the tracker's own package.
    """

    tracker: Any

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Record the settings of the run."""
        ...

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        """Record values at a step."""
        ...

    def finish(self) -> None:
        """Write everything that is left, and end the run."""
        ...
