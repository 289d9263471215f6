"""What a run uses of an experiment tracker."""

from __future__ import annotations

from typing import Any, Protocol


class TrackerLike(Protocol):
    """The members of accelerate's trackers that a run uses.

    Attributes:
        tracker: The run or the writer of the tracker's own package.
    """

    tracker: Any

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Record what the run was started with."""
        ...

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        """Record values at a step."""
        ...

    def finish(self) -> None:
        """Write what is left, and end the run."""
        ...
