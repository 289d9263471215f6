"""A training that is continued from a checkpoint ends bit for bit as one that was never interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typing_extensions import override

from pa_trial import Batch, Epoch
from tests.pa_trial.resumable import Resumable, fit


def same(first: Any, second: Any) -> bool:
    """Whether two states are equal to the last bit."""
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return isinstance(first, Tensor) and isinstance(second, Tensor) and torch.equal(first, second)
    if isinstance(first, np.ndarray):
        return bool(np.array_equal(first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("aggregation_frequency", [1, 2])
@pytest.mark.parametrize("seed", [None, 7])
def test_a_resumed_training_ends_as_if_it_had_not_been_interrupted(
    tmp_path: Path, workers: int, aggregation_frequency: int, seed: int | None
) -> None:
    """Models, optimizers, schedules, draws, order and the state of the chief's callback, also in the middle of a group."""
    settings = {"aggregation_frequency": aggregation_frequency, "seed": seed}
    torch.manual_seed(5)
    whole = fit(tmp_path / "whole", 15, workers=workers, settings=settings)
    torch.manual_seed(5)
    begun = fit(tmp_path / "parts", 5, workers=workers, settings=settings)
    first = {index: begun.batches[index] for index in range(5)}
    resumed = fit(tmp_path / "parts", 15, begun.names[-1], workers=2 - workers, settings=settings)

    assert list(resumed.batches) == list(range(5, 15))
    assert {**first, **resumed.batches} == whole.batches
    assert [name for name in whole.states if not same(whole.states[name], resumed.states[name])] == []
