"""An exception on one of several ranks: it ends all of them within seconds, and is shown."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback, gather_objects
from pa_core.any_trainer import EVENT_NAMES
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification
from tests.launching import Launch, Launched, free_ports

FAILING_ON_ONE_RANK = Path(__file__).with_name("failing_on_one_rank.py")

HOOKS = [
    "create_train_dataloader",
    "create_eval_dataloader",
    "create_scheduler",
    "training_run_start",
    "train_epoch_start",
    "calculate_train_batch_loss",
    "backward_step",
    "optimizer_step",
    "scheduler_step",
    "optimizer_zero_grad",
    "train_epoch_end",
    "eval_epoch_start",
    "calculate_eval_batch_loss",
    "eval_epoch_end",
    "training_run_epoch_end",
    "training_run_end",
    "evaluation_run_start",
    "evaluation_run_end",
]
NOT_IN_THIS_RUN = {"on_init_end", "on_stop_training_error", "on_train_steps_passed_over", "on_preemption"}
EVENTS = sorted(event for event in EVENT_NAMES - NOT_IN_THIS_RUN if not event.startswith("on_prediction"))
PLACES = [*HOOKS, *EVENTS, "the dataset", "a worker", "a callback that hangs"]
ERRORS = ["KeyboardInterrupt", "SystemExit(3)", "SystemExit(0)", "SystemExit(text)"]
CASES = [
    *((place, number % 2, "ValueError") for number, place in enumerate(PLACES)),
    *(("on_train_step_end", number % 2, error) for number, error in enumerate(ERRORS)),
]
ON_THE_OTHER_RANK = [(place, 1 - rank, error) for place, rank, error in CASES]
STATUS_OF = {"ValueError": 1, "KeyboardInterrupt": 130, "SystemExit(3)": 3, "SystemExit(0)": 1, "SystemExit(text)": 1}


@pytest.mark.parametrize(
    "cases", [CASES, pytest.param(ON_THE_OTHER_RANK, marks=pytest.mark.more_cases)], ids=["by turns", "the other rank"]
)
def test_a_rank_that_fails_ends_at_once_wherever_it_fails(
    cases: list[tuple[str, int, str]], launch: Launch, tmp_path: Path
) -> None:
    """In each hook and event, by each kind of exception, on either rank, whatever the script does about it."""
    with_ports = [(*case, port) for case, port in zip(cases, free_ports(len(cases)), strict=True)]
    assert launch(FAILING_ON_ONE_RANK, json.dumps(with_ports)).status == 0

    ended: list[dict[str, Any]] = json.loads((tmp_path / "ended.json").read_text())
    assert len(ended) == len(cases)
    assert [case for case in ended if not ended_well(case)] == []


def ended_well(case: dict[str, Any]) -> bool:
    """Whether a rank ended soon, with its status, its error shown and its callbacks told."""
    is_shown = "raise ERRORS[self.error]" in case["output"]
    told = "on_exception was called" in case["output"] or case["place"] in {"on_exception", "a callback that hangs"}
    return (
        is_shown
        and told
        and case["seconds"] < 10
        and case["statuses"][case["rank"]] == STATUS_OF[case["error"]]
        and 0 not in case["statuses"]
    )


TOGETHER_THEN_ALONE = """
import sys, threading, time
import torch
import torch.distributed as dist
from pa_core import Trainer, TrainerCallback, notebook_launcher
from pa_core.testing import TinyClassifier, make_classification

class Fails(TrainerCallback):
    ranks = (0, 1)

    def on_train_epoch_end(self, trainer, **kwargs):
        if dist.get_rank() in self.ranks:
            raise OSError(f"no space left on rank {dist.get_rank()}")

def say(text):
    sys.stdout.write(text + "\\n")  # in one piece, whatever the other rank writes
    sys.stdout.flush()

def train(trainer):
    try:
        trainer.train(make_classification(16), 1)
    except OSError as error:
        say(f"caught: {error}")

def main(rank):
    model = TinyClassifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, torch.nn.CrossEntropyLoss(), optimizer, callbacks=[Fails])
    train(trainer)
    trainer.callback_handler.callbacks[0].ranks = (rank,)
    if rank == dist.get_rank():
        threading.Thread(target=time.sleep, args=(60,)).start()
    say(f"failed at {time.time()}")
    train(trainer)
    say("went on")
    torch.distributed.barrier()

"""
BY_TORCHRUN = "main(1)"
IN_NOTEBOOK = "notebook_launcher(main, (0,), num_processes=2, use_port='{port}')"


@pytest.mark.parametrize("launcher", ["torchrun", "notebook_launcher"])
def test_launchers_end_the_other_ranks(launcher: str, launch: Launch, free_port: int) -> None:
    """A script may catch what fails on all ranks; what fails on one ends the launch, which names the cause."""
    if launcher == "torchrun":
        failing = 1
        launched = launch(TOGETHER_THEN_ALONE + BY_TORCHRUN, ranks=2)
    else:
        failing = 0
        launched = launch(TOGETHER_THEN_ALONE + IN_NOTEBOOK.format(port=free_port))
    assert seconds_since_failure(launched) < 30  # of 60 that a thread of the script sleeps
    assert launched.status != 0
    for rank in (0, 1):
        assert launched.output.count(f"caught: no space left on rank {rank}") == 1
    assert "Root Cause (first observed failure)" in launched.output
    summary = launched.output.partition("Root Cause (first observed failure)")[2]
    assert f"no space left on rank {failing}" in summary
    assert f"[rank{failing}]: This process ends with status 1" in launched.output


def seconds_since_failure(launched: Launched) -> float:
    """How long ago the last rank began the run that failed."""
    times = [line.partition("failed at ")[2] for line in launched.output.splitlines()]
    return time.time() - max(float(text.split()[0]) for text in times if text)


class FailsOnAll(TrainerCallback):
    """Raises another error on each rank, on one of them a little later."""

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        time.sleep(0.3 * dist.get_rank())
        raise [KeyError, OSError][dist.get_rank()]


@pytest.mark.runs_on("two_ranks")
def test_what_fails_on_all_ranks_is_raised_on_all() -> None:
    """Each rank gets its own error, again and again, and can train with the others afterwards."""
    model = TinyClassifier()
    recorder = RecordingCallback()
    optimizer = SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[recorder, FailsOnAll])
    for _ in range(2):
        with pytest.raises([KeyError, OSError][dist.get_rank()]):
            trainer.train(make_classification(16), 1)
        assert recorder.events[-1] == "on_exception"

    trainer.callback_handler.callbacks.pop()
    trainer.callback_handler.add_callback(TrainerCallback)
    trainer.train(make_classification(16), 1)
    assert gather_objects(trainer.num_updates_completed) == [1, 1]
    assert torch.isfinite(trainer.loss_tracker.totals()).all()


class LateTimer(threading.Timer):
    """A thread that a busy machine does not let end at once."""

    @override
    def run(self) -> None:
        super().run()
        time.sleep(2.0)


@pytest.mark.runs_on("two_ranks")
def test_no_other_thread_keeps_what_fails_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the run is closed by a thread that ends later than the error is handled, or that Python ends."""
    monkeypatch.setattr(threading, "Timer", LateTimer)
    alive: list[threading.Thread] = []

    class Looks(FailsOnAll):
        @override
        def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
            alive.extend(one for one in threading.enumerate() if isinstance(one, LateTimer))

    model = TinyClassifier()
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[Looks])
    with pytest.raises([KeyError, OSError][dist.get_rank()]):
        trainer.train(make_classification(16), 1)
    assert alive == []
