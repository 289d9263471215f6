"""Damaged training states, made by generators: files that were cut or changed, and documents written wrong."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST, DOCUMENTS = "manifest.json", "state.json"
EVERY = 97  # bytes between two lengths to which a file is cut


@dataclass(frozen=True)
class Damage:
    """One file of a state with another content, and what was done to it."""

    what: str
    file: str
    content: bytes

    def apply(self, state: Path) -> None:
        """Replace the file."""
        (state / self.file).write_bytes(self.content)


def truncations(state: Path) -> Iterator[Damage]:
    """Every file, cut at every 97th byte and before its last one."""
    for path in sorted(state.iterdir()):
        whole = path.read_bytes()
        for length in [*range(0, len(whole), EVERY), len(whole) - 1]:
            yield Damage(f"{path.name} cut to {length} bytes", path.name, whole[:length])


def flipped_bits(state: Path, number: int, seed: int = 0) -> Iterator[Damage]:
    """One bit of one file flipped, each bit of the state as likely as any other."""
    files = {path.name: path.read_bytes() for path in sorted(state.iterdir())}
    draw = random.Random(seed)
    for _ in range(number):
        bit = draw.randrange(8 * sum(map(len, files.values())))
        for name, whole in files.items():
            if bit < 8 * len(whole):
                changed = bytearray(whole)
                changed[bit // 8] ^= 1 << bit % 8
                yield Damage(f"bit {bit} of {name} flipped", name, bytes(changed))
                break
            bit -= 8 * len(whole)


Path_ = tuple[str | int, ...]
"""Where something stands in a JSON document."""


@dataclass(frozen=True)
class Craft:
    """A JSON document that somebody wrote who wants it to be believed: its digests are right.

    Attributes:
        path: What was changed.
        what: How, in words.
        document: The whole document.
    """

    path: Path_
    what: str
    document: Any

    @property
    def name(self) -> str:
        """The part and the change."""
        return f"{'.'.join(map(str, self.path))}: {self.what}"

    def apply_to_manifest(self, state: Path) -> None:
        """Put it in the place of the manifest, with a digest of its own that fits."""
        (state / MANIFEST).write_bytes(with_own_digest(self.document))


WRONG: dict[type, list[Any]] = {
    bool: [None, "yes", 3, [], {}],
    int: [None, "ten", -1, 0.5, 10**30, [], {}, {"$float": "nan"}, {"$tensor": "nothing"}],
    float: [None, "ten", [], {}, {"$float": "inf"}, {"$bytes": "%"}],
    str: [None, 3, "", "other", [], {"$str": "%"}],
    list: [None, {}, "text", 3, [], [None], {"$tuple": [[]]}],
    dict: [None, [], "text", 3, {}, {"$tomorrow": 1}, {"$dict": [[1]]}],
    type(None): ["text", -1, [], {}],
}
"""By the type that a value has in JSON, what may stand in its place."""

_SHOWN_ITEMS = 3


def crafted(document: Any) -> list[Craft]:
    """Return the document with each of its entries replaced, left out or doubled; of long lists, the ends."""
    return [
        Craft(path, what, changed)
        for path, value in _entries(document, ())
        for what, changed in _changes(document, path, value)
    ]


def sample_of(crafts: Iterable[Craft], number: int, seed: int = 0) -> list[Craft]:
    """Choose some of them, so that each part of the document has its share."""
    by_part: defaultdict[str, list[Craft]] = defaultdict(list)
    for one in crafts:
        by_part[".".join(map(str, one.path[:2]))].append(one)
    draw = random.Random(seed)
    for crafts_of_part in by_part.values():
        draw.shuffle(crafts_of_part)
    chosen: list[Craft] = []
    while len(chosen) < number and any(by_part.values()):
        for crafts_of_part in by_part.values():
            if crafts_of_part and len(chosen) < number:
                chosen.append(crafts_of_part.pop())
    return chosen


def _entries(value: Any, path: Path_) -> Iterator[tuple[Path_, Any]]:
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _entries(item, (*path, key))
    elif isinstance(value, list):
        indices = range(len(value)) if len(value) <= _SHOWN_ITEMS else (0, len(value) - 1)
        for index in indices:
            yield from _entries(value[index], (*path, index))


def _changes(document: Any, path: Path_, value: Any) -> Iterator[tuple[str, Any]]:
    for wrong in WRONG[type(value)]:
        if wrong != value:
            yield f"{json.dumps(wrong)} instead of a {type(value).__name__}", _replaced(document, path, wrong)
    changed = copy.deepcopy(document)
    parent = _at(changed, path[:-1])
    del parent[path[-1]]
    yield "left out", changed


def _replaced(document: Any, path: Path_, value: Any) -> Any:
    changed = copy.deepcopy(document)
    _at(changed, path[:-1])[path[-1]] = value
    return changed


def _at(document: Any, path: Path_) -> Any:
    for step in path:
        document = document[step]
    return document


def with_own_digest(manifest: Any) -> bytes:
    """Return a manifest as text, with the digest of itself if it has a place for one."""
    zeros = "0" * 64
    if isinstance(manifest, dict) and isinstance(manifest.get("manifest_sha256"), str):
        manifest = {**manifest, "manifest_sha256": zeros}
    text = json.dumps(manifest).encode()
    return text.replace(zeros.encode(), hashlib.sha256(text).hexdigest().encode())


def fit_digests(state: Path) -> None:
    """Write a manifest that fits the files as they are now."""
    manifest = json.loads((state / MANIFEST).read_bytes())
    for name, entry in manifest["files"].items():
        content = (state / name).read_bytes()
        entry.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    (state / MANIFEST).write_bytes(with_own_digest(manifest))
