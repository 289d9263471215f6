"""The first batches of a loader, as a loader."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Generic, Protocol

from typing_extensions import TypeVar

from pa_core.errors import ConfigurationError

__all__ = ["DataLoaderSlice"]

_BatchT_co = TypeVar("_BatchT_co", covariant=True, default=Any)


class _Loader(Protocol[_BatchT_co]):
    """Any iterable of batches with a length."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[_BatchT_co]: ...


class DataLoaderSlice(Generic[_BatchT_co]):
    """Yields the first batches of a loader each time it is iterated.

    Every other attribute, such as ``dataset``, ``device`` or ``batch_size``, is read from the loader itself.

    Args:
        dl: Any iterable of batches that has a length.
        slice_size: The number of batches, at least 1; a shorter loader is iterated to its end.

    Attributes:
        wrapped: The loader.
        slice_size: The number of batches asked for.

    Raises:
        ConfigurationError: If ``slice_size`` is less than 1.

    Example:
        >>> first_two = DataLoaderSlice(["a", "b", "c"], slice_size=2)
        >>> len(first_two), list(first_two)
        (2, ['a', 'b'])
    """

    def __init__(self, dl: _Loader[_BatchT_co], slice_size: int) -> None:
        if slice_size < 1:
            raise ConfigurationError(
                "A slice of a loader holds at least one batch.",
                given=f"slice_size={slice_size}",
                expected="an integer of at least 1",
                do="Pass the number of batches to keep, for example slice_size=1.",
            )
        self.wrapped: _Loader[_BatchT_co] = dl
        self.slice_size: int = slice_size

    def __len__(self) -> int:
        """Return the number of batches that an iteration yields."""
        return min(self.slice_size, len(self.wrapped))

    def __iter__(self) -> Iterator[_BatchT_co]:
        """Iterate the loader, and stop after ``slice_size`` batches."""
        return islice(iter(self.wrapped), self.slice_size)

    def __getattr__(self, name: str) -> Any:
        """Read what is not found here from the loader."""
        if name == "wrapped":  # not set yet: the slice is being copied or unpickled
            raise AttributeError(name)
        return getattr(self.wrapped, name)
