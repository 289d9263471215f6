"""A single checkpoint on disk, which a process writes alone or several processes write together."""

from __future__ import annotations

import contextlib
import json
import os
import reprlib
import shutil
import stat
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch.distributed as dist
from torch import Tensor
from typing_extensions import TypeVar

from pa_checkpoint._encoding import Encoded, JsonScalar, JsonValue, decode, encode
from pa_checkpoint._errors import (
    NOT_OF_THE_FILE,
    CheckpointError,
    CheckpointNotFoundError,
    damage,
)
from pa_checkpoint._files import (
    DigestingReader,
    DigestingWriter,
    digest_of,
    find,
    local_path,
    located,
    new_hash,
    publish,
    staged,
    sync_file,
    with_enough_stack,
)
from pa_checkpoint._manifest import (
    MANIFEST,
    FileEntry,
    LinkableFiles,
    Manifest,
    check_summary,
    has_manifest,
    manifest_text,
    read_manifest,
)
from pa_checkpoint._sharded_tensor import PieceFile, StoredTensor, file_of_pieces, is_piece_file
from pa_checkpoint._tensor_file import DTYPES, TensorEntry, read_header, read_tensors, write_tensors
from pa_distributed import RankMessages

_FOLDER, _OUTCOME = "folder", "outcome"


class ShareOfFirst:
    """The role of rank 0, or of a single process, in writing a checkpoint.

    Args:
        messages: The messages about this checkpoint, or None for a single process.
    """

    rank: int = 0

    def __init__(self, messages: RankMessages | None = None) -> None:
        self._messages = messages
        self._others = [] if messages is None else [(messages, rank) for rank in range(1, messages.num_processes)]
        self._is_announced = False

    @contextmanager
    def telling_outcome(self) -> Generator[None]:
        """Tell the other processes whether the block, which writes the checkpoint, succeeds."""
        outcome: dict[str, str] = _problem(_NOT_WRITTEN)
        try:
            yield
            outcome = {}
        except Exception as error:
            outcome = _problem(error)
            raise
        finally:
            with suppress(RuntimeError):  # the process that keeps the messages is gone
                self._announce("")
                if self._messages is not None:
                    self._messages.post(_OUTCOME, json.dumps(outcome))

    @contextmanager
    def in_folder(self, folder: Path) -> Generator[None]:
        """Let all processes write to a folder within the block; after the block, none of them writes to it.

        Args:
            folder: The folder.
        """
        self._announce(folder.name)
        try:
            yield
        except Exception:
            while self._others:  # no process may write any more when the folder is removed
                with suppress(RuntimeError):
                    self._next_receipt()
            raise

    def files_of_others(self, folder: Path) -> dict[str, FileEntry]:
        """Wait for the other processes, and return the sizes and digests of the files that they have written.

        Args:
            folder: The path of the folder on this process.

        Raises:
            CheckpointError: A process could not write its files, or wrote them to a different disk.
            RuntimeError: A process is gone.
        """
        files: dict[str, FileEntry] = {}
        while self._others:
            rank, written = self._next_receipt()
            for name, entry in written.items():
                _require_visible(folder / name, entry, rank)
            files |= written
        return files

    def _announce(self, folder: str) -> None:
        """Tell the other processes the name of the folder, which is empty if there is none."""
        if self._messages is not None and not self._is_announced:
            self._is_announced = True
            self._messages.post(_FOLDER, folder)

    def _next_receipt(self) -> tuple[int, dict[str, FileEntry]]:
        """Wait for the next process, and return its rank and its files."""
        messages, rank = self._others.pop(0)
        receipt: dict[str, Any] = json.loads(messages.wait_for(_receipt(rank), rank))
        messages.remove(_receipt(rank))
        if "problem" in receipt:
            raise CheckpointError(**{**receipt, "given": f"rank {rank}: {receipt['given']}"})
        return rank, {name: FileEntry(*entry) for name, entry in receipt["files"].items()}


