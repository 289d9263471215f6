"""In which files the pieces of a state are, by the files themselves, and the documents that say so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pa_checkpoint._digested_file import DigestingReader
from pa_checkpoint._errors import CheckpointError
from pa_checkpoint._manifest import FileEntry
from pa_checkpoint._pieces import file_of_pieces
from pa_checkpoint._tensor_file import TensorEntry, read_header

if TYPE_CHECKING:
    from pa_checkpoint._encoding import Encoded, JsonValue

__all__ = ["MovedPieces", "document_with_places", "find_moved_pieces"]

MovedPieces = Mapping[tuple[str, str], str]
"""By the file in which a piece is expected and its name, the one in which it is."""


def find_moved_pieces(folder: Path, part: str, encoded: Encoded, files: Mapping[str, FileEntry]) -> MovedPieces:
    """Look for each piece of a part, and return where those are that are not in the file of those that change.

    Args:
        folder: Where the files are.
        part: The name of the part.
        encoded: The part, as this process has it.
        files: What was written to the folder.

    Raises:
        CheckpointError: The files do not have the pieces that this process expects of the others.
        OSError: A file cannot be read.
    """
    headers: dict[str, Mapping[str, TensorEntry]] = {}
    moved: dict[tuple[str, str], str] = {}
    for name, tensor in encoded.pieces.items():
        for piece in tensor.pieces:
            expected = file_of_pieces(part, piece.process)
            for file in (expected, file_of_pieces(part, piece.process, constant=True)):
                if file not in headers:
                    headers[file] = _entries(folder / file, files[file].bytes) if file in files else {}
                entry = headers[file].get(name)
                if entry is not None and (tuple(entry.shape), entry.dtype) == (piece.shape, tensor.tensor.dtype):
                    if file != expected:
                        moved[expected, name] = file
                    break
            else:
                raise _not_alike(piece.process, name)
    return moved


def document_with_places(document: JsonValue, moved: MovedPieces) -> JsonValue:
    """Return the document of a part with the files in which its pieces are.

    Args:
        document: As ``encode`` made it.
        moved: What ``find_moved_pieces`` found.
    """
    if not moved:
        return document
    if isinstance(document, list):
        return [document_with_places(item, moved) for item in document]
    if not isinstance(document, dict):
        return document
    if "$sharded" not in document:
        return {key: document_with_places(item, moved) for key, item in document.items()}
    pieces = cast("list[dict[str, Any]]", document["pieces"])
    name = cast("str", document["$sharded"])
    return {**document, "pieces": [{**one, "file": moved.get((one["file"], name), one["file"])} for one in pieces]}


def _entries(path: Path, size: int) -> Mapping[str, TensorEntry]:
    with path.open("rb") as file:
        return read_header(DigestingReader(file, verify=False), size).entries


def _not_alike(process: int, name: str) -> CheckpointError:
    return CheckpointError(
        "The processes do not have the same sharded tensors, so together they do not make a checkpoint.",
        given=f"on rank {process}, no piece of {name} such as rank 0 expects",
        expected="the same tensors on each process, in the same order",
        do="Make the model, the optimizer and what is registered to be saved the same on each process.",
    )
