"""A dataset in many files, read in an order that needs only a few of them at a time."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, cast, overload

from torch.utils.data import Dataset
from typing_extensions import TypeVar, override

from pa_data._warnings import warn_user
from pa_data.errors import DataError, EmptyDatasetError, ShardError
from pa_data.files._cache import KeptPieces
from pa_data.files._file_index import IndexFolder
from pa_data.files._file_systems import find_files
from pa_data.files._open_files import OpenShards
from pa_data.files._shard_file import OpenShard, ShardReader, shard_files
from pa_data.files._shard_order import ShardOrder

__all__ = ["ShardedFiles"]

_SampleT_co = TypeVar("_SampleT_co", covariant=True, default=Any)
_ReadT = TypeVar("_ReadT")

_MUCH_TO_READ = 1 << 30


class ShardedFiles(Dataset[_SampleT_co]):
    r"""Presents the samples of many files, here called shards, as a single dataset with a length and indices.

    Use it for data that does not fit into memory, on disk or in an object store. Unlike a stream, it can resume at any
    sample, be split over any number of processes, and be shuffled differently in each epoch. Pass it to a
    ``KeyedDataLoader`` with ``shuffle=True``.

    For training it has a ``default_order``, a ``ShardOrder``. The shards then come in random order, and their samples
    are shuffled within windows, so that only a few files are read at a time. The order is the same on any number of
    processes and with any number of workers, and a resumed run opens only the files that it needs next.

    The files must not change while the dataset is in use; if a file has changed, an error is raised. Each process keeps
    a few files open, and up to ``cache_bytes`` of decoded content.

    Args:
        paths: The files: paths, URLs that fsspec supports, and patterns such as ``"train/*.parquet"``, which stand for
            the matching files in sorted order, or ``"train/{000..123}.tar"`` for numbered files.
        reader: The reader of the format: ``JsonLines()``, ``TextLines()``, ``Parquet()``, ``TarSamples()``, or your own
            ``ShardReader``.
        transform: A function that converts a sample of the reader. Its random numbers depend on the index of the sample
            in a ``KeyedDataLoader``. By default, samples are not converted.
        window: The number of consecutive samples that are shuffled together. The default is 10,000. A larger window
            shuffles better, but reads more files at a time.
        lanes: The number of places at which the files are read at the same time, at most ``window``. The default is 1,
            for one process without workers. The best choice is a multiple of the number of processes times their
            workers.
        block: The number of consecutive samples from a lane. The default is 32, a common batch size. The best choice is
            the batch size of a process.
        counts: The number of samples of each shard, if you know it. Then nothing is read at the start, and a shard is
            indexed when it is first used. By default the samples are counted at the start.
        index: A folder for the indexes of readers, for example the positions of lines. It is created if it is missing.
            The indexes are computed once, and again for a file whose size or modification time has changed. By default,
            each process keeps them in memory and reads each file once at the start; if the files are larger than 1 GB,
            a warning is given.
        cache_bytes: The number of bytes of decoded content that each process keeps. The default is 256 MiB. If the
            windows need more, a warning is given.
        storage_options: The arguments for the file system of URLs, for example credentials, in the form that fsspec
            accepts. By default there are none.

    Attributes:
        paths: The file of each shard.
        counts: The number of samples of each shard.
        default_order: The order for training, a ``ShardOrder``.

    Raises:
        ShardError: No file matches a pattern, a file is named twice, or a file is missing or damaged. With ``counts``,
            a file is read only when one of its samples is requested, and the error is raised then.
        EmptyDatasetError: There are no samples.
        DataError: A number is out of its range, or ``counts`` does not have a number for each file.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from pa_data import KeyedDataLoader
        >>> from pa_data.files import JsonLines, ShardedFiles
        >>> folder = tempfile.TemporaryDirectory()
        >>> for name, numbers in {"a": range(3), "b": range(3, 7)}.items():
        ...     lines = "".join(f'{{"number": {number}}}\n' for number in numbers)
        ...     _ = Path(folder.name, f"{name}.jsonl").write_text(lines)
        >>> data = ShardedFiles(f"{folder.name}/*.jsonl", JsonLines(), window=3)
        >>> len(data), data[4]
        (7, {'number': 4})
        >>> loader = KeyedDataLoader(data, batch_size=4, shuffle=True, seed=3)
        >>> loader.start_epoch(1)
        >>> [batch["number"].tolist() for batch in loader]
        [[5, 3, 4, 0], [1, 6, 2]]
        >>> folder.cleanup()
    """

    @overload
    def __init__(
        self: ShardedFiles[_ReadT],
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        reader: ShardReader[_ReadT],
        *,
        transform: None = None,
        window: int = ...,
        lanes: int = ...,
        block: int = ...,
        counts: Sequence[int] | None = ...,
        index: str | os.PathLike[str] | None = ...,
        cache_bytes: int = ...,
        storage_options: Mapping[str, Any] | None = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        reader: ShardReader[_ReadT],
        *,
        transform: Callable[[_ReadT], _SampleT_co],
        window: int = ...,
        lanes: int = ...,
        block: int = ...,
        counts: Sequence[int] | None = ...,
        index: str | os.PathLike[str] | None = ...,
        cache_bytes: int = ...,
        storage_options: Mapping[str, Any] | None = ...,
    ) -> None: ...

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        reader: ShardReader[Any],
        *,
        transform: Callable[[Any], Any] | None = None,
        window: int = 10_000,
        lanes: int = 1,
        block: int = 32,
        counts: Sequence[int] | None = None,
        index: str | os.PathLike[str] | None = None,
        cache_bytes: int = 1 << 28,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        options = storage_options or {}
        self.paths: tuple[str, ...] = find_files([paths] if isinstance(paths, str | os.PathLike) else paths, options)
        folder = None if index is None else IndexFolder(Path(index))
        self._files = shard_files(self.paths, KeptPieces(cache_bytes), folder, options)
        self._reader, self._transform = reader, transform
        self._were_given = counts is not None
        self.counts: tuple[int, ...] = self._count() if counts is None else _checked(counts, self.paths)
        self._ends = list(accumulate(self.counts))
        self._check_not_empty()
        names = tuple(file.name for file in self._files)
        self.default_order: ShardOrder = ShardOrder(names, self.counts, window, lanes, block)
        self._open = OpenShards(window, lanes)

    def __len__(self) -> int:
        """Return the number of samples of all shards."""
        return self._ends[-1]

    @override
    def __getitem__(self, index: int) -> _SampleT_co:
        """Return a sample, after ``transform``; the samples of the first shard come first.

        Args:
            index: The index of the sample, from 0. A negative index counts from the end.

        Returns:
            The sample as the reader returns it or, with a ``transform``, as that function returns it.

        Raises:
            IndexError: There is no such sample.
            ShardError: The sample or its file cannot be read, or the file has changed.
        """
        shard, row = self.locate(index)
        sample = self._open.get(shard, self.counts[shard], lambda: self._open_shard(shard))[row]
        if self._transform is None:
            return cast("_SampleT_co", sample)
        try:
            return cast("_SampleT_co", self._transform(sample))
        except Exception as error:
            error.add_note(f"In the transform of sample {row} of {self.paths[shard]}, counted from 0.")
            raise

    def __iter__(self) -> Iterator[_SampleT_co]:
        """Iterate over the samples, shard after shard."""
        return (self[index] for index in range(len(self)))

    def locate(self, index: int) -> tuple[int, int]:
        r"""Return the shard of a sample, and the place of the sample in it, both counted from 0.

        You call it to find a bad sample, whose file is ``data.paths[shard]``. Nothing is read.

        Args:
            index: The index of the sample in the dataset. A negative index counts from the end.

        Returns:
            The number of the shard, and the place of the sample in the shard.

        Raises:
            IndexError: There is no such sample.

        Example:
            >>> import tempfile
            >>> from pathlib import Path
            >>> from pa_data.files import ShardedFiles, TextLines
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = Path(folder, "a.txt").write_text("first\nsecond\n")
            ...     _ = Path(folder, "b.txt").write_text("third\nfourth\n")
            ...     ShardedFiles(f"{folder}/*.txt", TextLines()).locate(3)
            (1, 1)
        """
        whole = index + len(self) if index < 0 else index
        if not 0 <= whole < len(self):
            raise IndexError(f"there is no sample {index} in {len(self)} samples of {len(self.paths)} files")
        shard = bisect_right(self._ends, whole)
        return shard, whole - (self._ends[shard - 1] if shard > 0 else 0)

    def _open_shard(self, number: int) -> OpenShard[Any]:
        """Open a shard, after comparing its number of samples with ``counts``."""
        file = self._files[number]
        file.check_unchanged()
        if self._were_given and (found := self._reader.count(file)) != self.counts[number]:
            raise ShardError(
                f"A file has a different number of samples than was given. Got {file.path}: {self.counts[number]} in "
                f"counts, and {found} in the file. Correct the counts, or leave them out to have the samples counted."
            )
        return self._reader.open(file)

    def _count(self) -> tuple[int, ...]:
        """Count the samples of all files; processes on a machine begin at different files, to share the work."""
        rank, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        first = len(self._files) * rank // max(1, ranks)
        counts = [0] * len(self._files)
        for number in (*range(first, len(counts)), *range(first)):
            self._files[number].check_unchanged()
            counts[number] = self._reader.count(self._files[number])
        were_read = sum(file.size for file in self._files if file.has_index_in_memory)
        if were_read > _MUCH_TO_READ and rank == 0:
            warn_user(
                f"To find the samples, {were_read / 1e9:.1f} GB in {len(counts)} files were read, as they will be by "
                "each process at each start. Pass index=FOLDER to ShardedFiles to keep the positions.",
            )
        return tuple(counts)

    def _check_not_empty(self) -> None:
        """Raise an error if no file has samples, and warn if some files have none."""
        empty = [path for path, count in zip(self.paths, self.counts, strict=True) if count == 0]
        if len(empty) == len(self.paths):
            raise EmptyDatasetError(
                f"The files hold no samples. Got {len(self.paths)} files, such as {self.paths[0]}. Check that the "
                "reader is the one for these files."
            )
        if empty:
            warn_user(f"{len(empty)} of {len(self.paths)} files hold no sample, such as {empty[0]}.")


def _checked(counts: Sequence[int], paths: tuple[str, ...]) -> tuple[int, ...]:
    """Return the number of samples of each file, if they are valid."""
    if len(counts) != len(paths) or any(count < 0 for count in counts):
        raise DataError(
            "counts must have a number >= 0 for each file, in their order, "
            f"got {len(counts)} counts, the smallest {min(counts, default=0)}, and {len(paths)} files."
        )
    return tuple(int(count) for count in counts)
