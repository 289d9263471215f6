"""A run on Ray, on torchrun or in a trial of Ray Tune, which slows down so that it can be hit: `script.py FOLDER KIND`.

Each worker writes its process id to `pids/`, and the end prints a digest of the weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, PreemptionNotice, SaveAndStop, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_ray import RayPreemptionNotice, ReportToRay, newest_state, train_on_ray


def say(*words: object) -> None:
    """Tell the test."""
    print(*words, flush=True)  # noqa: T201 - the test reads it


class Slowly(TrainerCallback):
    """Wait in each update, after saying which process makes it."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.pids = folder / "pids"
        self.seconds = seconds

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: object) -> None:
        """Say which process this is, and where it begins."""
        self.pids.mkdir(exist_ok=True)
        rank = int(os.environ.get("RANK", "0"))
        (self.pids / str(os.getpid())).write_text(
            json.dumps({"rank": rank, "of": trainer.num_processes, "from": trainer.num_updates_completed})
        )

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: object) -> None:
        """Wait."""
        time.sleep(self.seconds)


class StopAt:
    """End the run after an update, as a deadline does."""

    def __init__(self, update: int) -> None:
        self.update = update
        self.asked = 0

    def ask(self) -> SaveAndStop | None:
        """Answer after so many updates of this process."""
        self.asked += 1
        return SaveAndStop("a test") if self.asked == self.update else None


def train(config: dict[str, Any]) -> str:
    """Train for four epochs of ten updates, and return a digest of the weights."""
    folder = Path(config["folder"])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))
    inputs = torch.randn(320, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    notices: list[PreemptionNotice] = [RayPreemptionNotice()]
    if "stop_at" in config:
        notices.append(StopAt(config["stop_at"]))
    save = SaveTrainingStateCallback(
        config.get("states", folder / "states"),
        save_every_n_steps=config.get("every"),
        save_every_n_epochs=1,
        max_checkpoints=3,
        notices=notices,
    )
    callbacks = [save, ReportToRay(), Slowly(folder, config.get("seconds", 0.1))]
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.get("lr", 0.01))
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=callbacks, reproducible="any_processes")
    trainer.train(
        data, 4, data, per_device_batch_size=8, samples_per_update=32, resume_from=newest_state(save.save_dir)
    )
    tensors = (tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return hashlib.sha256(b"".join(tensors)).hexdigest()[:12]


def on_ray(folder: Path, workers: int | tuple[int, int], config: dict[str, Any]) -> None:
    """Train on Ray, and print what came of it."""
    result = train_on_ray(
        train, config, num_workers=workers, storage_path=folder / "ray", name="run", max_failures=config["failures"]
    )
    say("METRICS", json.dumps(result.metrics))
    say("DIGEST", result.return_value)


def search(folder: Path, config: dict[str, Any]) -> None:
    """Search for a learning rate with four trials, of which the worse are stopped early."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={
            **config,
            "lr": tune.grid_search([1e-5, 1e-4, 1e-2, 3e-2]),
            "states": "states",
            "folder": str(folder),
        },
        tune_config=tune.TuneConfig(
            metric="eval_loss_epoch",
            mode="min",
            scheduler=ASHAScheduler(time_attr="epoch", max_t=4, grace_period=1, reduction_factor=2),
        ),
        run_config=tune.RunConfig(
            name="search", storage_path=str(folder / "ray"), failure_config=tune.FailureConfig(max_failures=2)
        ),
    )
    results = tuner.fit()
    best = results.get_best_result()
    say("ERRORS", results.num_errors)
    say("EPOCHS", json.dumps([one.metrics and one.metrics["epoch"] for one in results]))
    say("BEST", best.config and best.config["lr"], best.checkpoint is not None)


def main() -> None:
    """Run as the arguments say."""
    config = json.loads(sys.argv[1])
    folder = Path(config["folder"])
    workers = config.pop("workers")
    if workers is None:
        say("DIGEST", train(config))
        return
    import ray

    address = config.pop("address", None)
    local: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100_000_000, "_node_ip_address": "127.0.0.1"}
    ray.init(address=address, include_dashboard=None if address else False, **({} if address else local))
    if workers == "tune":
        search(folder, config)
    else:
        on_ray(folder, workers if isinstance(workers, int) else (workers[0], workers[1]), config)
    ray.shutdown()


if __name__ == "__main__":
    main()
