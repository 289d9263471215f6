"""One checkpoint: a directory that is either whole or absent."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from typing_extensions import TypeVar

from pa_checkpoint._digested_file import DigestingReader, DigestingWriter
from pa_checkpoint._encoding import Encoded, JsonScalar, JsonValue, decode, encode
from pa_checkpoint._errors import CheckpointError, CheckpointNotFoundError, damage
from pa_checkpoint._manifest import (
    FIRST_VERSION,
    LAST_VERSION,
    MANIFEST,
    FileEntry,
    Manifest,
    check_summary,
    has_manifest,
    manifest_text,
    read_manifest,
)
from pa_checkpoint._piece_file import PieceFile, is_piece_file
from pa_checkpoint._piece_places import document_with_places, entries_of_pieces
from pa_checkpoint._pieces import file_of_pieces
from pa_checkpoint._sharded_tensor import StoredTensor
from pa_checkpoint._shared_write import ShareOfFirst
from pa_checkpoint._staging import find, located, publish, staged
from pa_checkpoint._tensor_file import read_tensors, write_tensors
from pa_checkpoint._unchanged import LinkableFiles

__all__ = [
    "CONSTANT",
    "DOCUMENTS",
    "TENSORS",
    "Checkpoint",
    "check_files",
    "is_checkpoint",
    "load",
    "write_checkpoint",
    "write_pieces",
]

DOCUMENTS = "state.json"
TENSORS = ".safetensors"
CONSTANT = ".constant"

_BLOCK = 1 << 22  # bytes that are read at a time

_ContentT = TypeVar("_ContentT")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that ``load`` has read; ``checkpoint[name]`` is a part of it.

    Attributes:
        path: The directory, as it was passed.
        summary: What the writer said about the checkpoint; at least ``sequence``, its place in the order of its folder.
        parts: The values by their names; tensors are on the CPU, writable, and independent of the files. Those that
            several processes have saved in pieces are whole.
        digest: The SHA-256 digest of the manifest, which is another one where anything in the checkpoint is.

    Example:
        >>> import tempfile, torch
        >>> from pa_checkpoint import save
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name, "step_480")
        >>> save(path, {"model": {"weight": torch.ones(2)}, "position": {"samples": 96}}, summary={"update": 480})
        >>> checkpoint = load(path)
        >>> checkpoint["model"], checkpoint["position"], checkpoint.summary
        ({'weight': tensor([1., 1.])}, {'samples': 96}, {'update': 480, 'sequence': 1})
        >>> sorted(file.name for file in path.iterdir())
        ['manifest.json', 'model.safetensors', 'state.json']
        >>> folder.cleanup()
    """

    path: Path
    summary: dict[str, JsonScalar]
    parts: dict[str, Any]
    digest: str

    def __getitem__(self, name: str) -> Any:
        """Return a part by its name."""
        return self.parts[name]


def write_checkpoint(
    directory: str | Path,
    parts: Mapping[str, object] | Mapping[str, Encoded],
    summary: Mapping[str, JsonScalar],
    *,
    constant: Collection[str] = (),
    linkable: LinkableFiles | None = None,
    share: ShareOfFirst | None = None,
) -> None:
    """Write a checkpoint, whole or not at all.

    It is written to a hidden folder next to its place, reaches the disk, and takes its place in one step. If anything
    fails, including a full disk or an interrupt, the existing checkpoint stays. May run in its own thread while the
    training continues, if nothing changes the tensors meanwhile.

    Args:
        directory: Its path, which may be free, an empty folder, or a checkpoint, which is then replaced: at every
            instant ``load`` finds the old or the new one. Missing folders above it are made.
        parts: Values, or what ``encode`` made of them, by names that are identifiers. Tensors on an accelerator
            come to the host one at a time.
        summary: What can be known about the checkpoint without reading it.
        constant: The names of tensors that get separate files, for the files of an earlier checkpoint in the same
            folder to be linked where they are equal.
        linkable: What is known about these files; None for nothing.
        share: What this process does where others write the checkpoint with it, each with ``write_pieces``.

    Raises:
        CheckpointError: Something else is at the path, a value cannot be stored, or the disk is full.
    """
    target = Path(os.path.realpath(directory))
    check_summary(summary)
    _check_names(parts)
    encoded = {name: value if isinstance(value, Encoded) else encode(value, name) for name, value in parts.items()}
    run = str(summary.get("run", ""))
    try:
        _check_place(target)
        linked = LinkableFiles() if linkable is None else linkable
        constants = _Constant(frozenset(constant), linked, target.parent)
        share = ShareOfFirst() if share is None else share
        with staged(target, run) as folder, share.in_folder(folder):
            files = _write_tensor_files(folder, encoded, share.rank, constants)
            files |= share.files_of_others(folder)
            _write_index(folder, encoded, files, summary)
            publish(folder, target, run)
    except OSError as error:
        raise _cannot_write(target, error) from error


