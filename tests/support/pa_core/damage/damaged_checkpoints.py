"""Damaged checkpoint files, made by generators: files that were cut or changed, and such as grow in memory."""

from __future__ import annotations

import importlib
import io
import random
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from typing_extensions import override

EVERY = 97  # bytes between two lengths to which a file is cut
HUGE = 10**9  # elements


class Damage(NamedTuple):
    """The content of a file, and what was done to it."""

    what: str
    content: bytes

    @override
    def __repr__(self) -> str:
        return self.what


def truncations(whole: bytes) -> Iterator[Damage]:
    """A file cut at every 97th byte, and before its last one."""
    for length in (*range(0, len(whole), EVERY), len(whole) - 1):
        yield Damage(f"cut to {length} bytes", whole[:length])


def flipped_bits(whole: bytes, number: int, seed: int = 0) -> Iterator[Damage]:
    """One bit flipped, anywhere."""
    draw = random.Random(seed)
    for _ in range(number):
        byte, bit = draw.randrange(len(whole)), draw.randrange(8)
        changed = bytearray(whole)
        changed[byte] ^= 1 << bit
        yield Damage(f"bit {bit} of byte {byte} flipped", bytes(changed))


def flipped_bits_of_tensors(whole: bytes) -> Iterator[Damage]:
    """One bit flipped in each tensor, where only the checksum tells."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        contents = {one.filename: archive.read(one) for one in archive.infolist()}
    for name, content in contents.items():
        if "/data/" in name and whole.count(content) == 1:
            changed = bytearray(whole)
            changed[whole.index(content)] ^= 1
            yield Damage(f"the first bit of {name} flipped", bytes(changed))


def growing(states: dict[str, Any]) -> Iterator[Damage]:
    """Files of a few kilobytes, with right checksums, that ask for more memory than they have bytes."""
    storage = torch.zeros(1).untyped_storage()
    whole = saved({**states, "entry": torch.ones(3)})
    yield Damage("a tensor larger than its storage", saved({**states, "entry": Larger(storage)}))
    yield Damage("a storage larger than its record", rewritten(whole, lambda one: enlarged(one, 3, HUGE)))
    yield Damage(
        "compressed zeros", rewritten(saved({**states, "entry": bytes(10**8)}), compression=zipfile.ZIP_DEFLATED)
    )


class Larger:
    """A tensor that is said to be larger than its storage."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        functions: Any = importlib.import_module("torch._utils")
        return functions._rebuild_tensor_v2, (self._storage, 0, (HUGE,), (1,), False, OrderedDict())


def saved(content: object) -> bytes:
    """What torch.save writes."""
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def rewritten(
    whole: bytes, change: Callable[[bytes], bytes] = lambda pickled: pickled, compression: int = zipfile.ZIP_STORED
) -> bytes:
    """The same records, but for the pickled part, with right checksums."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as archive, zipfile.ZipFile(file, "w", compression) as changed:
        for record in archive.infolist():
            content = archive.read(record)
            changed.writestr(record.filename, change(content) if record.filename.endswith("data.pkl") else content)
    return file.getvalue()


def enlarged(pickled: bytes, elements: int, more: int) -> bytes:
    """The last storage of so many elements with more, in the opcodes of a pickle."""
    before, found, after = pickled.rpartition(b"K" + bytes([elements]) + b"tq")
    assert found
    return before + b"J" + more.to_bytes(4, "little") + b"tq" + after
