"""Copies of tensors in memory of the host that is used again and again."""

from __future__ import annotations

from collections.abc import Mapping

from pa_core.storage.encoding import Encoded

__all__ = ["HostPool"]


class HostPool:
    """Buffers in the host's memory that take a snapshot of tensors, the same ones for every snapshot.

    A snapshot is overwritten by the next one: have whatever reads it finish first (``BackgroundWriter.wait``).
    """

    def copy(self, encoded: Mapping[str, Encoded]) -> dict[str, Encoded]:
        """Copy all tensors; those that share their memory share it in the copy as well.

        Returns when the copies are complete, so the originals may change at once.
        """
        raise NotImplementedError
