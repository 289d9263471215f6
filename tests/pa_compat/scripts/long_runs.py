"""Runs that are interrupted and go on, and a schedule that gives a finished model on the way."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: D102, D103, T201

from contextlib import suppress
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import TensorDataset

from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import SaveTrainingStateCallback, TrainerCallback, WSDCheckpointCallback
from pytorch_accelerated.schedulers.wsd_scheduler import WSDLrScheduler


class PowerFailure(TrainerCallback):
    """Ends the third epoch with an exception."""

    def on_train_epoch_end(self, trainer, **kwargs):
        if trainer.run_history.current_epoch == 3:
            raise RuntimeError("no power")


def digits():
    scanned = load_digits()
    return TensorDataset(torch.tensor(scanned.data, dtype=torch.float32)[:640] / 16, torch.tensor(scanned.target)[:640])


def create_trainer(*callbacks):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return Trainer(model, nn.CrossEntropyLoss(), optim.Adam(model.parameters(), lr=0.01), callbacks=callbacks)


def train(trainer, per_device_batch_size, num_epochs=4, **kwargs):
    torch.manual_seed(1)
    trainer.train(digits(), num_epochs=num_epochs, per_device_batch_size=per_device_batch_size, **kwargs)
    return [float(loss) for loss in trainer.run_history.get_metric_values("train_loss_epoch")]


def interrupted_run(per_device_batch_size):
    whole = create_trainer()
    losses_of_whole = train(whole, per_device_batch_size)
    save = SaveTrainingStateCallback("training_states", save_every_n_epochs=1, save_at_end=False)
    with suppress(RuntimeError):
        train(create_trainer(save, PowerFailure), per_device_batch_size)
    resumed = create_trainer()
    losses = train(resumed, per_device_batch_size, resume_from="training_states")
    same = all(torch.equal(*pair) for pair in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))
    return {"whole": losses_of_whole, "resumed": losses, "same_weights": same}


def decaying_run(per_device_batch_size):
    trainer = create_trainer(WSDCheckpointCallback(save_dir="checkpoints"))
    schedule = WSDLrScheduler.create_scheduler_fn(decay_phase_ratio=0.25, num_warmup_epochs=0, num_checkpoints=2)
    losses = train(trainer, per_device_batch_size, create_scheduler_fn=schedule)
    first_decay = trainer.scheduler.get_decay_info()[0]["pre_decay_step"]
    saved = sorted(path.name for path in Path("checkpoints").glob("checkpoint_*"))
    longer = create_trainer(
        WSDCheckpointCallback(
            save_dir="later_checkpoints", initial_checkpoint=f"checkpoints/checkpoint_{first_decay}_wsd_pre_decay"
        )
    )
    continuation = WSDLrScheduler.create_scheduler_fn(decay_phase_ratio=0.25, is_continuation_from_checkpoint=True)
    losses_after = train(longer, per_device_batch_size, num_epochs=2, create_scheduler_fn=continuation)
    return {"losses": losses, "saved": saved, "losses_after": losses_after}


def main(per_device_batch_size=32):
    return {"interrupted": interrupted_run(per_device_batch_size), "decaying": decaying_run(per_device_batch_size)}


if __name__ == "__main__":
    print(main())
