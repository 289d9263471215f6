"""The trials among the examples learn in every way that a user can launch them, and one becomes a batch job."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

from tests.examples.ways import EXAMPLES, WAYS, launch_example
from tests.launching import Launch

PREEMPTED = """
import os, runpy, signal, sys
import pa_trial

batch, script = int(sys.argv.pop(1)), sys.argv[1]
step_optimizer = pa_trial.PyTorchTrialContext.step_optimizer

def terminate(context, *args, **kwargs):
    if context.current_train_batch() == batch and context.distributed.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    return step_optimizer(context, *args, **kwargs)

pa_trial.PyTorchTrialContext.step_optimizer = terminate
del sys.argv[0]
runpy.run_path(script, run_name="__main__")
"""

all_ways = pytest.mark.parametrize(
    "way", [*WAYS[:2], *(pytest.param(way, marks=pytest.mark.whole_proof) for way in WAYS[2:])]
)


@all_ways
def test_the_digits_are_recognised(way: str, tmp_path: Path) -> None:
    """Each validation is reported once, and the best checkpoint is kept beside the last one."""
    launched = launch_example("trials/trial_digits", "--epochs=3", way=way, folder=tmp_path)

    assert launched.status == 0
    reported = re.findall(r"Epoch (\d): recognised ([\d.]+)% of the validation digits", launched.output)
    assert [epoch for epoch, _ in reported] == ["1", "2", "3"]
    assert float(reported[-1][1]) >= 93
    assert list((tmp_path / "outputs" / "trial_digits").rglob("state_dict.pth"))


@all_ways
def test_the_generator_of_a_trial_comes_nearer_to_the_digits(way: str, tmp_path: Path) -> None:
    """The mean of what it makes; one that has learned nothing is 0.55 away."""
    launched = launch_example("trials/trial_gan", "--epochs=10", way=way, folder=tmp_path)

    assert launched.status == 0
    reported = re.findall(r"Epoch (\d+): the mean generated pixel is ([\d.]+) from", launched.output)
    assert [epoch for epoch, _ in reported] == ["5", "10"]
    assert float(reported[-1][1]) < 0.4


@all_ways
def test_each_digit_is_counted_once(way: str, tmp_path: Path) -> None:
    """After each epoch there is one line of metrics over all 297 digits, however many processes share them."""
    launched = launch_example("trials/trial_reducers", "--epochs=3", way=way, folder=tmp_path)

    assert launched.status == 0
    reported = re.findall(
        r"Of (\d+) digits, \d is recognised worst: ([\d.]+)%; the median confidence is ([\d.]+)", launched.output
    )
    assert [number for number, _, _ in reported] == ["297"] * 3
    assert float(reported[-1][1]) > 70
    assert 0.8 < float(reported[-1][2]) <= 1


@all_ways
def test_a_batch_job_is_tried_on_one_batch(way: str, tmp_path: Path) -> None:
    """Without the flag it ends at once, with a checkpoint after its only batch."""
    launched = launch_example("trials/trial_batch_job", way=way, folder=tmp_path)

    assert launched.status == 0
    assert len(list((tmp_path / "outputs" / "trial_batch_job").rglob("state_dict.pth"))) == 1


def newest_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of the newest checkpoint in a folder."""
    newest = max(folder.rglob("state_dict.pth"), key=os.path.getmtime)
    weights: dict[str, torch.Tensor] = torch.load(newest, weights_only=True)["models_state_dict"][0]
    return weights


def test_a_preempted_job_resumes_to_the_same_weights(launch: Launch) -> None:
    """SIGTERM in batch 30 ends it with status 75; it continues after that batch, and ends as one that is left alone."""
    job = EXAMPLES / "trials" / "trial_batch_job.py"
    preempted = launch(PREEMPTED, "30", str(job), "--job=preempted", "--epochs=2")
    resumed = launch(PREEMPTED, "30", str(job), "--job=preempted", "--epochs=2")  # which trains no batch 30 again
    undisturbed = launch(job, "--job=undisturbed", "--epochs=2")

    assert (preempted.status, resumed.status, undisturbed.status) == (75, 0, 0)
    expected = newest_weights(launch.folder / "undisturbed")
    for name, weights in newest_weights(launch.folder / "preempted").items():
        assert torch.equal(weights, expected[name]), name
