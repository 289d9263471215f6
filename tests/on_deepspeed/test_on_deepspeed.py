"""DeepSpeed's engine trains like a plain trainer, whatever is killed; docs/deepspeed.md says so."""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.launching import Launch

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs DeepSpeed"),
]

SCRIPT = Path(__file__).with_name("script.py")
CLOSE = 1e-6
"""Twelve units in the last place of a weight near 1, in fp32."""

Job: TypeAlias = dict[str, Any]


def do(
    launch: Launch, jobs: list[Job], ranks: int, *, is_killed: bool = False, precision: str = "no"
) -> list[dict[str, Any]]:
    """Do jobs in a launch, and return what came of those that were not killed."""
    env = {"ACCELERATE_MIXED_PRECISION": precision}
    path = launch.folder / "jobs.json"
    path.write_text(json.dumps(jobs))
    launched = launch(SCRIPT, str(path), ranks=ranks, env=env, timeout=600)
    assert (launched.status != 0) == is_killed, launched.output
    words = (line.partition("RESULT ")[2] for line in launched.output.splitlines())
    return [json.loads(word) for word in words if word]


@pytest.mark.parametrize(
    ("ranks", "seeds"),
    [
        (2, range(6)),
        pytest.param(3, range(6, 16), marks=pytest.mark.whole_proof),
        pytest.param(2, range(16, 26), marks=pytest.mark.whole_proof),
        pytest.param(1, range(26, 30), marks=pytest.mark.whole_proof),
    ],
)
def test_the_engine_trains_like_a_plain_trainer(launch: Launch, ranks: int, seeds: range) -> None:
    """Weights, states, metrics and norms are those of a plain trainer, up to rounding, in any configuration."""
    for found in do(launch, [{"kind": "compare", "seed": seed} for seed in seeds], ranks):
        assert found["weights"] < CLOSE, found
        assert found["metrics"] < CLOSE, found
        assert found["states"] < CLOSE, found


class Kills:
    """Runs on two processes of which some are killed, each uninterrupted once.

    Args:
        number: The number of runs.
        folder: The folder of their states.
    """

    def __init__(self, number: int, folder: Path) -> None:
        self.folder = folder
        draw = random.Random(0)
        self.jobs: list[Job] = []
        self.kills: list[Job] = []
        for seed in range(number):
            changes: Job = {"samples": 61, "per_device": 3, "per_update": 18}
            if seed % 2:  # others are also resumed on another number of processes, which draws other numbers
                changes |= {"dropout": 0.2}
            job = {"kind": "run", "seed": seed, "changes": changes}
            self.jobs.append(job)
            kill = {"kill_at": draw.randint(3, 7), "rank": draw.choice([None, 0, 1])}
            self.kills.append({**job, **kill, "folder": str(folder / str(seed))})

    def uninterrupted(self, launch: Launch, precision: str) -> list[str]:
        """Make each run without a kill, and return digests of its weights, states and metrics."""
        jobs = [{**job, "weights": self.weights(seed)} for seed, job in enumerate(self.jobs)]
        return [found["digest"] for found in do(launch, jobs, 2, precision=precision)]

    def killed(self, launch: Launch, precision: str) -> list[str]:
        """Make each run with a kill, resume it in the launch that kills the next run, and return the digests."""
        digests: list[str] = []
        for seed in range(len(self.jobs) + 1):
            jobs = [{**job, "folder": str(self.folder / str(seed - 1))} for job in self.jobs[seed - 1 : seed]]
            jobs += self.kills[seed : seed + 1]
            found = do(launch, jobs, 2, is_killed=seed < len(self.jobs), precision=precision)
            digests += [one["digest"] for one in found]
            if seed < len(self.jobs):
                shutil.copytree(self.folder / str(seed), self.folder / f"{seed}_killed")
        return digests

    def copied(self, seed: int, name: str, **changes: Any) -> Job:
        """Return the job that resumes a copy of a run, compared with the uninterrupted run."""
        job, folder = self.jobs[seed], self.folder / f"{seed}_{name}"
        shutil.copytree(self.folder / f"{seed}_killed", folder)
        return {**job, "changes": {**job["changes"], **changes}, "folder": str(folder), "expected": self.weights(seed)}

    def weights(self, seed: int) -> str:
        """Return the file of the weights of the uninterrupted run."""
        return str(self.folder / f"{seed}.pt")


@pytest.mark.parametrize("number", [3, pytest.param(15, marks=pytest.mark.whole_proof)])
def test_killed_runs_resume_bit_for_bit_and_anywhere(launch: Launch, tmp_path: Path, number: int) -> None:
    """A killed run is identical on as many processes, and the same up to rounding on others and without DeepSpeed."""
    runs = Kills(number, tmp_path)
    digests = runs.uninterrupted(launch, "no")
    assert runs.killed(launch, "no") == digests

    elsewhere = range(0, number, 2)
    on_three = do(launch, [runs.copied(seed, "three") for seed in elsewhere[:5]], 3)
    on_one = do(launch, [runs.copied(seed, "one") for seed in elsewhere[-5:]], 1)
    plain = do(launch, [runs.copied(seed, "plain", stage=0) for seed in elsewhere], 2)
    other_stage = do(launch, [runs.copied(seed, "other", stage=1 + (seed + 1) % 3) for seed in elsewhere[:3]], 2)
    for found in (*on_three, *on_one, *plain, *other_stage):
        assert found["weights"] < CLOSE, found
    assert not any(found["imported"] for found in (*on_one, *plain))


@pytest.mark.parametrize("number", [1, pytest.param(5, marks=pytest.mark.whole_proof)])
def test_killed_runs_in_bf16_resume_bit_for_bit(launch: Launch, tmp_path: Path, number: int) -> None:
    """A killed run that computes in bf16 is identical on as many processes."""
    runs = Kills(number, tmp_path)
    assert runs.killed(launch, "bf16") == runs.uninterrupted(launch, "bf16")
