"""What is on disk: files and training states that are either whole or absent, and nothing that runs code when read.

Usable without a trainer. A training state is a directory, described in ``docs/training-state-format.md``.
"""

from __future__ import annotations

from pa_core.storage.atomic_file import atomic_write
from pa_core.storage.background import BackgroundWriter, HostPool
from pa_core.storage.encoding import Encoded, JsonScalar, JsonValue, decode, encode
from pa_core.storage.plain_values import ensure_plain
from pa_core.storage.state import State, is_state, read_state, write_state
from pa_core.storage.state_folder import Skipped, StateFolder, StateRecord, newest_valid, states_to_remove

__all__ = [
    "BackgroundWriter",
    "Encoded",
    "HostPool",
    "JsonScalar",
    "JsonValue",
    "Skipped",
    "State",
    "StateFolder",
    "StateRecord",
    "atomic_write",
    "decode",
    "encode",
    "ensure_plain",
    "is_state",
    "newest_valid",
    "read_state",
    "states_to_remove",
    "write_state",
]
