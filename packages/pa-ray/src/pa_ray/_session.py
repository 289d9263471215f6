"""Which part of Ray has started this process."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

Session: TypeAlias = Literal["train", "tune"]
"""A worker of Ray Train, or a trial of Ray Tune."""


def find_session() -> Session | None:
    """Return which part of Ray has started this process; None if it was not Ray."""
    import ray.train

    try:
        ray.train.get_context()
    except DeprecationWarning:  # Ray raises it in a function that was passed to Ray Tune
        return "tune"
    except RuntimeError:
        return None
    return "train"


def api_of(session: Session) -> Any:  # both have the functions report and get_checkpoint, whose types differ
    """Return the module of Ray with the functions for this process."""
    import ray.train
    import ray.tune

    return ray.train if session == "train" else ray.tune
