"""Training states with tensors in pieces, written file by file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor

from pa_checkpoint._checkpoint import DOCUMENTS
from pa_checkpoint._encoding import JsonScalar
from pa_checkpoint._files import DigestingWriter
from pa_checkpoint._manifest import MANIFEST, FileEntry, manifest_text
from pa_checkpoint._tensor_file import DTYPE_NAMES, write_tensors

SUMMARY: dict[str, JsonScalar] = {"run": "first", "sequence": 1, "update": 480, "epoch": 2, "complete": False}


def write_sharded_state(
    path: Path, documents: Mapping[str, object], files: Mapping[str, Mapping[str, Tensor]], **summary: JsonScalar
) -> None:
    """Write a state that consists of documents and of files of tensors."""
    path.mkdir(parents=True)
    (path / DOCUMENTS).write_text(json.dumps(documents))
    for name, tensors in files.items():
        with (path / name).open("xb") as file:
            write_tensors(DigestingWriter(file), tensors)
    contents = {file.name: file.read_bytes() for file in sorted(path.iterdir())}
    entries = {name: FileEntry(len(content), hashlib.sha256(content).hexdigest()) for name, content in contents.items()}
    (path / MANIFEST).write_bytes(manifest_text({**SUMMARY, **summary}, entries, version=2))


def described(name: str, whole: Tensor, part: str, rows: list[int]) -> dict[str, Any]:
    """What a document says of a tensor that was split by rows, of which each process has so many."""
    begins = [sum(rows[:process]) for process in range(len(rows))]
    pieces = [
        {
            "file": f"{part}.{process}-of-{len(rows)}.safetensors",
            "offsets": [begins[process], *[0] * (whole.dim() - 1)],
            "shape": [number, *whole.shape[1:]],
        }
        for process, number in enumerate(rows)
        if number
    ]
    return {"$sharded": name, "dtype": DTYPE_NAMES[whole.dtype], "shape": list(whole.shape), "pieces": pieces}


def files_of(part: str, tensors: Mapping[str, Tensor], rows: list[int]) -> dict[str, dict[str, Tensor]]:
    """The files of tensors that were split by rows, of which each process has so many."""
    split = {name: torch.split(tensor, rows) for name, tensor in tensors.items()}
    return {
        f"{part}.{process}-of-{len(rows)}.safetensors": {name: pieces[process] for name, pieces in split.items()}
        for process in range(len(rows))
        if rows[process]
    }


def split_state(source: Path, target: Path, processes: int) -> None:
    """Write a state again, with the tensors of its models and optimizers in the pieces of several processes."""
    documents: dict[str, Any] = json.loads((source / DOCUMENTS).read_text())
    files: dict[str, dict[str, Tensor]] = {}
    for file_name in sorted(source.glob("*.safetensors")):
        part = file_name.name.split(".")[0]
        for name, tensor in load_file(file_name).items():
            if part in ("models", "optimizers") and tensor.dim():
                rows = [len(piece) for piece in tensor.chunk(processes)]
                rows += [0] * (processes - len(rows))
                documents[part] = _replaced(documents[part], name, described(name, tensor, part, rows))
                for file, pieces in files_of(part, {name: tensor}, rows).items():
                    files.setdefault(file, {}).update(pieces)
            else:
                files.setdefault(f"{part}.safetensors", {})[name] = tensor
    summary = json.loads((source / MANIFEST).read_text())["summary"]
    write_sharded_state(target, documents, files, **summary)


def _replaced(document: Any, name: str, by: dict[str, Any]) -> Any:
    """A document with what it says of a whole tensor replaced."""
    if isinstance(document, list):
        return [_replaced(item, name, by) for item in cast("list[object]", document)]
    if not isinstance(document, dict):
        return document
    if document.get("$tensor") == name:
        return by
    return {key: _replaced(item, name, by) for key, item in cast("dict[str, Any]", document).items()}
