"""What ShardedFiles needs from a reader: how many samples a file has, and any of them."""

from __future__ import annotations

from typing import Protocol

from typing_extensions import TypeVar

from pa_data.files._shard_file import ShardFile

__all__ = ["OpenShard", "ShardReader"]

_SampleT_co = TypeVar("_SampleT_co", covariant=True)


class OpenShard(Protocol[_SampleT_co]):
    """The samples of one file; a sequence such as an array will do.

    If it has a method ``close``, that is called when the file is no longer in use.
    """

    def __getitem__(self, row: int, /) -> _SampleT_co:
        """Return one sample of the file, counted from 0."""
        ...


class ShardReader(Protocol[_SampleT_co]):
    """Reads the samples of files of one kind, in any order.

    Example:
        >>> import numpy as np
        >>> class NumpyRows:
        ...     def count(self, file: ShardFile) -> int:
        ...         return len(self.open(file))
        ...     def open(self, file: ShardFile) -> np.ndarray:
        ...         return np.load(file.path, mmap_mode="r")
    """

    def count(self, file: ShardFile) -> int:
        """Return the number of samples of a file."""
        ...

    def open(self, file: ShardFile) -> OpenShard[_SampleT_co]:
        """Open a file; it is kept open while its samples are read."""
        ...
