"""A script: starts pairs of ranks, one of which lets the other wait, and says how each pair ended, as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import accelerate  # noqa: F401  # pyright: ignore[reportUnusedImport]  # here, or each rank would import it
import torch
import torch._dynamo  # pyright: ignore[reportUnusedImport]  # as above
from torch import nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import AnyTrainer, Run, StopTrainingError, Trainer, TrainerCallback
from pa_core.testing import TinyClassifier, make_classification
from tests.support.pairs import run_pairs

MAX_WAIT_SECONDS = 3.0
SECONDS_TO_END = 45.0


class Late(TrainerCallback):
    """Does something after the third update on one rank, which the other waits for."""

    def __init__(self, do: Callable[[AnyTrainer], object]) -> None:
        self._do = do

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update == 3 and trainer.process_index == 1:
            self._do(trainer)


def trainer(*callbacks: TrainerCallback, max_wait_seconds: float = MAX_WAIT_SECONDS) -> Trainer:
    """A trainer that does not wait for long."""
    model = TinyClassifier()
    optimizer = SGD(model.parameters(), lr=0.1)
    return Trainer(model, nn.CrossEntropyLoss(), optimizer, list(callbacks), max_wait_seconds=max_wait_seconds)


def train(do: Callable[[AnyTrainer], object], max_wait_seconds: float = MAX_WAIT_SECONDS) -> None:
    """Train with a callback that does something on one rank."""
    trainer(Late(do), max_wait_seconds=max_wait_seconds).train(
        make_classification(40), 2, make_classification(8), per_device_batch_size=4
    )


def sleeps(_rank: int) -> None:
    """A callback does not return on one rank."""
    train(lambda _: time.sleep(1000))


def trains_once_more(rank: int) -> None:
    """One rank begins one more run than the other, which ends its script."""
    one = trainer()
    for _ in range(1 + rank):
        one.train(make_classification(8), 1)


def is_busy_between_runs(rank: int) -> None:
    """What a script does between two runs may take as long as it likes."""
    one = trainer()
    one.train(make_classification(8), 1)
    time.sleep(2 * MAX_WAIT_SECONDS * rank)
    one.train(make_classification(8), 1)


def loop(rank: int, only_on_rank_1: str, on_all: str = "") -> None:
    """A loop of one's own that rank 1, or each rank, does something else in than it should."""
    torch.manual_seed(0)
    model, data = TinyClassifier(), make_classification(40)
    optimizer = SGD(model.parameters(), lr=0.1)
    with Run(model, optimizer, data, num_epochs=2, per_device_batch_size=4, max_wait_seconds=MAX_WAIT_SECONDS) as run:
        do = only_on_rank_1 if rank == 1 else on_all
        for epoch in run.epochs():
            for update in run.updates():
                for inputs, targets in update:
                    loss = nn.functional.cross_entropy(model(inputs), targets)
                    update.backward(loss)
                update.step()
                if update.number == 3 and leaves(run, do):
                    break
            if epoch == 0 and leaves(run, do.removesuffix(" after an epoch")):
                break
    sys.stdout.write(f"{run.num_updates_completed} updates\n")


def leaves(run: Run[Any, Any], do: str) -> bool:
    """Whether a loop is left here; an evaluation may come here, too."""
    if do == "stops":
        raise StopTrainingError("It is enough.")
    if do == "evaluates":
        for inputs, targets in run.evaluation_batches(make_classification(8)):
            run.log("loss", nn.functional.cross_entropy(run.get_model()(inputs), targets))
    return do == "breaks"


IN_A_LOOP = [
    "breaks",
    "stops",
    "evaluates",
    "breaks after an epoch",
    "stops after an epoch",
    "evaluates after an epoch",
]
CASES: dict[str, Callable[[int], None]] = {
    **{one.__name__: one for one in (sleeps, trains_once_more, is_busy_between_runs)},
    **{name: partial(loop, only_on_rank_1=name) for name in IN_A_LOOP},
    "all stop": partial(loop, only_on_rank_1="stops", on_all="stops"),
    "all break": partial(loop, only_on_rank_1="breaks after an epoch", on_all="breaks after an epoch"),
}


if __name__ == "__main__":
    run_pairs(CASES, json.loads(sys.argv[1]), SECONDS_TO_END)