class ShareOfOther:
    """The role of each other rank in writing a checkpoint.

    Args:
        messages: The messages about this checkpoint.
    """

    def __init__(self, messages: RankMessages) -> None:
        self._messages = messages

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._messages.rank

    def write(self, directory: Path, write_files: Callable[[Path], dict[str, FileEntry]]) -> None:
        """Write the files of this process, report them to rank 0, and return when the checkpoint is complete.

        Args:
            directory: The path of the checkpoint.
            write_files: A function that writes the files to a folder, and returns their sizes and digests.

        Raises:
            CheckpointError: The files cannot be written, or a different process has failed.
            RuntimeError: Rank 0 is gone.
        """
        name = self._messages.wait_for(_FOLDER, 0)
        problem: CheckpointError | None = None
        if name:
            try:
                self._write(Path(os.path.realpath(directory)).parent / name, write_files)
            except CheckpointError as error:
                problem = error
        outcome: dict[str, str] = json.loads(self._messages.wait_for(_OUTCOME, 0))
        if outcome:  # the same on all processes
            raise CheckpointError(**outcome) from problem

    def _write(self, folder: Path, write_files: Callable[[Path], dict[str, FileEntry]]) -> None:
        """Write the files of this process, and report them or the error."""
        receipt: dict[str, Any] = _problem(_NOT_WRITTEN)
        try:
            if not folder.is_dir():
                raise _not_shared(folder, "the first process has made it, and it is not there")
            files = write_files(folder)
            receipt = {"files": files}
        except CheckpointError as error:
            receipt = _problem(error)
            raise
        finally:
            self._messages.post(_receipt(self.rank), json.dumps(receipt))


def _problem(error: Exception) -> dict[str, str]:
    """Return the parts of an error as a message to the other processes."""
    if not isinstance(error, CheckpointError):
        found = f"{type(error).__name__}: {error}"
        error = CheckpointError(_NOT_WRITTEN.problem, found, _NOT_WRITTEN.expected, _NOT_WRITTEN.do)
    return {"problem": error.problem, "given": error.given, "expected": error.expected, "do": error.do}


def _receipt(rank: int) -> str:
    """Return the name of the message with the files of a rank."""
    return f"receipt/{rank}"


_NOT_WRITTEN = CheckpointError(
    "A process did not finish its part of the checkpoint; nothing that was there before is lost.",
    given="interrupted while it wrote",
    do="See the last lines that this process printed.",
)


def _require_visible(path: Path, entry: FileEntry, rank: int) -> None:
    """Raise an error if a file of a rank is not visible on this process."""
    if not path.is_file() or path.stat().st_size != entry.bytes:
        raise _not_shared(path, f"rank {rank} has written {entry.bytes} bytes, which are not there")


def _not_shared(path: Path, found: str) -> CheckpointError:
    """Return the error for processes that see different disks."""
    return CheckpointError(
        "The processes do not see the same folder of checkpoints.",
        given=f"{path}: {found}",
        do="Save to a file system that all machines share, under the same path on each.",
    )


EntriesOfPieces = Mapping[str, Mapping[str, TensorEntry]]
"""By the names of the files with pieces, the headers of these files."""


def entries_of_pieces(folder: Path, files: Iterable[str]) -> EntriesOfPieces:
    """Return the headers of the files with pieces.

    Args:
        folder: The folder of the files.
        files: The names of all files that were written to the folder.

    Raises:
        OSError: A file cannot be read.
    """
    entries: dict[str, Mapping[str, TensorEntry]] = {}
    for name in filter(is_piece_file, files):
        with (folder / name).open("rb") as file:
            entries[name] = read_header(DigestingReader(file), (folder / name).stat().st_size).entries
    return entries


def document_with_places(document: JsonValue, entries: EntriesOfPieces) -> JsonValue:
    """Return the document of a part, with the names of the files that contain its pieces.

    Args:
        document: The document that ``encode`` has made on this process.
        entries: The headers of the written files.

    Raises:
        CheckpointError: The files lack pieces that this process expects of the others.
    """
    if isinstance(document, list):
        return [document_with_places(item, entries) for item in document]
    if not isinstance(document, dict):
        return document
    if "$sharded" not in document:
        return {key: document_with_places(item, entries) for key, item in document.items()}
    tensor: dict[str, Any] = document
    return {**tensor, "pieces": [{**piece, "file": _file_of(piece, tensor, entries)} for piece in tensor["pieces"]]}


def _file_of(piece: Mapping[str, Any], tensor: Mapping[str, Any], entries: EntriesOfPieces) -> str:
    """Return the name of the file with a piece."""
    expected: str = piece["file"]
    for file in (expected, expected.replace(".", ".constant.", 1)):
        entry = entries.get(file, {}).get(tensor["$sharded"])
        if entry is not None and (entry.shape, entry.dtype) == (piece["shape"], DTYPES[tensor["dtype"]]):
            return file
    raise CheckpointError(
        "The processes do not have the same sharded tensors, so together they do not make a checkpoint.",
        given=f"in {expected}, no piece of {tensor['$sharded']} such as rank 0 expects",
        do="Make the model, the optimizer and all other saved objects the same on each process.",
    )


