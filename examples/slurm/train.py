import os
import subprocess
from pathlib import Path

import torch
from torch import nn

from pa_core import DEFAULT_CALLBACKS, SaveTrainingStateCallback, Trainer, TrainingPreempted
from pa_core.testing import TinyClassifier, make_classification

ARRAY, TASK = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID", "")
JOB = f"{ARRAY}_{TASK}" if ARRAY else os.environ.get("SLURM_JOB_ID")
STATES = Path("states", TASK)  # each task of an array has its own


def main() -> None:
    model = TinyClassifier()
    save_states = SaveTrainingStateCallback(STATES, save_every_n_epochs=1, stop_on_signals=("SIGTERM",))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, [*DEFAULT_CALLBACKS, save_states])
    try:
        trainer.train(
            make_classification(2560),
            num_epochs=10,
            per_device_batch_size=64,
            samples_per_update=256,
            resume_from=STATES,
            resume_missing="start",
        )
    except TrainingPreempted:
        if trainer.is_main_process and JOB:
            requeue(JOB)
        raise


def requeue(job: str) -> None:
    """Let Slurm start the job again, unless it ends because its user has cancelled it."""
    asked = subprocess.run(["squeue", "-h", "-j", job, "-o", "%T"], capture_output=True, text=True, check=True)
    if asked.stdout.strip() == "RUNNING":
        subprocess.run(["scontrol", "requeue", job], check=True)


if __name__ == "__main__":
    main()
