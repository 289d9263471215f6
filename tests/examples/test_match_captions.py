"""The example of contrastive training is the same on one process, on two, and with pieces of the model on each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import WAYS
from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "match_captions.py"


def metrics_of(output: str) -> list[str]:
    """The values of the last epoch, as they are printed."""
    return re.findall(r"^  (?:train|eval)_\w+ +(\S+)", output, re.MULTILINE)


def test_two_processes_contrast_the_pairs_of_both(launch: Launch, shared_launch: SharedLaunches) -> None:
    """Their metrics are those of one process, which has all pairs of a batch for itself."""
    two = shared_launch("match_captions", WAYS[1])
    assert two.status == 0
    one = launch(EXAMPLE, "--epochs=2")
    assert one.status == 0
    expected = [float(value) for value in metrics_of(one.output)]
    assert len(expected) == 3
    assert [float(value) for value in metrics_of(two.output)] == pytest.approx(expected, rel=1e-3)


@pytest.mark.whole_proof
def test_pieces_of_the_model_are_trained_alike(launch: Launch, shared_launch: SharedLaunches) -> None:
    """With FSDP2, two processes end with the metrics of two that have the whole model."""
    whole = shared_launch("match_captions", WAYS[1])
    shards = launch(EXAMPLE, "--epochs=2", "--shard", ranks=2)
    assert shards.status == 0
    expected = [float(value) for value in metrics_of(whole.output)]
    assert [float(value) for value in metrics_of(shards.output)] == pytest.approx(expected, rel=1e-3)