def write_pieces(
    folder: Path, parts: Mapping[str, Encoded], rank: int, constant: Collection[str], linkable: LinkableFiles
) -> dict[str, FileEntry]:
    """Write what this process has of a checkpoint that the first process publishes, and return what is in which file.

    Args:
        folder: The folder that the first process has made.
        parts: What ``encode`` made of its parts, by name, without the tensors that the first process writes.
        rank: The rank of this process.
        constant: As for ``write_checkpoint``.
        linkable: As for ``write_checkpoint``.

    Raises:
        CheckpointError: The pieces could not be written.
    """
    try:
        return _write_tensor_files(folder, parts, rank, _Constant(frozenset(constant), linkable, folder.parent))
    except OSError as error:
        raise _cannot_write(folder, error) from error


def load(path: str | Path, *, verify: bool = True, lazy: bool = False, share: tuple[int, int] = (0, 1)) -> Checkpoint:
    """Read a checkpoint without running any code from it.

    Args:
        path: Its directory.
        verify: Whether every file is compared with its digest. The manifest and the sizes always are.
        lazy: Whether tensors that several processes have saved in pieces stay on disk, each as a ``StoredTensor``,
            from which each process reads what it has of it. Otherwise they are put together, in memory for all of it.
        share: A rank and the number of processes, each of which then verifies some of the files with pieces.

    Raises:
        CheckpointNotFoundError: There is no checkpoint.
        CheckpointError: It is damaged, or was written in a newer format.
    """
    path = Path(path)
    found = find(path)
    while True:
        try:
            checkpoint = _read_folder(path, found.path, share, verify=verify)
            return checkpoint if lazy else replace(checkpoint, parts=StoredTensor.resolve(checkpoint.parts))
        except (CheckpointError, OSError) as error:
            before, found = found, find(path)
            if found == before and not isinstance(error, CheckpointError):
                raise damage(path, str(error)) from error
            if found == before:
                raise
        # it was replaced by another one while it was read


