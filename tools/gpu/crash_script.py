"""A training that is killed, started again and compared: `python -m tools.gpu.crash_script FOLDER MODE [KILL_AT]`.

Everything that a resumed run has to know is in it: draws of the device by dropout, running statistics, AdamW, a
schedule, a moving average, an evaluation after each epoch, and in fp16 a scale that changes every few updates.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_callbacks_extra import ModelEmaCallback
from pa_core import AnyTrainer, SaveTrainingStateCallback, Trainer, TrainerCallback

EPOCHS, UPDATES = 2, 20
SAVE_EVERY = 4


class Watch(TrainerCallback):
    """Kills the process after an update, and notes with which update the run went on."""

    def __init__(self, kill_at: int | None) -> None:
        self.kill_at = kill_at
        self.resumed_at: int | None = None

    @override
    def on_train_step_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if self.resumed_at is None:
            self.resumed_at = trainer.num_updates_completed

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class ScalingTrainer(Trainer[nn.Module, Any]):
    """Begins with a scale that overflows, so that updates are skipped, and raises it every few updates."""

    @override
    def create_accelerator(self) -> Any:
        from accelerate import Accelerator
        from accelerate.utils import GradScalerKwargs

        return Accelerator(kwargs_handlers=[GradScalerKwargs(init_scale=2.0**21, growth_interval=7)])


def make_model() -> nn.Module:
    """A small network of layers whose kernels differ between precisions."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 64),
        nn.LayerNorm(64),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
    )


def main(folder: Path, mode: str, kill_at: int | None) -> None:
    """Train, or go on training, and write what came out of it."""
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")  # which lets processes share a device
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    states = folder / "states"
    precision: Literal["no", "bf16", "fp16"] = "bf16" if "bf16" in mode else "fp16" if "fp16" in mode else "no"
    torch.manual_seed(1 if not states.exists() else 2)  # a resumed run needs nothing of what the script draws
    generator = torch.Generator().manual_seed(0)
    samples = 8 * UPDATES * ranks
    data = TensorDataset(
        torch.rand(samples, 3, 16, 16, generator=generator), torch.randint(10, (samples,), generator=generator)
    )
    model = make_model()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    watch, average = Watch(kill_at), ModelEmaCallback(decay=0.9, save_path=folder / "average.pt")
    save = SaveTrainingStateCallback(
        states, save_every_n_steps=SAVE_EVERY, asynchronous=mode == "bf16, in the background"
    )
    trainer = (ScalingTrainer if precision == "fp16" else Trainer)(
        cast("nn.Module", torch.compile(model)) if "compiled" in mode else model,
        nn.CrossEntropyLoss(),
        optimizer,
        callbacks=[watch, average, save],
        mixed_precision=precision,
    )
    trainer.train(
        data,
        EPOCHS,
        data,
        per_device_batch_size=8,
        create_scheduler_fn=partial(LinearLR, total_iters=EPOCHS * UPDATES),
        resume_from=states,
        resume_missing="start",
    )
    outcome = {
        "device": trainer.device.type,
        "precision": trainer.mixed_precision,
        "resumed_at": watch.resumed_at,
        "parts": {
            "weights": digest(model.state_dict()),
            "optimizer": digest(optimizer.state_dict()),
            "average": digest(torch.load(folder / "average.pt", weights_only=True)),
            "losses": {
                name: [repr(float(value)) for value in trainer.run_history.get_metric_values(name)]
                for name in ("train_loss_epoch", "eval_loss_epoch", "ema_model_eval_loss_epoch")
            },
            "scale": repr(scaler_state(trainer)),
        },
    }
    (folder / f"outcome_{rank}.json").write_text(json.dumps(outcome))
    if ranks > 1:
        dist.destroy_process_group()


def scaler_state(trainer: AnyTrainer) -> dict[str, Any]:
    """What the scaler of fp16 remembers; empty without one."""
    scaler = trainer._accelerator.scaler  # pyright: ignore[reportPrivateUsage]  # nothing else tells
    return {} if scaler is None else scaler.state_dict()


def digest(value: Any) -> str:
    """A digest of all tensors and numbers of a state, in order."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            found.update(repr((value.dtype, tuple(value.shape))).encode())
            found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in value:
                found.update(repr(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        else:
            found.update(repr(value).encode())

    add(value)
    return found.hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if sys.argv[3:] else None)
