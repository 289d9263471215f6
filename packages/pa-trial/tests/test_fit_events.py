"""What happens in the course of a training, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from torch.utils.data import BatchSampler
from typing_extensions import override

from pa_trial import Batch, DataLoader, Epoch
from tests.support.trials import TinyTrial, fit, fit_and_fail, returning, samples, variant

pytestmark = pytest.mark.runs_on("one_process", "two_ranks")

EVENTS: dict[str, tuple[dict[str, Any], str]] = {
    "workloads, validations and checkpoints of periods of their own": (
        {"max_length": Batch(10), "validation_period": Epoch(1), "checkpoint_period": Batch(3)},
        "W3 C3 W4 V4 W6 C6 W8 V8 W9 C9 W10 V10 C10",
    ),
    "a validation after every batch": (
        {"max_length": Epoch(2), "validation_period": Batch(0)},
        "W1 V1 W2 V2 W3 V3 W4 V4 W5 V5 W6 V6 W7 V7 W8 V8 C8",
    ),
    "schedules": (
        {"max_length": Epoch(3), "validation_period": Epoch([1, 3]), "checkpoint_period": Batch([2, 5, 99])},
        "W2 C2 W4 V4 W5 C5 W12 V12 C12",
    ),
    "a checkpoint after every validation": (
        {"max_length": Batch(6), "validation_period": Batch(4), "checkpoint_policy": "all"},
        "W4 V4 C4 W6 V6 C6",
    ),
    "a report cuts workloads": ({"max_length": Batch(6), "reporting_period": Epoch(1)}, "W4 W6 V6 C6"),
    "the last checkpoint before the last validation": (
        {"max_length": Epoch(1), "checkpoint_period": Epoch(1), "reporting_period": Batch(3)},
        "W3 W4 C4 V4",
    ),
    "a checkpoint after the last validation by policy, though one was due before": (
        {"max_length": Epoch(1), "checkpoint_period": Epoch(1), "checkpoint_policy": "all"},
        "W4 C4 V4",
    ),
    "nothing to train": ({"max_length": Batch(0)}, ""),
    "one batch": ({"max_length": Epoch(5), "test_mode": True}, "W1 V1 C1"),
    "one batch, with a policy": ({"max_length": Epoch(5), "test_mode": True, "checkpoint_policy": "all"}, "W1 V1 C1"),
    "a validation before the training": (
        {"max_length": Batch(2), "step_zero_validation": True, "checkpoint_policy": "all"},
        "V0 W2 V2 C2",
    ),
    "no period": ({"max_length": Epoch(2)}, "W8 V8 C8"),
}


@pytest.mark.parametrize("name", EVENTS)
def test_events(name: str, shared_tmp_path: Path) -> None:
    """W: a workload ends, V: a validation ends, C: a checkpoint is complete; the number: batches done by then."""
    asked, expected = EVENTS[name]
    assert " ".join(fit(TinyTrial, shared_tmp_path, **asked).notes.events) == expected


class Batches:
    """Indices of four batches, which it does not count."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3], [4, 5], [6, 7]])


class WithoutLength(TinyTrial):
    """Its epochs never end, as nothing tells how long they are; it stops by itself."""

    @override
    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(samples(), batch_sampler=cast("BatchSampler", Batches()))

    @override
    def before_batch(self, batch_idx: int) -> None:
        self.context.set_stop_requested(batch_idx == 9)


def test_epochs_without_a_length_never_end(shared_tmp_path: Path) -> None:
    """A length in epochs is warned of, as it is never reached."""
    asked: dict[str, Any] = {"max_length": Epoch(1), "reporting_period": Batch(5), "validation_period": Epoch(1)}
    with pytest.warns(UserWarning, match="is never reached"):
        trial = fit(WithoutLength, shared_tmp_path, **asked)
    assert trial.notes.events == ["W5", "W10", "C10"]
    assert {epoch_idx for epoch_idx, _ in trial.trained} == {0}


@pytest.mark.parametrize("returned", [None, [1.0], 0.5, "loss"])
def test_what_a_batch_must_return(returned: Any, shared_tmp_path: Path) -> None:
    """Metrics by name, or one tensor: the rest is refused."""
    returns = variant(TinyTrial, train_batch=returning(returned))
    _, error = fit_and_fail(
        returns,
        shared_tmp_path,
        TypeError,
        r'train_batch returned no metrics(.|\n)*Return {"loss": loss}',
        max_length=Batch(1),
    )
    assert isinstance(error, AttributeError)
