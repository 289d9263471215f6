"""The trial that becomes a batch job by one flag is tried in a moment, preempted, and resumed to the same weights."""

from __future__ import annotations

import os
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


def newest_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of the newest checkpoint in a folder."""
    newest = max(folder.rglob("state_dict.pth"), key=os.path.getmtime)
    weights: dict[str, torch.Tensor] = torch.load(newest, weights_only=True)["models_state_dict"][0]
    return weights


@pytest.mark.parametrize("way", WAYS)
def test_it_is_tried_on_one_batch(way: str, tmp_path: Path) -> None:
    """Without the flag it ends at once, with a checkpoint after its only batch."""
    launched = launch_example("trials/trial_batch_job", way=way, folder=tmp_path)

    assert launched.status == 0
    assert len(list((tmp_path / "outputs" / "trial_batch_job").rglob("state_dict.pth"))) == 1


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
