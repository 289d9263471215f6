"""Training states with tensors in pieces, written file by file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pa_core.storage.digested_file import DigestingWriter
from pa_core.storage.encoding import JsonScalar
from pa_core.storage.manifest import MANIFEST, FileEntry, manifest_text
from pa_core.storage.state import DOCUMENTS
from pa_core.storage.tensor_file import DTYPE_NAMES, write_tensors

SUMMARY: dict[str, JsonScalar] = {"run": "first", "sequence": 1, "update": 480, "epoch": 2, "complete": False}


def write_sharded_state(
    path: Path, documents: Mapping[str, object], files: Mapping[str, Mapping[str, Tensor]], sequence: int = 1
) -> None:
    """Write a state that consists of documents and of files of tensors."""
    path.mkdir(parents=True)
    (path / DOCUMENTS).write_text(json.dumps(documents))
    for name, tensors in files.items():
        with (path / name).open("xb") as file:
            write_tensors(DigestingWriter(file), tensors)
    contents = {file.name: file.read_bytes() for file in sorted(path.iterdir())}
    entries = {name: FileEntry(len(content), hashlib.sha256(content).hexdigest()) for name, content in contents.items()}
    (path / MANIFEST).write_bytes(manifest_text({**SUMMARY, "sequence": sequence}, entries, version=2))


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
