import os
import subprocess

import torch
from torch import nn

from pa_core import DEFAULT_CALLBACKS, SaveTrainingStateCallback, Trainer, TrainingPreempted
from pa_core.testing import TinyClassifier, make_classification

SAMPLES_PER_UPDATE = 256


def main() -> None:
    model = TinyClassifier()
    save_states = SaveTrainingStateCallback("states", save_every_n_epochs=1, stop_on_signals=("SIGTERM",))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, [*DEFAULT_CALLBACKS, save_states])
    try:
        trainer.train(
            make_classification(2560),
            num_epochs=10,
            per_device_batch_size=SAMPLES_PER_UPDATE // trainer.num_processes,
            resume_from="states",
            resume_missing="start",
        )
    except TrainingPreempted:
        if trainer.is_main_process and "SLURM_JOB_ID" in os.environ:
            subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
        raise


if __name__ == "__main__":
    main()