DOCUMENTS = "state.json"
TENSORS = ".safetensors"
CONSTANT = ".constant"

_ContentT = TypeVar("_ContentT")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was read; ``checkpoint[name]`` returns a saved value.

    ``load`` and ``Folder.newest`` return it; you need not make it yourself. The names are those that were passed to
    ``save``, and a name that was not saved raises a ``KeyError``. To look at a checkpoint without reading its tensors,
    use ``CheckpointInfo.at``.

    Attributes:
        path: The directory, as it was passed to ``load``.
        summary: The plain values that were saved with the checkpoint, by name. They contain at least ``"sequence"``, a
            number that counts the checkpoints of a folder from 1 in the order in which they were saved.
        parts: The saved values by name. Tensors are on the CPU, writable, and independent of the files. Tensors that
            several processes have saved in pieces are whole, unless ``load`` was called with ``lazy=True``, in which
            case each of them is a ``StoredTensor``.
        digest: The SHA-256 digest of the manifest, which is the list of the files with their digests, in hexadecimal.
            Two checkpoints with the same digest have the same content.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from pa_checkpoint import load, save
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
    """Write a checkpoint completely or not at all.

    The files go to a hidden folder next to the path, are flushed to the disk, and the folder is renamed in a single
    step. If anything fails, including a full disk or an interrupt, an existing checkpoint stays. The function may run
    in a thread while training continues, if the tensors do not change in the meantime.

    Args:
        directory: The path. There may be nothing at the path, an empty folder, or a checkpoint, which is replaced. At
            every instant ``load`` finds the old or the new checkpoint. Missing folders above it are created.
        parts: Values, or the results of ``encode``, by names that are identifiers. Tensors on an accelerator are copied
            to the host one at a time.
        summary: Plain values that can be read without the tensors.
        constant: The names of tensors that go to separate files, so that equal files of an earlier checkpoint in the
            same folder can be linked.
        linkable: The known files of earlier checkpoints, or None.
        share: The role of this process, if the other processes call ``write_pieces``.

    Raises:
        CheckpointError: The path is in use by something else, a value cannot be stored, or the disk is full.
    """
    target = Path(os.path.realpath(local_path(directory)))
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
            publish(folder, target)
    except OSError as error:
        raise _cannot_write(target, error, encoded) from error


def write_pieces(
    folder: Path, parts: Mapping[str, Encoded], rank: int, constant: Collection[str], linkable: LinkableFiles
) -> dict[str, FileEntry]:
    """Write the pieces of this process for a checkpoint that rank 0 publishes, and return the written files.

    Args:
        folder: The folder that rank 0 has created.
        parts: The results of ``encode`` by name, without the tensors that rank 0 writes.
        rank: The rank of this process.
        constant: The names of tensors that go to separate files, so that equal files can be linked.
        linkable: The known files of earlier checkpoints.

    Raises:
        CheckpointError: The pieces could not be written.
    """
    try:
        return _write_tensor_files(folder, parts, rank, _Constant(frozenset(constant), linkable, folder.parent))
    except OSError as error:
        raise _cannot_write(folder, error, parts) from error


