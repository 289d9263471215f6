"""Tensors as in the checkpoint before: found by what torch notes of changes, proved by their digest, and linked."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from pa_checkpoint._digested_file import DigestingWriter, sha256_of
from pa_checkpoint._errors import CheckpointError
from pa_checkpoint._manifest import FileEntry, has_manifest, read_manifest
from pa_checkpoint._tensor_file import bytes_of, header_of, write_tensors
from pa_checkpoint._tensor_memory import memory_of
from pa_checkpoint._torch import version_of

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["LinkableFiles", "UnchangedTensors"]

_WORTH_A_FILE = 1 << 20
"""Bytes of a part below which its tensors stay in one file, which older versions can read too."""

_WORTH_WRITING_AGAIN = 8
"""Tensors join those that are linked if they have at least one of so many bytes, since all are written again."""

_SMALL = 1 << 16
"""Bytes below which values are compared: kernels change the statistics of BatchNorm, and torch takes no note of it."""

_MOST_CHECKPOINTS = 8
"""How many of the newest checkpoints in a folder are looked at."""


class UnchangedTensors:
    """Notes the tensors of each checkpoint of a run, and finds those that have probably not changed since the last one.

    Changes that torch does not note, such as those through ``.data``, are not seen here: ``LinkableFiles`` compares
    digests before it links anything.

    Example:
        >>> import torch
        >>> frozen, trained = torch.zeros(2**18), torch.zeros(2**18)
        >>> unchanged = UnchangedTensors()
        >>> unchanged.note({"models/frozen": frozen, "models/trained": trained})
        >>> _ = trained.add_(1)
        >>> sorted(unchanged.find({"models/frozen": frozen, "models/trained": trained}))
        ['models/frozen']
    """

    def __init__(self) -> None:
        self._noted: dict[str, Hashable] = {}
        self._constant: frozenset[str] = frozenset()
        self._update: object = None

    def note(self, tensors: Mapping[str, Tensor]) -> None:
        """Note how tensors are.

        Args:
            tensors: The tensors of a checkpoint, by names that begin with the name of the part.
        """
        self._noted = {name: _version(tensor) for name, tensor in tensors.items()}
        self._update = None

    def find(self, tensors: Mapping[str, Tensor], update: object = None) -> frozenset[str]:
        """Return the names of the tensors that belong into files to be linked, and note how all of them are.

        Args:
            tensors: As for ``note``.
            update: The update that the checkpoint is of; in a second checkpoint of the same update nothing joins.
        """
        before, is_of_same_update = self._noted, update is not None and update == self._update
        self.note(tensors)
        self._update = update
        by_part: dict[str, list[str]] = {}
        for name, noted in self._noted.items():
            if before.get(name, _UNKNOWN) == noted:
                by_part.setdefault(name.split("/")[0], []).append(name)
        if is_of_same_update:  # what is trained has not changed either
            by_part = {part: [name for name in names if name in self._constant] for part, names in by_part.items()}
        self._constant = frozenset(name for names in by_part.values() for name in self._worth_linking(names, tensors))
        return self._constant

    def _worth_linking(self, names: list[str], tensors: Mapping[str, Tensor]) -> list[str]:
        """Leave out newcomers for which the file would be written again, if they are few."""
        linked = [name for name in names if name in self._constant]
        newcomers = sum(tensors[name].nbytes for name in names if name not in self._constant)
        if newcomers * _WORTH_WRITING_AGAIN < sum(tensors[name].nbytes for name in linked):
            names = linked
        return names if sum(tensors[name].nbytes for name in names) >= _WORTH_A_FILE else []


_UNKNOWN = object()


def _version(tensor: Tensor) -> Hashable:
    """Return what is equal to itself for as long as torch notes no change of the tensor."""
    if tensor.nbytes < _SMALL:
        return hashlib.sha256(bytes_of(tensor)).digest()
    if tensor.is_inference():  # nothing is noted of it
        return object()
    return (memory_of(tensor), version_of(tensor))


def _inode(path: Path) -> tuple[int, ...]:
    """Return what tells a file on disk from every other, and from itself after a change."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class LinkableFiles:
    """Files of tensors that new checkpoints share with earlier ones, as far as they are equal byte by byte.

    What would be written is hashed, and compared with what the manifests of the earlier checkpoints say. A file that
    another process has written is read once before it is linked, so that a damaged one is never used again.
    """

    def __init__(self) -> None:
        self._whole: dict[tuple[int, ...], str] = {}
        self._digests: dict[str, dict[str, str]] = {}
        self._restless: set[str] = set()

    def select(self, file: str, tensors: Mapping[str, Tensor], constant: Collection[str]) -> dict[str, Tensor]:
        """Return the tensors for a file that may be linked.

        Args:
            file: The name of the file.
            tensors: All tensors of the part.
            constant: The names of those that have probably not changed.
        """
        selected = {name: one for name, one in tensors.items() if name in constant and name not in self._restless}
        # of what has changed in the meantime, as torch has noted, the digest of before says nothing any more
        self._digests[file] = {name: one for name, one in self._digests.get(file, {}).items() if name in selected}
        return selected

    def link(self, path: Path, tensors: Mapping[str, Tensor], folder: Path) -> FileEntry | None:
        """Make a file of tensors by giving an equal one of an earlier checkpoint a second name.

        Args:
            path: The path of the new file, which has the name of the earlier ones.
            tensors: What is to be in it.
            folder: Where the earlier checkpoints are.

        Returns:
            Its size and digest; None if it has to be written, including when the file system has no links.
        """
        entry: FileEntry | None = None
        size = len(header_of(tensors)[1]) + sum(one.numel() * one.element_size() for one in tensors.values())
        for earlier, noted in _earlier_files(folder, path.name):
            if noted.bytes != size:
                continue
            entry = _entry_of(tensors) if entry is None else entry
            try:
                if noted == entry and self._is_whole(earlier, entry):
                    path.hardlink_to(earlier)
                    return entry
            except (OSError, NotImplementedError):
                break
        return None

    def leave_out_changed(self, file: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that a file is to be written with: those that changed without a note of it never again.

        Args:
            file: The name of the file.
            tensors: What could not be linked.
        """
        before, self._digests[file] = self._digests.get(file, {}), _digests(tensors)
        self._restless |= {name for name, digest in self._digests[file].items() if before.get(name, digest) != digest}
        return self.select(file, tensors, tensors)

    def note(self, path: Path, entry: FileEntry) -> None:
        """Remember a file that this process has written.

        Args:
            path: Its path.
            entry: Its size and digest.
        """
        self._whole[_inode(path)] = entry.sha256

    def _is_whole(self, path: Path, entry: FileEntry) -> bool:
        inode = _inode(path)
        if inode not in self._whole:
            self._whole[inode] = sha256_of(path)
        return self._whole[inode] == entry.sha256


def _earlier_files(folder: Path, name: str) -> Iterator[tuple[Path, FileEntry]]:
    """Yield the files of that name in the newest checkpoints of a folder, with what the manifests say of them."""
    files: list[tuple[int, Path]] = []
    for checkpoint in os.scandir(folder):
        file = Path(checkpoint, name)
        with contextlib.suppress(OSError):  # it may go meanwhile
            if file.exists():
                files.append((checkpoint.stat().st_mtime_ns, file))
    for _, file in sorted(files, reverse=True)[:_MOST_CHECKPOINTS]:
        try:
            if has_manifest(file.parent):
                entry = read_manifest(file.parent).files.get(name)
                if entry is not None:
                    yield file, entry
        except CheckpointError:  # damaged, or being removed
            continue


def _entry_of(tensors: Mapping[str, Tensor]) -> FileEntry:
    """Return the size and the digest of the file of some tensors without writing it."""
    file = DigestingWriter(None)
    write_tensors(file, tensors)
    return FileEntry(file.size, file.sha256)


def _digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: _entry_of({name: tensor}).sha256 for name, tensor in tensors.items()}
