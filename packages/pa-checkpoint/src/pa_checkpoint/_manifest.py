"""The manifest of a checkpoint: what it is, which files belong to it, and how to see that they are whole."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pa_checkpoint._encoding import JsonScalar
from pa_checkpoint._errors import CheckpointError, damage

__all__ = [
    "FIRST_VERSION",
    "LAST_VERSION",
    "MANIFEST",
    "FileEntry",
    "Manifest",
    "check_summary",
    "has_manifest",
    "manifest_text",
    "parse_manifest",
    "read_manifest",
]

MANIFEST = "manifest.json"
_FORMAT = "pa-core training state"
FIRST_VERSION, LAST_VERSION = 1, 2
"""The versions of the format: in the second one, a part may have several files of tensors."""
_ZEROS = b"0" * 64
_DIGEST = re.compile("[0-9a-f]{64}")
_ENOUGH_TO_RECOGNIZE = 4096

_KNOWN = {"run": str, "sequence": int, "update": int, "epoch": int, "complete": bool}


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What the manifest says of a file: its size in bytes, and its SHA-256 digest in hexadecimal."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the manifest of a checkpoint says.

    Attributes:
        summary: What the writer said about the checkpoint.
        files: The other files by name.
        digest: The SHA-256 digest by which the manifest is verified. It is the digest of the checkpoint: it depends on
            the digests of all files.
    """

    summary: dict[str, JsonScalar]
    files: dict[str, FileEntry]
    digest: str


def check_summary(summary: Mapping[str, JsonScalar]) -> None:
    """Raise an error for a summary that JSON cannot hold, or whose known entries have other types.

    Raises:
        CheckpointError: It names the entry.
    """
    wrong = [f"{name}={value!r}" for name, value in summary.items() if not _fits(name, value)]
    if wrong:
        raise CheckpointError(
            "The summary of a checkpoint cannot be stored.",
            given=", ".join(wrong),
            expected="finite numbers and strings; run: str, sequence, update and epoch: int, complete: bool",
            do="Convert these entries.",
        )


def _fits(name: str, value: object) -> bool:
    kinds = (_KNOWN[name],) if name in _KNOWN else (bool, int, float, str, type(None))
    if isinstance(value, int | float) and name in _KNOWN and value < 0:
        return False
    return type(value) in kinds and not (type(value) is float and not math.isfinite(value))


def manifest_text(summary: Mapping[str, JsonScalar], files: Mapping[str, FileEntry], version: int) -> bytes:
    """Return the content of the manifest, which ends with the digest of itself with zeros for the digest.

    Args:
        summary: What the writer says about the checkpoint.
        files: The other files by name.
        version: The lowest version of the format that has what is in the files.
    """
    content = {
        "format": _FORMAT,
        "version": version,
        "summary": dict(summary),
        "files": {name: {"bytes": entry.bytes, "sha256": entry.sha256} for name, entry in files.items()},
        "manifest_sha256": _ZEROS.decode(),
    }
    text = json.dumps(content, indent=2, allow_nan=False).encode() + b"\n"
    return text.replace(_ZEROS, _sha256(text))


def read_manifest(directory: Path) -> Manifest:
    """Read and verify the manifest of a checkpoint.

    Raises:
        CheckpointError: There is none, or as ``parse_manifest``.
    """
    path = directory / MANIFEST
    try:
        if path.exists() and not path.is_file():  # from a FIFO, a read might never return
            raise damage(path, "not a regular file")
        text = path.read_bytes()
    except FileNotFoundError:
        raise damage(path, "nothing") from None
    except OSError as error:
        raise damage(path, f"text: reading it raised {type(error).__name__}: {error}") from error
    return parse_manifest(text, path)


def parse_manifest(text: bytes, path: Path) -> Manifest:
    """Verify the text of a manifest, and return what it says.

    Args:
        text: What is in the file.
        path: The file, for messages.

    Raises:
        CheckpointError: A byte of it is not as it was written, it does not have what a manifest has, or it is of a
            newer version.
    """
    try:
        loaded: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damage(path, f"text: reading it raised {type(error).__name__}: {error}") from error
    content = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
    digest = str(content.get("manifest_sha256"))
    written = digest.encode(errors="replace")
    if not _DIGEST.fullmatch(digest) or text.count(written) != 1 or _sha256(text.replace(written, _ZEROS)) != written:
        raise damage(path, f"a file for which its digest {digest[: len(_ZEROS)]} is wrong")
    if content.get("format") != _FORMAT:
        raise damage(path, f"the format {reprlib.repr(content.get('format'))}", f"the format {_FORMAT!r}")
    try:
        if content["version"] > LAST_VERSION:
            raise _newer_version(path.parent, content["version"])
        if content["version"] not in (FIRST_VERSION, LAST_VERSION):
            raise damage(path, f"the version {content['version']!r}", f"{FIRST_VERSION} or {LAST_VERSION}")
        return _from_dict(content, digest)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # of what no version has written
        raise damage(path, f"a wrong entry ({type(error).__name__}: {error})", "entries as they are written") from error


def _from_dict(content: dict[str, Any], digest: str) -> Manifest:
    summary, files = content["summary"], content["files"]
    if wrong := [name for name, value in summary.items() if not _fits(name, value)]:
        message = f"summary.{wrong[0]} is {reprlib.repr(summary[wrong[0]])}"
        raise ValueError(message)
    if wrong := [name for name in files if name in ("", os.pardir) or name != Path(name).name or "\0" in name]:
        message = f"a file called {wrong[0]!r}"
        raise ValueError(message)
    return Manifest(
        summary, {name: FileEntry(int(one["bytes"]), str(one["sha256"])) for name, one in files.items()}, digest
    )


def _newer_version(directory: Path, version: object) -> CheckpointError:
    return CheckpointError(
        "The checkpoint was written in a newer format than this version of pa-checkpoint can read.",
        given=f"{directory} in version {version} of the format",
        expected=f"version {LAST_VERSION} or lower",
        do="Install the version of pa-checkpoint that wrote it, or a newer one.",
    )


def has_manifest(directory: Path) -> bool:
    """Whether the directory has a pa-core manifest, valid or not."""
    path = directory / MANIFEST
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _FORMAT.encode() in file.read(_ENOUGH_TO_RECOGNIZE)
    except OSError:
        return False


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
