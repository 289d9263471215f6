"""Runs on files that are interrupted anywhere, and go on."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

from pa_core import CheckpointError
from pa_core.distributed import gather_objects
from tests.launching import Launch
from tests.support.pa_core.files import killed_run
from tests.support.pa_core.files.killed_run import NoteSamples, samples_of_updates, sharded_files, train
from tests.support.shards import write_json_lines

ROOT = Path(__file__).parents[4]
COUNTS = (5, 31, 1, 17, 40, 2, 24)  # 120 samples, ten updates an epoch


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_a_run_that_fails_anywhere_goes_on_with_the_same_samples(shared_tmp_path: Path) -> None:
    """Whatever the update in which runs fail, those that go on train on the samples that were to come, drawn alike."""
    ranks = gather_objects(os.environ.get("RANK", "0"))
    rank = os.environ.get("RANK", "0")
    if rank == "0":
        write_json_lines(shared_tmp_path / "data", COUNTS)
        for name in ("undisturbed", "disturbed"):
            (shared_tmp_path / name).mkdir()
    gather_objects(None)
    pattern = str(shared_tmp_path / "data" / "*.jsonl")
    whole = shared_tmp_path / "undisturbed"
    expected = train(sharded_files(pattern), whole, len(ranks), 0, NoteSamples(whole / f"seen_0_{rank}"))

    folder, choose = shared_tmp_path / "disturbed", random.Random(7)
    updates = sorted(choose.sample(range(1, 20), 4))
    for number, update in enumerate(updates):
        note = NoteSamples(folder / f"seen_{number}_{rank}", update)
        with pytest.raises(InterruptedError):
            train(sharded_files(pattern), folder, len(ranks), number % 2, note)
    weights = train(sharded_files(pattern), folder, len(ranks), 2, NoteSamples(folder / f"seen_last_{rank}"))
    gather_objects(None)

    assert torch.equal(weights, expected)
    seen = samples_of_updates(folder)
    assert seen == samples_of_updates(whole)
    for epoch in range(2):
        of_epoch = [sample[0] for update in range(10 * epoch, 10 * epoch + 10) for sample in seen[update]]
        assert sorted(of_epoch) == list(range(120))


def test_a_run_on_other_files_does_not_go_on(tmp_path: Path) -> None:
    """A state says which files the run was on, in which windows: with others it is refused, unless that is allowed."""
    pattern = write_json_lines(tmp_path / "data", (24, 24))
    data = sharded_files(pattern)
    with pytest.raises(InterruptedError):
        train(data, tmp_path, 1, 0, NoteSamples(tmp_path / "seen_0_0", 5))
    (tmp_path / "data" / "00.jsonl").rename(tmp_path / "data" / "02.jsonl")
    with pytest.raises(CheckpointError, match=r"order(.|\n)*shards-v1"):
        train(sharded_files(pattern), tmp_path, 1, 0, NoteSamples(tmp_path / "seen_1_0"))


@pytest.mark.whole_proof
@pytest.mark.timeout(1200)
def test_forty_kills_on_one_to_four_processes(launch: Launch, tmp_path: Path) -> None:
    """A run that is killed forty times, and goes on elsewhere each time, has trained on the samples of one process."""
    write_json_lines(tmp_path / "data", COUNTS)
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    choose = random.Random(11)

    def run(folder: Path, name: str, ranks: int, workers: int, after: int) -> int:
        folder.mkdir(exist_ok=True)
        arguments = str(folder), name, str(workers), str(after)
        return launch(Path(killed_run.__file__), *arguments, ranks=ranks, env=env).status

    assert run(tmp_path / "undisturbed", "whole", 1, 0, -1) == 0
    expected = samples_of_updates(tmp_path / "undisturbed")
    weights = torch.load(tmp_path / "undisturbed" / "weights.pt")
    for chain in range(8):
        folder = tmp_path / f"disturbed_{chain}"
        for number, update in enumerate(sorted(choose.sample(range(1, 20), 5))):
            assert run(folder, str(number), choose.randint(1, 4), choose.randint(0, 3), update) != 0
        assert run(folder, "last", choose.randint(1, 4), choose.randint(0, 3), -1) == 0
        assert samples_of_updates(folder) == expected
        torch.testing.assert_close(torch.load(folder / "weights.pt"), weights, rtol=0, atol=1e-12)
