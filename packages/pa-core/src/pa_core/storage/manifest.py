"""The manifest of a training state: what it is, which files belong to it, and how to see that they are whole."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pa_core.errors import CheckpointError
from pa_core.storage.encoding import JsonScalar

__all__ = [
    "MANIFEST",
    "FileEntry",
    "Manifest",
    "check_summary",
    "damage",
    "has_manifest",
    "manifest_text",
    "read_manifest",
]

MANIFEST = "manifest.json"
_FORMAT = "pa-core training state"
_VERSION = 1
_ZEROS = b"0" * 64

_REQUIRED = {"run": str, "sequence": int, "update": int, "epoch": int, "complete": bool}


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What the manifest says of a file: its size in bytes, and its SHA-256 digest in hexadecimal."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the manifest of a state says.

    Attributes:
        summary: What the writer said about the state.
        files: The other files by name.
    """

    summary: dict[str, JsonScalar]
    files: dict[str, FileEntry]


def check_summary(summary: Mapping[str, JsonScalar]) -> None:
    """Refuse a summary that lacks something, or that JSON cannot hold.

    Raises:
        CheckpointError: It names the entry.
    """
    wrong = [
        f"{name}={summary[name]!r}" if name in summary else f"no {name}"
        for name, kind in _REQUIRED.items()
        if type(summary.get(name)) is not kind
    ]
    wrong += [
        f"{name}={value!r}"
        for name, value in summary.items()
        if type(value) not in (bool, int, float, str, type(None)) or (type(value) is float and not math.isfinite(value))
    ]
    if wrong:
        raise CheckpointError(
            "The summary of a training state is not complete, or cannot be stored.",
            given=", ".join(wrong),
            expected="run: str, sequence: int, update: int, epoch: int, complete: bool, and finite numbers or strings",
            do="Add or convert these entries.",
        )


def manifest_text(summary: Mapping[str, JsonScalar], files: Mapping[str, FileEntry]) -> bytes:
    """Return the content of the manifest, which ends with the digest of itself with zeros for the digest."""
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "summary": dict(summary),
        "files": {name: {"bytes": entry.bytes, "sha256": entry.sha256} for name, entry in files.items()},
        "manifest_sha256": _ZEROS.decode(),
    }
    text = json.dumps(content, indent=2, allow_nan=False).encode() + b"\n"
    return text.replace(_ZEROS, _sha256(text))


def read_manifest(directory: Path) -> Manifest:
    """Read and verify the manifest of a state.

    Raises:
        CheckpointError: There is none, a byte of it is not as it was written, or it is of a newer version.
    """
    path = directory / MANIFEST
    try:
        text = path.read_bytes()
        content = cast("dict[str, Any]", json.loads(text))
        digest = cast("str", content["manifest_sha256"]).encode()
    except FileNotFoundError:
        raise damage(path, "nothing") from None
    except Exception as error:  # what wrong JSON does is not limited to some kinds of errors
        raise damage(path, f"text: reading it raised {type(error).__name__}: {error}") from error
    if len(digest) != len(_ZEROS) or text.count(digest) != 1 or _sha256(text.replace(digest, _ZEROS)) != digest:
        raise damage(path, f"a file for which its digest {digest.decode()} is wrong")
    if content.get("format") != _FORMAT:
        raise damage(path, f"the format {content.get('format')!r}", f"the format {_FORMAT!r}")
    if content["version"] > _VERSION:
        raise _newer_version(directory, content["version"])
    return Manifest(content["summary"], {name: FileEntry(**entry) for name, entry in content["files"].items()})


def _newer_version(directory: Path, version: object) -> CheckpointError:
    return CheckpointError(
        "The training state was written in a newer format than this version of pa-core can read.",
        given=f"{directory} in version {version} of the format",
        expected=f"version {_VERSION}",
        do="Install the version of pa-core that wrote it, or a newer one.",
    )


def has_manifest(directory: Path) -> bool:
    """Whether the directory has a pa-core manifest, valid or not."""
    try:
        return _FORMAT.encode() in (directory / MANIFEST).read_bytes()
    except OSError:
        return False


def damage(path: Path, found: str, expected: str = "what was written") -> CheckpointError:
    """The error for a file that is not as the manifest, or the format, says."""
    return CheckpointError(
        "The training state is damaged.",
        given=f"{path}: {found}",
        expected=expected,
        do="Use another state, such as the one before it.",
    )


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
