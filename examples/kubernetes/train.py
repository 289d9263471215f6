import os

import torch
from torch import nn

from pa_core import DEFAULT_CALLBACKS, SaveTrainingStateCallback, Trainer
from pa_core.testing import TinyClassifier, make_classification

STORE = os.environ.get("STORE")  # for example s3://my-bucket/train, if the machines share no folder


def main() -> None:
    model = TinyClassifier()
    save_states = SaveTrainingStateCallback(
        "states", save_every_n_epochs=1, max_checkpoints=3, upload_to=STORE, stop_on_signals=("SIGTERM",)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, [*DEFAULT_CALLBACKS, save_states])
    trainer.train(
        make_classification(2560),
        num_epochs=10,
        per_device_batch_size=64,
        samples_per_update=256,
        resume_from=STORE or "states",
        resume_missing="start",
    )


if __name__ == "__main__":
    main()
