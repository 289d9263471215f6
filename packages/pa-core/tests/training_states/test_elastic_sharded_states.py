"""A run is killed again and again, and goes on on another number of processes each time, sharded or not."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from tests.launching import Launch
from tests.support.pa_core.training_states import elastic_run

pytestmark = [pytest.mark.whole_proof, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[4]
NEVER = 100


def samples_of_updates(folder: Path) -> dict[int, list[int]]:
    """The numbers of the samples of each update on all processes."""
    seen: defaultdict[int, list[int]] = defaultdict(list)
    for file in folder.glob("seen_*"):
        for update, numbers in json.loads(file.read_text()).items():
            seen[int(update)] += numbers
    return {update: sorted(numbers) for update, numbers in seen.items()}


def test_a_run_ends_the_same_on_whatever_number_of_processes_it_goes_on(launch: Launch, tmp_path: Path) -> None:
    """From 2 sharded processes to 1, to 3, to 2 groups of 2, to 2, and to 2 replicated ones: each sample once."""
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}

    def run(name: str, ranks: int, kind: str, updates: int) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        arguments = str(tmp_path / name), kind, str(updates)
        assert launch(Path(elastic_run.__file__), *arguments, ranks=ranks, env=env).status == 0

    run("undisturbed", 2, "sharded", NEVER)
    for ranks, kind, updates in (
        (2, "sharded", 3),
        (1, "plain", 7),
        (3, "sharded", 11),
        (4, "replicated", 13),
        (2, "sharded", 16),
        (2, "plain", NEVER),
    ):
        run("elastic", ranks, kind, updates)

    seen = samples_of_updates(tmp_path / "elastic")
    assert seen == samples_of_updates(tmp_path / "undisturbed")
    for epoch in range(2):
        of_epoch = [number for update in range(10 * epoch, 10 * epoch + 10) for number in seen[update]]
        assert sorted(of_epoch) == list(range(elastic_run.SAMPLES))
    weights, expected = (torch.load(tmp_path / name / "weights.pt") for name in ("elastic", "undisturbed"))
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)