def load(path: str | Path, *, verify: bool = True, lazy: bool = False, in_shares: bool = False) -> Checkpoint:
    """Read a checkpoint and verify it, without running any code from its files.

    Use it for a checkpoint whose path you know; ``Folder.newest`` finds and reads the newest checkpoint of a folder.
    Unlike ``torch.load``, it unpickles nothing, so files from untrusted sources are safe to read. The digest of each
    file is compared with the manifest, which is the list of the files with their sizes and digests. A damaged file
    therefore raises an error instead of silently changing a weight. The function may be called while another process
    replaces the checkpoint: it returns the old or the new content.

    Args:
        path: The directory of the checkpoint.
        verify: Whether to compare all files with their digests. The default is True, since a damaged weight would
            otherwise go unnoticed. Pass False for speed if the files were verified before; the manifest and the sizes
            are always checked.
        lazy: Whether tensors stay on disk, each as a ``StoredTensor``, until you read them, or until each process reads
            its piece of them. The files are still verified before the call returns, and tensors of at most 16 KiB,
            complex tensors and arrays are read at once. The default, False, builds whole tensors in memory, which every
            ``load_state_dict`` accepts. Pass True if there is not enough memory for a second copy of the model, or if
            the model does not fit in the memory of a process.
        in_shares: Whether all processes of ``torch.distributed`` make this call now, and each of them verifies only its
            share of the files with pieces, which is faster. With True, an error may occur on only one process, so
            exchange the outcome before you continue, for example with ``pa_distributed.gather_objects``. The default is
            False.

    Returns:
        The checkpoint; ``checkpoint[name]`` is the value that was saved under the name. Its tensors are on the CPU.

    Raises:
        CheckpointNotFoundError: There is no directory at the path. It is also a ``FileNotFoundError``.
        CheckpointError: The checkpoint is damaged, was written in a newer format, or was not written by ``save``.

    Example:
        >>> import tempfile, torch
        >>> from pa_checkpoint import load, save
        >>> folder = tempfile.TemporaryDirectory()
        >>> model = torch.nn.Linear(2, 1)
        >>> save(f"{folder.name}/step_480", {"model": model.state_dict(), "step": 480})
        >>> checkpoint = load(f"{folder.name}/step_480")
        >>> model.load_state_dict(checkpoint["model"]), checkpoint["step"]
        (<All keys matched successfully>, 480)
        >>> folder.cleanup()
    """
    path = local_path(path)
    share = (dist.get_rank(), dist.get_world_size()) if in_shares and dist.is_initialized() else (0, 1)
    found = find(path)
    while True:
        try:
            return with_enough_stack(partial(_read_folder, path, found.path, share, verify=verify, lazy=lazy), path)
        except (CheckpointError, OSError) as error:
            before, found = found, find(path)
            if found == before:
                if isinstance(error, CheckpointError) or error.errno in NOT_OF_THE_FILE:
                    raise
                raise damage(path, str(error)) from error
        # it was replaced by another one while it was read


def is_checkpoint(path: str | Path) -> bool:
    """Return whether there is a checkpoint at a path, complete or damaged."""
    return has_manifest(located(Path(path)))


