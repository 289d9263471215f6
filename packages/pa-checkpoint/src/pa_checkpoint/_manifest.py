"""The manifest of a checkpoint, and the search for tensors that are unchanged since an earlier checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import reprlib
from collections.abc import Collection, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import Tensor

from pa_checkpoint._encoding import JsonScalar
from pa_checkpoint._errors import NOT_OF_THE_FILE, CheckpointError, damage, written_out
from pa_checkpoint._files import DigestingWriter, digest_of, is_plain_name, with_enough_stack
from pa_checkpoint._tensor_file import bytes_of, header_of, memory_of, write_tensors
from pa_checkpoint._torch import version_of

MANIFEST = "manifest.json"
_FORMAT = "pa-core training state"
FIRST_VERSION, LAST_VERSION = 1, 3
"""The versions of the format: from 2 on, a part may have several files of tensors; from 3 on, digests are of XXH3."""
_ZEROS = b"0" * 64
_SHA256, _XXH3 = ("sha256", re.compile("[0-9a-f]{64}")), ("xxh3_128", re.compile("[0-9a-f]{32}"))
_OWN_DIGEST = re.compile(rb'"manifest_sha256":\s*"([0-9a-f]{64})"')  # the last match: a summary may have such an entry
_ENOUGH_TO_RECOGNIZE = 4096
MOST_BYTES = 1 << 26
"""The largest manifest that is read; it needs about 150 bytes for each file."""
_MOST_BITS = 2048
"""The largest integer in a summary: Python reads no number of thousands of digits."""

_KNOWN = {"run": str, "sequence": int, "update": int, "epoch": int, "complete": bool}


class FileEntry(NamedTuple):
    """The size of a file in bytes, and its hexadecimal digest: XXH3, or SHA-256 up to version 2 of the format."""

    bytes: int
    digest: str


class Manifest(NamedTuple):
    """The content of the manifest of a checkpoint.

    Attributes:
        summary: The plain values that the writer has passed.
        files: The other files by name.
        digest: The SHA-256 digest that verifies the manifest. It is the digest of the checkpoint, since it depends on
            the digests of all files.
    """

    summary: dict[str, JsonScalar]
    files: dict[str, FileEntry]
    digest: str


def check_summary(summary: Mapping[str, JsonScalar]) -> None:
    """Raise an error for a summary that JSON cannot hold, or whose known entries have a wrong type.

    Raises:
        CheckpointError: The message names the entry.
    """
    wrong = [
        f"{name}={written_out(value)}"
        for name, value in summary.items()
        if type(name) is not str or not _fits(name, value) or (type(value) is int and value.bit_length() > _MOST_BITS)
    ]
    if wrong:
        raise CheckpointError(
            "The summary of a checkpoint cannot be stored.",
            given=", ".join(wrong),
            expected="finite numbers and strings by names; run: str, sequence, update and epoch: int, complete: bool",
            do="Convert these entries.",
        )


def _fits(name: str, value: object) -> bool:
    """Return whether an entry of a summary can be stored."""
    kinds = (_KNOWN[name],) if name in _KNOWN else (bool, int, float, str, type(None))
    if isinstance(value, int | float) and name in _KNOWN and value < 0:
        return False
    return type(value) in kinds and not (type(value) is float and not math.isfinite(value))


def manifest_text(
    summary: Mapping[str, JsonScalar], files: Mapping[str, FileEntry], version: int = LAST_VERSION
) -> bytes:
    """Return the content of a manifest, which ends with its digest, computed with zeros in place of the digest.

    Zeros elsewhere, for example an unknown commit in the summary, are kept.

    Args:
        summary: The plain values that the writer has passed.
        files: The other files by name.
        version: The version of the format; in versions before the newest, the digests are SHA-256.
    """
    kind, _ = _kind_of_digest(version)
    content = {
        "format": _FORMAT,
        "version": version,
        "summary": dict(summary),
        "files": {name: {"bytes": entry.bytes, kind: entry.digest} for name, entry in files.items()},
        "manifest_sha256": _ZEROS.decode(),
    }
    text = json.dumps(content, indent=2, allow_nan=False).encode() + b"\n"
    before, _, after = text.rpartition(_ZEROS)
    return before + _sha256(text) + after


def read_manifest(directory: Path) -> Manifest:
    """Read and verify the manifest of a checkpoint.

    Raises:
        CheckpointError: There is no manifest, or it is damaged or of a newer version.
    """
    path = directory / MANIFEST
    try:
        if path.exists() and not path.is_file():  # from a FIFO, a read might never return
            raise damage(path, "not a regular file")
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise damage(path, "nothing") from None
    except OSError as error:
        if error.errno in NOT_OF_THE_FILE:
            raise
        raise damage(path, f"text: reading it raised {type(error).__name__}: {error}") from error
    if len(text) > MOST_BYTES:
        raise damage(path, f"more than {MOST_BYTES:,} bytes", "a list of files")
    return parse_manifest(text, path)


def parse_manifest(text: bytes, path: Path) -> Manifest:
    """Verify the text of a manifest, and return its content.

    Args:
        text: The content of the file.
        path: The file, for messages.

    Raises:
        CheckpointError: The text is damaged, lacks an entry, or is of a newer version.
    """
    digest = next(reversed(_OWN_DIGEST.findall(text)), b"")
    plain = text.replace(digest, _ZEROS)  # everywhere: earlier versions put it in place of zeros in the summary, too
    if not digest or _sha256(plain) != digest:
        _parsed(text, path)  # tells more
        raise damage(path, f"a file for which its digest {digest.decode() or 'is missing, or'} is wrong")
    content = _parsed(plain, path)
    if content.get("format") != _FORMAT:
        raise damage(path, f"the format {reprlib.repr(content.get('format'))}", f"the format {_FORMAT!r}")
    try:
        if content["version"] > LAST_VERSION:
            raise _newer_version(path.parent, content["version"])
        if content["version"] not in range(FIRST_VERSION, LAST_VERSION + 1):
            raise damage(path, f"the version {content['version']!r}", f"{FIRST_VERSION} to {LAST_VERSION}")
        return _from_dict(content, digest.decode())
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # of what no version has written
        raise damage(path, f"a wrong entry ({type(error).__name__}: {error})", "entries as they are written") from error


def _parsed(text: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object in a text, empty for any other value."""
    try:
        loaded: object = with_enough_stack(lambda: json.loads(text), path)
    except ValueError as error:
        raise damage(path, f"text: reading it raised {type(error).__name__}: {error}") from error
    return cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}


