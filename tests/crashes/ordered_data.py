"""What the script trains on where the samples do not just come shuffled: orders that are given, or that data bring."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from pa_data.files import JsonLines, ShardedFiles
from pa_data.orders import Mixture, Order, TokenBudget, Weighted

__all__ = ["KINDS", "augment", "order_of", "ordered_data"]

Sample: TypeAlias = tuple[Tensor, int, int, Tensor]

KINDS = ("weighted", "token budget", "mixture", "sharded files")
SHARES = 0.1, 0.6, 1.0  # of the samples that are in the first shard, and in the first two


def augment(inputs: Tensor, target: int, index: int) -> Sample:
    """Change the inputs by a draw from each of the three random streams; return them with the draws."""
    draws = torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))])
    inputs = inputs + 0.3 * draws.sum()
    inputs[target] += 0.5
    return inputs, target, index, draws


def ordered_data(kind: str | None, data: Dataset[Sample], plain: list[dict[str, Any]], folder: Path) -> Dataset[Sample]:
    """Return the dataset to train on.

    Args:
        kind: One of `KINDS`; None for what is trained on by default.
        data: What is trained on by default.
        plain: Its samples before they are changed: their inputs, targets and numbers.
        folder: Where files may be written.
    """
    if kind == "mixture":
        rare = torch.utils.data.Subset(data, range(7))
        return Mixture({"all": data, "rare": rare}, weights={"all": 2, "rare": 1}, num_samples=len(plain))
    if kind == "sharded files":
        return _sharded_files(plain, folder / "shards")
    return data


def order_of(kind: str | None, num_samples: int) -> Order | None:
    """Return the order that the script passes; None where there is none, or the data bring one."""
    if kind == "weighted":
        return Weighted(1.0 + torch.arange(num_samples) % 3)
    if kind == "token budget":
        # Batches of six and of four: none of one sample, of which BatchNorm knows no variance.
        lengths = 4 + 2 * (torch.arange(num_samples) >= 32)
        return TokenBudget(lengths, max_tokens=24)
    return None


def _sharded_files(plain: list[dict[str, Any]], folder: Path) -> Dataset[Sample]:
    if not folder.exists():
        _write_shards(plain, folder)
    return ShardedFiles(f"{folder}/*.jsonl", JsonLines(), transform=_of_line, window=20, lanes=2, block=4)


def _write_shards(plain: list[dict[str, Any]], folder: Path) -> None:
    """Write all shards or none: another process may do the same, and each of them may be killed."""
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
    ends = [round(share * len(plain)) for share in SHARES]
    for number, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        lines = "".join(json.dumps(sample) + "\n" for sample in plain[start:stop])
        (unfinished / f"{number}.jsonl").write_text(lines)
    with suppress(OSError):  # another process was first
        unfinished.rename(folder)
    shutil.rmtree(unfinished, ignore_errors=True)


def _of_line(line: dict[str, Any]) -> Sample:
    return augment(torch.tensor(line["inputs"]), line["target"], line["index"])