def is_checkpoint(path: str | Path) -> bool:
    """Whether there is a checkpoint at the path, whole or damaged."""
    return has_manifest(located(Path(path)))


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare what is in the folder with what the manifest lists, by name and size.

    Raises:
        CheckpointError: A file is missing, has another size, or does not belong there. Hidden files, which file
            managers and network file systems leave behind, do not matter.
    """
    for name, entry in manifest.files.items():
        try:
            found = (folder / name).stat()
        except OSError as error:
            raise damage(folder / name, f"nothing ({error.strerror})", f"a file of {entry.bytes} bytes") from error
        if not stat.S_ISREG(found.st_mode):
            raise damage(folder / name, "not a regular file", f"a file of {entry.bytes} bytes")
        if found.st_size != entry.bytes:
            raise damage(folder / name, f"{found.st_size} bytes", f"{entry.bytes} bytes")
    for path in sorted(folder.iterdir()):
        if path.name not in manifest.files and path.name != MANIFEST and not path.name.startswith("."):
            raise damage(path, "something that does not belong to the checkpoint", f"{MANIFEST} and what it lists")


def _read_folder(path: Path, folder: Path, share: tuple[int, int], *, verify: bool) -> Checkpoint:
    if not folder.is_dir():
        raise CheckpointNotFoundError(
            "There is no checkpoint.",
            given=f"{path}, {'a file' if folder.exists() else 'where nothing is'}",
            do="Check the path.",
        )
    manifest = read_manifest(folder)
    check_files(folder, manifest)

    def read(name: str, reader: Callable[[DigestingReader, int], _ContentT]) -> _ContentT:
        return _read_file(folder / name, manifest.files[name], reader, verify=verify)

    pieces = {
        name: PieceFile(folder / name, manifest.files[name].bytes) for name in manifest.files if is_piece_file(name)
    }
    documents = read(DOCUMENTS, _read_documents)
    parts: dict[str, Any] = {}
    for name, document in documents.items():
        tensors: dict[str, Tensor] = {}
        for file_name in (name + TENSORS, name + CONSTANT + TENSORS):
            tensors |= read(file_name, read_tensors) if file_name in manifest.files else {}
        try:
            parts[name] = decode(document, tensors, pieces)
        except Exception as error:  # what a wrong document does is not limited to some kinds of errors
            found = f"{name}, which raised {type(error).__name__}: {error}"
            raise damage(folder / DOCUMENTS, found, "a document in the format of this version") from error
    rank, processes = share
    for name in sorted(pieces)[rank::processes]:
        if verify:
            read(name, _pass_over)
        pieces[name].check()
    return Checkpoint(path, manifest.summary, parts, manifest.digest)


def _pass_over(file: DigestingReader, size: int) -> None:
    """Read a file for its digest alone."""
    buffer = memoryview(bytearray(min(size, _BLOCK)))
    while file.read_into(buffer):
        pass


def _read_documents(file: DigestingReader, size: int) -> dict[str, JsonValue]:
    documents: object = json.loads(file.read(size))
    if not isinstance(documents, dict):
        message = f"a {type(documents).__name__} instead of an object"
        raise ValueError(message)
    return cast("dict[str, JsonValue]", documents)


def _read_file(
    path: Path, entry: FileEntry, reader: Callable[[DigestingReader, int], _ContentT], *, verify: bool
) -> _ContentT:
    try:
        with path.open("rb") as opened:
            file = DigestingReader(opened, verify=verify)
            content = reader(file, entry.bytes)
    except (OSError, ValueError, RecursionError) as error:
        raise damage(path, str(error)) from error
    if verify and file.sha256 != entry.sha256:
        raise damage(path, f"the SHA-256 digest {file.sha256}", f"the digest {entry.sha256}")
    return content


@dataclass(frozen=True, slots=True)
class _Constant:
    """The tensors that may be linked: their names, and where to."""

    names: frozenset[str]
    linkable: LinkableFiles
    folder: Path


def _write_tensor_files(
    folder: Path, parts: Mapping[str, Encoded], rank: int, constant: _Constant
) -> dict[str, FileEntry]:
    """Write the tensors of each part, and the pieces that this process has, and return what is in which file."""
    files: dict[str, FileEntry] = {}
    for name, part in parts.items():
        _write_or_link(folder / (name + TENSORS), folder / (name + CONSTANT + TENSORS), part.tensors, constant, files)
        if pieces := part.pieces_written_here():
            constant_file = folder / file_of_pieces(name, rank, constant=True)
            _write_or_link(folder / file_of_pieces(name, rank), constant_file, pieces, constant, files)
    return files


def _write_or_link(
    path: Path, constant_path: Path, tensors: Mapping[str, Tensor], constant: _Constant, files: dict[str, FileEntry]
) -> None:
    """Write tensors, of which those that have probably not changed are shared with an earlier checkpoint."""
    linkable = constant.linkable
    linked = linkable.select(constant_path.name, tensors, constant.names)
    entry = linkable.link(constant_path, linked, constant.folder) if linked else None
    if linked and entry is None:
        linked = linkable.leave_out_changed(constant_path.name, linked)
        if linked:
            entry = _write_file(constant_path, partial(write_tensors, tensors=linked))
            linkable.note(constant_path, entry)
    if entry is not None:
        files[constant_path.name] = entry
    written = {name: tensor for name, tensor in tensors.items() if name not in linked}
    if written:
        files[path.name] = _write_file(path, partial(write_tensors, tensors=written))


def _write_index(
    folder: Path, parts: Mapping[str, Encoded], files: dict[str, FileEntry], summary: Mapping[str, JsonScalar]
) -> None:
    """Write what tells where everything is, the manifest last."""
    entries = entries_of_pieces(folder, files)
    documents = {
        name: document_with_places(part.document, entries) if part.pieces else part.document
        for name, part in parts.items()
    }
    is_sharded = any(part.pieces for part in parts.values())
    has_constants = any(name.endswith(CONSTANT + TENSORS) for name in files)
    files[DOCUMENTS] = _write_file(folder / DOCUMENTS, partial(_write_documents, documents=documents))
    version = LAST_VERSION if is_sharded or has_constants else FIRST_VERSION
    text = manifest_text(summary, files, version)
    _write_file(folder / MANIFEST, lambda file: file.write(text))


def _write_documents(file: DigestingWriter, documents: Mapping[str, JsonValue]) -> None:
    """One JSON object, with a line for each part."""
    opening = "{"
    for name, document in documents.items():
        text = json.dumps(document, ensure_ascii=False, allow_nan=False)
        file.write(f'{opening}\n"{name}": {text}'.encode())
        opening = ","
    file.write(b"\n}\n" if documents else b"{}\n")


def _write_file(path: Path, write: Callable[[DigestingWriter], None]) -> FileEntry:
    """Have a file reach the disk."""
    with path.open("xb") as opened:
        file = DigestingWriter(opened)
        write(file)
        opened.flush()
        os.fsync(opened.fileno())
    return FileEntry(file.size, file.sha256)


def _check_names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not (name.isascii() and name.isidentifier()) or name.lower() in seen:
            raise CheckpointError(
                "A part of a checkpoint needs a unique name that can be part of a file name.",
                given=repr(name),
                expected="an identifier of ASCII letters, which differs from the others in more than upper case",
                do="Rename the part.",
            )
        seen.add(name.lower())


def _check_place(target: Path) -> None:
    if is_checkpoint(target) or not target.exists():
        return
    if not target.is_dir() or any(target.iterdir()):
        raise CheckpointError(
            "There is something else where a checkpoint is to be written.",
            given=f"{target}, a {'folder that is not a checkpoint' if target.is_dir() else 'file'}",
            expected="a free path, an empty folder or a checkpoint, which is then replaced",
            do="Choose another path, or move away what is there.",
        )


def _cannot_write(target: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        "The checkpoint could not be written; nothing that was there before is lost.",
        given=f"{target}{_free_space(target)}: {error}",
        do="Free some space, keep fewer checkpoints, or choose another folder.",
    )


def _free_space(target: Path) -> str:
    for folder in target.parents:
        with contextlib.suppress(OSError):  # the folder does not exist, or may not be looked at
            return f", on a disk with {shutil.disk_usage(folder).free:,} free bytes"
    return ""
