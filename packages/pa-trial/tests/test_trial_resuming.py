"""A training that is continued from a checkpoint ends bit for bit as one that was never interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from pa_trial import InvalidCheckpointException
from pa_trial.collectives import rank
from tests.support.pa_trial.loaded import as_lists
from tests.support.pa_trial.resumable import Outcome, Resumable, fit

pytestmark = pytest.mark.runs_on("one_process", "two_ranks")


def different(whole: Outcome, resumed: Outcome) -> list[str]:
    """What is not the same on this process; callbacks of others than the chief go on from the chief's state."""
    names = [name for name in whole.states if as_lists(whole.states[name]) != as_lists(resumed.states[name])]
    return [name for name in names if rank() == 0 or name != "callback"]


@pytest.mark.parametrize(
    ("workers", "aggregation_frequency", "seed"),
    [(0, 1, None), (2, 2, 7), (0, 3, None)],
    ids=["every batch", "workers, in the middle of a group", "in the middle of a group"],
)
def test_a_resumed_training_ends_as_if_it_had_not_been_interrupted(
    shared_tmp_path: Path, workers: int, aggregation_frequency: int, seed: int | None
) -> None:
    """Models, optimizers, schedules, gradients, order and draws are the same, on each process."""
    settings = {"aggregation_frequency": aggregation_frequency, "seed": seed}
    whole = fit(shared_tmp_path / "whole", 15, workers=workers, settings=settings)
    begun = fit(shared_tmp_path / "parts", 15, stops_after=5, workers=workers, settings=settings)
    resumed = fit(shared_tmp_path / "parts", 15, begun.names[-1], workers=2 - workers, settings=settings)

    assert list(resumed.batches) == list(range(5, 15))
    assert {**begun.batches, **resumed.batches} == whole.batches
    assert different(whole, resumed) == []


class SkipsTheBody(Resumable):
    """Trains the body in the first batch of a group alone, so that nothing reaches it again before the step."""

    @override
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.body.requires_grad_(batch_idx % 2 == 0)
        return super().train_batch(batch, epoch_idx, batch_idx)


def test_gradients_that_no_later_batch_of_the_group_adds_to_are_not_lost(shared_tmp_path: Path) -> None:
    """They are collected, exchanged and stepped with, and which parameters are trained is restored, too."""
    settings = {"aggregation_frequency": 2, "seed": 3}
    whole = fit(shared_tmp_path / "whole", 10, trial_class=SkipsTheBody, settings=settings)
    begun = fit(shared_tmp_path / "parts", 10, stops_after=5, trial_class=SkipsTheBody, settings=settings)
    resumed = fit(shared_tmp_path / "parts", 10, begun.names[-1], trial_class=SkipsTheBody, settings=settings)

    assert different(whole, resumed) == []


def test_callbacks_go_on_from_the_state_of_the_chief(shared_tmp_path: Path) -> None:
    """Also on other processes, and with the types that it was saved with."""
    begun = fit(shared_tmp_path, 5)
    again = fit(shared_tmp_path, 5, begun.names[-1])
    assert (again.batches, again.names) == ({}, begun.names)  # long enough: no training, no checkpoint
    resumed = fit(shared_tmp_path, 6, begun.names[-1])
    loaded = resumed.trial.counting.loaded
    assert loaded is not None
    assert isinstance(loaded["array"], np.ndarray)
    assert isinstance(loaded["number"], np.float64)
    if rank() == 0:
        assert loaded["drawn"] == begun.trial.counting.drawn[: len(loaded["drawn"])]


def test_the_middle_of_a_group_cannot_be_continued_with_groups_of_another_size(shared_tmp_path: Path) -> None:
    """Which gradients belong together would not be known; nothing is loaded."""
    begun = fit(shared_tmp_path, 5, settings={"aggregation_frequency": 2})
    with pytest.raises(InvalidCheckpointException, match="in the middle of an aggregation group"):
        fit(shared_tmp_path, 10, begun.names[-1], settings={"aggregation_frequency": 3})
