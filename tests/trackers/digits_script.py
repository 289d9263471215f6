"""A script that sends its runs to a tracker, and leaves it to the end of the script to finish them."""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from torch import nn
from torch.optim import SGD
from typing_extensions import override

from pa_callbacks_extra import TrackerCallback
from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_core.testing import make_regression

IMAGE = torch.tensor([1.0, 0.0, 0.2])[:, None, None].expand(3, 5, 7)


class FailOnce(TrainerCallback):
    """Fails in the middle of the first run."""

    fails = True

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update == 2 and self.fails:
            self.fails = False
            raise OSError("disk full")


def make_trainer(track: TrackerCallback) -> Trainer[nn.Linear]:
    """A trainer of a linear model that fails once."""
    model = nn.Linear(4, 1)
    return Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[track, FailOnce()])


def main(tracker: str, arguments: str, *, twice: bool, fail: bool) -> None:
    """Train, fail, train again, evaluate and send an image; do so with two trainers, or fail for good, if asked to."""
    dataset = make_regression(30)
    ids: list[str] = []
    for _ in range(1 + twice):
        track = TrackerCallback(
            tracker,
            "digits",
            every_n_updates=2,
            config={"note": (1, None)},
            init_kwargs={tracker: json.loads(arguments)},
        )
        trainer = make_trainer(track)
        try:
            trainer.train(dataset, num_epochs=1, per_device_batch_size=10)
        except OSError:
            if fail:
                raise
        trainer.train(dataset, num_epochs=2, eval_dataset=dataset, per_device_batch_size=10)
        trainer.evaluate(dataset)
        track.log_image("red", IMAGE)
        ids.append(track.state_dict()["run_ids"][tracker])
    print("runs:", *ids, flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("tracker")
    parser.add_argument("arguments")
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--fail", action="store_true")
    main(**vars(parser.parse_args()))
