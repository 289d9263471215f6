"""Comparing what two runs have left behind: every sample that they trained on, and every bit that they ended with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import torch

from tests.crashes.recording import digest, outcome_path, samples_path

__all__ = ["Record", "differences", "first_step", "first_update", "samples_by_update"]

Batch: TypeAlias = dict[str, Any]
Sample: TypeAlias = tuple[int, list[float]]


@dataclass(frozen=True)
class Record:
    """What a complete run has left behind.

    Attributes:
        outcomes: By rank: digests of all parts of the run, as trained and in the end, and the number of updates.
        batches: By rank: the batches that it trained on, by their number; those that were trained on again after a
            resume are there once.
        contradictions: Batches that were not the same when they were trained on again.
        files: Digests of the files of the best model, and of the best average.
    """

    outcomes: list[dict[str, Any]]
    batches: list[dict[int, Batch]]
    contradictions: list[str]
    files: dict[str, str]

    @classmethod
    def read(cls, folder: Path, ranks: int) -> Self:
        """Read what the ranks of a run have written."""
        batches: list[dict[int, Batch]] = []
        contradictions: list[str] = []
        for rank in range(ranks):
            batches.append({})
            for batch in _lines(folder, rank):
                del batch["attempt"]
                first = batches[rank].setdefault(batch["batch"], batch)
                if first != batch:
                    contradictions.append(f"rank {rank} trained on {first} first, and on {batch} later")
        outcomes = [json.loads(outcome_path(folder, rank).read_text()) for rank in range(ranks)]
        paths = [folder / name for name in ("best.pt", "average.pt")]  # a loop of one's own has no average
        files = {path.name: digest(torch.load(path, weights_only=True)) for path in paths if path.exists()}
        return cls(outcomes, batches, contradictions, files)

    @property
    def updates(self) -> int:
        """The number of updates."""
        return int(self.outcomes[0]["updates"])


def differences(run: Record, reference: Record) -> list[str]:
    """Say in what a run differs from the one that was never interrupted; empty if in nothing."""
    found = list(run.contradictions)
    for rank, (ours, theirs) in enumerate(zip(run.outcomes, reference.outcomes, strict=True)):
        for part in ("as_trained", "in_the_end"):
            names = sorted(ours[part].keys() | theirs[part].keys())
            different = [name for name in names if ours[part].get(name) != theirs[part].get(name)]
            found += [f"rank {rank}: {name} {part.replace('_', ' ')}" for name in different]
        numbers = sorted(run.batches[rank].keys() | reference.batches[rank].keys())
        different = [str(one) for one in numbers if run.batches[rank].get(one) != reference.batches[rank].get(one)]
        if different:
            found.append(f"rank {rank}: samples of the batches {', '.join(different)}")
    if run.updates != reference.updates:
        found.append(f"{run.updates} updates instead of {reference.updates}")
    return found + [f"the file {name}" for name in reference.files if run.files.get(name) != reference.files[name]]


def samples_by_update(folder: Path, ranks: int) -> dict[tuple[int, int], list[Sample]]:
    """Return the samples of each update in their order over all ranks, however many there were in its last attempt.

    Args:
        folder: Where the run wrote.
        ranks: The highest number of ranks that it ever had.

    Returns:
        By epoch and update: the index of each sample, and what was drawn for it.
    """
    lines = [(batch, rank) for rank in range(ranks) for batch in _lines(folder, rank)]
    last_attempt: dict[tuple[int, int], int] = {}
    for batch, _ in lines:
        update = batch["epoch"], batch["update"]
        last_attempt[update] = max(batch["attempt"], last_attempt.get(update, 0))
    samples: dict[tuple[int, int], list[Sample]] = {update: [] for update in sorted(last_attempt)}
    for batch, _ in sorted(lines, key=lambda one: (one[0]["step"], one[1])):
        update = batch["epoch"], batch["update"]
        if batch["attempt"] == last_attempt[update]:
            samples[update] += zip(batch["indices"], batch["draws"], strict=True)
    return samples


def first_step(folder: Path, attempt: int) -> int:
    """Return the step of its epoch with which a start of the script has begun to train, on the first rank."""
    return next(int(batch["step"]) for batch in _lines(folder, rank=0) if batch["attempt"] == attempt)


def first_update(folder: Path, ranks: int, attempt: int) -> int | None:
    """Return the first update for which a start of the script has trained, None if it has not come to train."""
    paths = [samples_path(folder, rank) for rank in range(ranks)]
    lines = [batch for rank, path in enumerate(paths) if path.exists() for batch in _lines(folder, rank)]
    return min((batch["update"] for batch in lines if batch["attempt"] == attempt), default=None)


def _lines(folder: Path, rank: int) -> list[Batch]:
    return [json.loads(line) for line in samples_path(folder, rank).read_text().splitlines()]