def require_folder(path: str | Path, folder: Path) -> None:
    """Raise an error if there is nothing, or a file, where a checkpoint should be.

    Args:
        path: The path of the checkpoint, for the message.
        folder: The folder in which it is.

    Raises:
        CheckpointNotFoundError: There is no such folder.
    """
    if not folder.is_dir():
        raise CheckpointNotFoundError(
            "There is no checkpoint.",
            given=f"{path}, {'a file' if folder.exists() else 'where nothing is'}",
            do="Check the path.",
        )


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare the names and sizes of the files in a folder with the manifest.

    Raises:
        CheckpointError: A file is missing, has a different size, or does not belong to the checkpoint. Hidden files,
            which file managers and network file systems leave behind, are ignored. If the content was not written by
            ``save``, additional files are allowed.
    """
    for name, entry in manifest.files.items():
        _check_file(folder / name, entry)
    for path in sorted(folder.iterdir()) if DOCUMENTS in manifest.files else ():
        if path.name not in manifest.files and path.name != MANIFEST and not path.name.startswith("."):
            raise damage(
                path, "something that does not belong to the checkpoint", f"{MANIFEST} and the files that it lists"
            )


def _check_file(path: Path, entry: FileEntry) -> None:
    """Compare the size of a file with its entry in the manifest."""
    try:
        found = path.stat()
    except OSError as error:
        raise damage(path, f"nothing ({error.strerror})", f"a file of {entry.bytes} bytes") from error
    if not stat.S_ISREG(found.st_mode):
        raise damage(path, "not a regular file", f"a file of {entry.bytes} bytes")
    if found.st_size != entry.bytes:
        raise damage(path, f"{found.st_size} bytes", f"{entry.bytes} bytes")


def seal(folder: Path, summary: Mapping[str, JsonScalar]) -> None:
    """Flush files with any content to the disk, and write a manifest that lists them.

    Args:
        folder: The folder of the files.
        summary: Plain values that can be read without the files.

    Raises:
        CheckpointError: The summary cannot be stored.
    """
    check_summary(summary)
    files: dict[str, FileEntry] = {}
    for path in sorted(folder.iterdir()):
        if path.name == MANIFEST or not path.is_file():
            raise _cannot_list(path)
        sync_file(path)
        files[path.name] = FileEntry(path.stat().st_size, digest_of(path))
    _write_manifest(folder, summary, files)


def verify(path: str | Path, wanted: Callable[[str], bool] | None = None) -> str:
    """Compare the files of a checkpoint with their digests, and return the digest of the checkpoint.

    Use it after copying a checkpoint, or before deleting an older copy. ``load`` also verifies the files, but builds
    the values as well; this function keeps nothing that it reads, so it needs little memory. It works for any content,
    including directories that were written in ``Folder.writing`` with a summary.

    Args:
        path: The directory of the checkpoint.
        wanted: A function that is called with the name of each file, for example ``"model.safetensors"``, and returns
            whether to compare it. The default, None, compares all files. The manifest, which is the list of the files,
            is always checked.

    Returns:
        The SHA-256 digest of the manifest, in hexadecimal: the ``digest`` of the ``Checkpoint``. Two checkpoints with
        the same digest have the same content.

    Raises:
        CheckpointNotFoundError: There is no directory at the path. It is also a ``FileNotFoundError``.
        CheckpointError: A file or the manifest is missing or damaged.

    Example:
        >>> import tempfile
        >>> from pa_checkpoint import CheckpointError, load, save, verify
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(f"{folder}/step_1", {"step": 1})
        ...     print(verify(f"{folder}/step_1") == load(f"{folder}/step_1").digest)
        ...     with open(f"{folder}/step_1/state.json", "a") as file:
        ...         _ = file.write("damage")
        ...     try:
        ...         _ = verify(f"{folder}/step_1")
        ...     except CheckpointError as error:
        ...         print(error.problem)
        True
        The checkpoint is damaged.
    """
    folder = located(local_path(path))
    require_folder(path, folder)
    manifest = read_manifest(folder)
    for name, entry in manifest.files.items():
        if wanted is None or wanted(name):
            _check_file(folder / name, entry)
            _read_file(folder / name, entry, DigestingReader.skip, verify=True)
    return manifest.digest


def _read_folder(path: Path, folder: Path, share: tuple[int, int], *, verify: bool, lazy: bool) -> Checkpoint:
    """Read the checkpoint in a folder."""
    require_folder(path, folder)
    manifest = read_manifest(folder)
    if DOCUMENTS not in manifest.files:
        raise damage(folder / MANIFEST, "the manifest of other files", f"one with {DOCUMENTS}")
    check_files(folder, manifest)

    def read(name: str, reader: Callable[[DigestingReader, int], _ContentT]) -> _ContentT:
        return _read_file(folder / name, manifest.files[name], reader, verify=verify)

    files = {name: PieceFile(folder / name, entry.bytes) for name, entry in manifest.files.items()}
    pieces = {name: file for name, file in files.items() if is_piece_file(name)}
    documents = read(DOCUMENTS, _read_documents)
    parts: dict[str, Any] = {}
    for name, document in documents.items():
        tensors: dict[str, Tensor | StoredTensor] = {}
        for file_name in (name + TENSORS, name + CONSTANT + TENSORS):
            if file_name in files:
                tensors |= read(file_name, files[file_name].leave if lazy else read_tensors)
        parts[name] = _decoded(folder / DOCUMENTS, name, document, tensors, pieces)
    rank, processes = share
    for name in sorted(pieces)[rank::processes]:
        if verify:
            read(name, DigestingReader.skip)
        pieces[name].check()
    return Checkpoint(path, manifest.summary, parts if lazy else StoredTensor.resolve(parts), manifest.digest)


def _decoded(
    path: Path,
    name: str,
    document: JsonValue,
    tensors: Mapping[str, Tensor | StoredTensor],
    pieces: Mapping[str, PieceFile],
) -> Any:
    """Return a part of a checkpoint from its document, which is in the file at the path."""
    try:
        return decode(document, tensors, pieces)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # what a wrong document does is not limited to some kinds of errors
        found = f"{name}, which raised {type(error).__name__}: {error}"
        raise damage(path, found, "a document in the format of this version") from error


def _read_documents(file: DigestingReader, size: int) -> dict[str, JsonValue]:
    """Return the documents of all parts."""
    documents: object = json.loads(file.read(size))
    if not isinstance(documents, dict):
        raise ValueError(f"a {type(documents).__name__} instead of an object")
    return cast("dict[str, JsonValue]", documents)


def _read_file(
    path: Path, entry: FileEntry, reader: Callable[[DigestingReader, int], _ContentT], *, verify: bool
) -> _ContentT:
    """Read a file with a function, and verify its digest."""
    try:
        with path.open("rb") as opened:
            file = DigestingReader(opened, new_hash(entry.digest) if verify else None)
            content = reader(file, entry.bytes)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in NOT_OF_THE_FILE:
            raise
        raise damage(path, str(error)) from error
    if verify and file.digest != entry.digest:
        raise damage(path, f"the digest {file.digest}", f"the digest {entry.digest}")
    return content


class _Constant(NamedTuple):
    """The names of the tensors that may be linked, the files to link to, and their folder."""

    names: frozenset[str]
    linkable: LinkableFiles
    folder: Path


def _write_tensor_files(
    folder: Path, parts: Mapping[str, Encoded], rank: int, constant: _Constant
) -> dict[str, FileEntry]:
    """Write the tensors of each part and the pieces of this process, and return the files."""
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
    """Write tensors; those that have probably not changed share a file with an earlier checkpoint."""
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
    """Write the documents and, as the last file, the manifest."""
    entries = entries_of_pieces(folder, files)
    documents = {
        name: document_with_places(part.document, entries) if part.pieces else part.document
        for name, part in parts.items()
    }
    files[DOCUMENTS] = _write_file(folder / DOCUMENTS, partial(_write_documents, documents=documents))
    _write_manifest(folder, summary, files)


def _write_manifest(folder: Path, summary: Mapping[str, JsonScalar], files: Mapping[str, FileEntry]) -> None:
    """Write the manifest and read it back, so that an unreadable manifest is not published."""
    text = manifest_text(summary, files)
    _write_file(folder / MANIFEST, lambda file: file.write(text))
    try:
        manifest = read_manifest(folder)
        found = "" if manifest[:2] == (summary, files) else f"{folder / MANIFEST}: {reprlib.repr(manifest)}"
    except CheckpointError as error:
        found = error.given
    if found:
        raise CheckpointError(
            "The manifest of a checkpoint is not read as it was written; nothing that was there before is lost.",
            given=found,
            expected=reprlib.repr((summary, files)),
            do="Save to another disk, or with fewer files and plain values in the summary.",
        )


def _cannot_list(path: Path) -> CheckpointError:
    """Return the error for an entry that a manifest cannot list."""
    return CheckpointError(
        "A checkpoint that is listed in a manifest has files alone.",
        given=f"{path.name}, {'which is the name of the manifest' if path.name == MANIFEST else 'a folder'}",
        do="Rename the file, move the files of a folder next to it, or leave out the summary.",
    )


def _write_documents(file: DigestingWriter, documents: Mapping[str, JsonValue]) -> None:
    """Write the documents as a JSON object, with a line for each part."""
    opening = "{"
    for name, document in documents.items():
        text = json.dumps(document, ensure_ascii=False, allow_nan=False)
        file.write(f'{opening}\n"{name}": {text}'.encode())
        opening = ","
    file.write(b"\n}\n" if documents else b"{}\n")


def _write_file(path: Path, write: Callable[[DigestingWriter], None]) -> FileEntry:
    """Write a file, and flush it to the disk."""
    with path.open("xb") as opened:
        file = DigestingWriter(opened)
        write(file)
        opened.flush()
        os.fsync(opened.fileno())
    return FileEntry(file.size, file.digest)


def _check_names(names: Iterable[str]) -> None:
    """Raise an error for the name of a part that is not an identifier or not unique."""
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
    """Raise an error if a path is in use by something that is not a checkpoint."""
    if is_checkpoint(target) or not target.exists():
        return
    if not target.is_dir() or any(target.iterdir()):
        raise CheckpointError(
            "There is something else at the path of the new checkpoint.",
            given=f"{target}, a {'folder that is not a checkpoint' if target.is_dir() else 'file'}",
            expected="a free path, an empty folder or a checkpoint, which is then replaced",
            do="Choose another path, or move away the present content.",
        )


def _cannot_write(target: Path, error: OSError, parts: Mapping[str, Encoded]) -> CheckpointError:
    """Return the error for a checkpoint that could not be written."""
    needed = sum(tensor.nbytes for part in parts.values() for tensor in part.all_tensors().values())
    return CheckpointError(
        "The checkpoint could not be written; nothing that was there before is lost.",
        given=f"{target}, whose tensors take {needed:,} bytes{_free_space(target)}: {error}",
        do="Free some space, keep fewer checkpoints, or choose another folder.",
    )


def _free_space(target: Path) -> str:
    """Return the free space of the disk in words."""
    for folder in target.parents:
        with contextlib.suppress(OSError):  # the folder does not exist, or may not be looked at
            return f", on a disk with {shutil.disk_usage(folder).free:,} free bytes"
    return ""
