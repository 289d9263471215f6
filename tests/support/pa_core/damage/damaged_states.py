"""Training states that somebody changed who wants to be believed: their digests are right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

MANIFEST, DOCUMENTS = "manifest.json", "state.json"


def change_document(state: Path, change: Callable[[Any], object]) -> None:
    """Change the document of a state."""
    document = json.loads((state / DOCUMENTS).read_bytes())
    change(document)
    (state / DOCUMENTS).write_text(json.dumps(document))
    fit_digests(state)


def fit_digests(state: Path) -> None:
    """Write a manifest that fits the files as they are now."""
    manifest = json.loads((state / MANIFEST).read_bytes())
    for name, entry in manifest["files"].items():
        content = (state / name).read_bytes()
        entry.update(bytes=len(content), xxh3_128=xxhash.xxh3_128_hexdigest(content))
    zeros = "0" * 64
    text = json.dumps({**manifest, "manifest_sha256": zeros}).encode()
    (state / MANIFEST).write_bytes(text.replace(zeros.encode(), hashlib.sha256(text).hexdigest().encode()))