def _from_dict(content: dict[str, Any], digest: str) -> Manifest:
    """Return a manifest from checked entries."""
    summary, files = content["summary"], content["files"]
    if wrong := [name for name, value in summary.items() if not _fits(name, value)]:
        raise ValueError(f"summary.{wrong[0]} is {reprlib.repr(summary[wrong[0]])}")
    if wrong := [name for name in files if not is_plain_name(name)]:
        raise ValueError(f"a file called {wrong[0]!r}")
    kind = _kind_of_digest(content["version"])
    return Manifest(summary, {name: _entry(name, fields, *kind) for name, fields in files.items()}, digest)


def _kind_of_digest(version: int) -> tuple[str, re.Pattern[str]]:
    """Return the name of the digests in a version of the format, and their form."""
    return _XXH3 if version == LAST_VERSION else _SHA256


def _entry(name: str, fields: Mapping[str, Any], kind: str, form: re.Pattern[str]) -> FileEntry:
    """Return the checked entry of a file."""
    entry = FileEntry(fields["bytes"], fields[kind])
    if type(entry.bytes) is not int or entry.bytes < 0 or not form.fullmatch(entry.digest):
        raise ValueError(f"{name} of {reprlib.repr(entry.bytes)} bytes with the digest {reprlib.repr(entry.digest)}")
    return entry


def _newer_version(directory: Path, version: object) -> CheckpointError:
    """Return the error about a newer version of the format."""
    return CheckpointError(
        "The checkpoint was written in a newer format than this version of pa-checkpoint can read.",
        given=f"{directory} in version {version} of the format",
        expected=f"version {LAST_VERSION} or lower",
        do="Install the version of pa-checkpoint that wrote it, or a newer version.",
    )


def has_manifest(directory: Path) -> bool:
    """Return whether a directory has a manifest, valid or not."""
    path = directory / MANIFEST
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _FORMAT.encode() in file.read(_ENOUGH_TO_RECOGNIZE)
    except OSError:
        return False


