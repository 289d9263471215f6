"""In which files the pieces of a checkpoint are, by the files themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pa_checkpoint._digested_file import DigestingReader
from pa_checkpoint._errors import CheckpointError
from pa_checkpoint._piece_file import is_piece_file
from pa_checkpoint._tensor_file import DTYPES, TensorEntry, read_header

if TYPE_CHECKING:
    from pa_checkpoint._encoding import JsonValue

__all__ = ["EntriesOfPieces", "document_with_places", "entries_of_pieces"]

EntriesOfPieces = Mapping[str, Mapping[str, TensorEntry]]
"""By the names of the files with pieces, what is in them."""


def entries_of_pieces(folder: Path, files: Iterable[str]) -> EntriesOfPieces:
    """Return what the files with pieces say of them.

    Args:
        folder: Where the files are.
        files: The names of all files that were written to the folder.

    Raises:
        OSError: A file cannot be read.
    """
    entries: dict[str, Mapping[str, TensorEntry]] = {}
    for name in filter(is_piece_file, files):
        with (folder / name).open("rb") as file:
            entries[name] = read_header(DigestingReader(file, verify=False), (folder / name).stat().st_size).entries
    return entries


def document_with_places(document: JsonValue, entries: EntriesOfPieces) -> JsonValue:
    """Return the document of a part with the files in which its pieces are: of what changes, or of what is linked.

    Args:
        document: As ``encode`` made it on this process.
        entries: What the processes have written.

    Raises:
        CheckpointError: The files do not have the pieces that this process expects of the others.
    """
    if isinstance(document, list):
        return [document_with_places(item, entries) for item in document]
    if not isinstance(document, dict):
        return document
    if "$sharded" not in document:
        return {key: document_with_places(item, entries) for key, item in document.items()}
    tensor: dict[str, Any] = document
    return {**tensor, "pieces": [{**one, "file": _file_of(one, tensor, entries)} for one in tensor["pieces"]]}


def _file_of(piece: Mapping[str, Any], tensor: Mapping[str, Any], entries: EntriesOfPieces) -> str:
    expected: str = piece["file"]
    for file in (expected, expected.replace(".", ".constant.", 1)):
        entry = entries.get(file, {}).get(tensor["$sharded"])
        if entry is not None and (entry.shape, entry.dtype) == (piece["shape"], DTYPES[tensor["dtype"]]):
            return file
    raise CheckpointError(
        "The processes do not have the same sharded tensors, so together they do not make a checkpoint.",
        given=f"in {expected}, no piece of {tensor['$sharded']} such as rank 0 expects",
        do="Make the model, the optimizer and what is registered to be saved the same on each process.",
    )