def _sha256(content: bytes) -> bytes:
    """Return the digest of some bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest().encode()


_WORTH_A_FILE = 1 << 20
"""In bytes: the tensors of a smaller part stay in a single file, which older versions can read, too."""

_WORTH_WRITING_AGAIN = 8
"""Tensors join the linked tensors if they have at least this fraction of their bytes, since all are written again."""

_SMALL = 1 << 16
"""In bytes: smaller tensors are compared by value, since torch records no changes of BatchNorm statistics."""

_MOST_CHECKPOINTS = 8
"""How many of the newest checkpoints in a folder are searched."""


class UnchangedTensors:
    """Finds the tensors that have probably not changed since the previous checkpoint of a run.

    Changes that torch does not record, for example through ``.data``, are not detected here: ``LinkableFiles`` compares
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
        """Record the current values of tensors.

        Args:
            tensors: The tensors of a checkpoint, by names that begin with the name of the part.
        """
        self._noted = {name: _version(tensor) for name, tensor in tensors.items()}
        self._update = None

    def find(self, tensors: Mapping[str, Tensor], update: object = None) -> frozenset[str]:
        """Return the names of the tensors that belong in files to be linked, and record the current values.

        Args:
            tensors: The tensors of a checkpoint, by names that begin with the name of the part.
            update: The update of the checkpoint. A second checkpoint of the same update adds no tensors.
        """
        before, is_of_same_update = self._noted, update is not None and update == self._update
        self.note(tensors)
        self._update = update
        by_part: dict[str, list[str]] = {}
        for name, noted in self._noted.items():
            if before.get(name, _UNKNOWN) == noted:
                by_part.setdefault(name.split("/")[0], []).append(name)
        if is_of_same_update:  # trained tensors have not changed either
            by_part = {part: [name for name in names if name in self._constant] for part, names in by_part.items()}
        self._constant = frozenset(name for names in by_part.values() for name in self._worth_linking(names, tensors))
        return self._constant

    def _worth_linking(self, names: list[str], tensors: Mapping[str, Tensor]) -> list[str]:
        """Leave out new tensors if they are few, since the file would be written again for them."""
        linked = [name for name in names if name in self._constant]
        newcomers = sum(tensors[name].nbytes for name in names if name not in self._constant)
        if newcomers * _WORTH_WRITING_AGAIN < sum(tensors[name].nbytes for name in linked):
            names = linked
        return names if sum(tensors[name].nbytes for name in names) >= _WORTH_A_FILE else []


_UNKNOWN = object()


def _version(tensor: Tensor) -> Hashable:
    """Return a value that stays equal for as long as torch records no change to the tensor."""
    if tensor.nbytes < _SMALL:
        return hashlib.sha256(bytes_of(tensor)).digest()
    if tensor.is_inference():  # nothing is noted of it
        return object()
    return (memory_of(tensor), version_of(tensor))


def _inode(path: Path) -> tuple[int, ...]:
    """Return numbers that identify a file on disk, and change with its content."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class LinkableFiles:
    """Files of tensors that new checkpoints share with earlier checkpoints, if they are equal byte by byte.

    The new content is hashed, and compared with the manifests of the earlier checkpoints. A file that a different
    process has written is read once before it is linked, so that a damaged file is not used again.
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
            constant: The names of the tensors that have probably not changed.
        """
        selected = {name: tensor for name, tensor in tensors.items() if name in constant and name not in self._restless}
        # the old digest of a tensor that has changed, as torch has recorded, is no longer valid
        self._digests[file] = {name: digest for name, digest in self._digests.get(file, {}).items() if name in selected}
        return selected

    def link(self, path: Path, tensors: Mapping[str, Tensor], folder: Path) -> FileEntry | None:
        """Create a file of tensors as a hard link to an equal file of an earlier checkpoint.

        Args:
            path: The path of the new file, whose name is the same in all checkpoints.
            tensors: The wanted content.
            folder: The folder of the earlier checkpoints.

        Returns:
            Its size and digest, or None if the file must be written, for example on a file system without hard links.
        """
        entry: FileEntry | None = None
        size = len(header_of(tensors)[1]) + sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
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
        """Return the tensors to write to a file; tensors that have changed unnoticed by torch are left out from now on.

        Args:
            file: The name of the file.
            tensors: The tensors that could not be linked.
        """
        before, self._digests[file] = self._digests.get(file, {}), _digests(tensors)
        self._restless |= {name for name, digest in self._digests[file].items() if before.get(name, digest) != digest}
        return self.select(file, tensors, tensors)

    def note(self, path: Path, entry: FileEntry) -> None:
        """Record a file that this process has written.

        Args:
            path: The path of the file.
            entry: Its size and digest.
        """
        self._whole[_inode(path)] = entry.digest

    def _is_whole(self, path: Path, entry: FileEntry) -> bool:
        """Return whether a file has its digest."""
        inode = _inode(path)
        if inode not in self._whole:
            self._whole[inode] = digest_of(path, entry.digest)
        return self._whole[inode] == entry.digest


def _earlier_files(folder: Path, name: str) -> Iterator[tuple[Path, FileEntry]]:
    """Yield the files of a name in the newest checkpoints of a folder, with their entries in the manifests."""
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
    """Return the size and the digest of a file of tensors without writing it."""
    file = DigestingWriter(None)
    write_tensors(file, tensors)
    return FileEntry(file.size, file.digest)


def _digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the digest of each tensor by name."""
    return {name: _entry_of({name: tensor}).digest for name, tensor in tensors.items()}
