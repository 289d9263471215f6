"""Processes that fail, or wait in vain for another one: all of them end within seconds, and say why."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback, gather_objects
from pa_core.engine.any_trainer import EVENT_NAMES
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification
from tests import launching
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
NOT_IN_THIS_RUN = {"on_init_end", "on_stop_training_error", "on_train_steps_skipped", "on_preemption"}
EVENTS = sorted(event for event in EVENT_NAMES - NOT_IN_THIS_RUN if not event.startswith("on_prediction"))
PLACES = [*HOOKS, *EVENTS, "the dataset", "a worker", "a callback that hangs"]
ERRORS = ["KeyboardInterrupt", "SystemExit(3)", "SystemExit(0)", "SystemExit(text)"]
CASES = [
    *((place, number % 2, "ValueError") for number, place in enumerate(PLACES)),
    *(("on_train_step_end", number % 2, error) for number, error in enumerate(ERRORS)),
]
EACH_TIME = [*CASES[: len(HOOKS) + len(EVENTS) : 3], *CASES[len(HOOKS) + len(EVENTS) :]]
"""A third of the hooks and events, in each phase of a run, and whatever else fails."""
EACH_NIGHT = [case for case in CASES if case not in EACH_TIME]
ON_THE_OTHER_RANK = [(place, 1 - rank, error) for place, rank, error in CASES]
STATUS_OF = {"ValueError": 1, "KeyboardInterrupt": 130, "SystemExit(3)": 3, "SystemExit(0)": 1, "SystemExit(text)": 1}


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(EACH_TIME, id="each time"),
        pytest.param(EACH_NIGHT, id="each night", marks=pytest.mark.more_cases),
        pytest.param(ON_THE_OTHER_RANK, id="the other rank", marks=pytest.mark.more_cases),
    ],
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


class LateTimer(threading.Timer):
    """A thread that a busy machine does not let end at once."""

    @override
    def run(self) -> None:
        super().run()
        time.sleep(0.7)


class FailsOnAll(TrainerCallback):
    """Raises another error on each rank, on one of them a little later; notes threads that closed something."""

    def __init__(self) -> None:
        self.alive: list[threading.Thread] = []

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        time.sleep(0.3 * dist.get_rank())
        raise [KeyError, OSError][dist.get_rank()]

    @override
    def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
        self.alive += [one for one in threading.enumerate() if isinstance(one, LateTimer)]


@pytest.mark.runs_on("two_ranks")
def test_what_fails_on_all_ranks_is_raised_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank gets its own error, again and again, is kept by no other thread, and can train with the others then."""
    monkeypatch.setattr(threading, "Timer", LateTimer)
    model = TinyClassifier()
    recorder, fails = RecordingCallback(), FailsOnAll()
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[recorder, fails])
    for _ in range(2):
        with pytest.raises([KeyError, OSError][dist.get_rank()]):
            trainer.train(make_classification(16), 1)
        assert recorder.events[-1] == "on_exception"
    assert fails.alive == []

    trainer.callback_handler.callbacks.pop()
    trainer.callback_handler.add_callback(TrainerCallback)
    trainer.train(make_classification(16), 1)
    assert gather_objects(trainer.num_updates_completed) == [1, 1]
    assert torch.isfinite(trainer.loss_tracker.totals()).all()


SCRIPT = """
import io, json, sys, time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset
from pa_core import PrintProgressCallback, Trainer
from pa_distributed import _failures as failures


class Failing(Trainer):
    def calculate_train_batch_loss(self, batch):
        raise OSError("cannot read the weights of the classes")


class FailsDifferently(Trainer):
    def calculate_train_batch_loss(self, batch):
        if rank == 0:
            batch = batch[0], torch.full_like(batch[1], 7)
        else:
            batch = batch[0], batch[1].float()
        return super().calculate_train_batch_loss(batch)


torch.manual_seed(0)
inputs, classes, model = torch.randn(32, 4), torch.arange(32) % 3, nn.Linear(4, 3)


def make(loss_func=None, kind=Trainer, callbacks=()):
    loss_func = nn.CrossEntropyLoss() if loss_func is None else loss_func
    return kind(model, loss_func, torch.optim.SGD(model.parameters(), lr=0.1), callbacks)


def train(targets, epochs=1, kind=Trainer):
    make(kind=kind).train(TensorDataset(inputs, targets), epochs)


def later_on_rank_0():
    if rank == 0:
        time.sleep(1)
    make(nn.CrossEntropyLoss)


def on_rank_1_alone():
    if rank == 1:
        make("l1")


rank = make()._accelerator.process_index
cases = {
    "a loss class": lambda: make(nn.CrossEntropyLoss),
    "the same again, a second later on one": later_on_rank_0,
    "one callback, not in a list": lambda: make(callbacks=PrintProgressCallback()),
    "no epochs": lambda: train(classes, 0),
    "targets as floats": lambda: train(classes.float()),
    "targets as floats again": lambda: train(classes.float()),
    "an error of the user's own": lambda: train(classes, kind=Failing),
    "other errors": lambda: train(classes, kind=FailsDifferently),
    "an error of one alone": on_rank_1_alone,
}
shown = {}
for name, act in cases.items():
    stderr, sys.stderr = sys.stderr, io.StringIO()
    try:
        act()
    except Exception:
        sys.excepthook(*sys.exc_info())  # as Python does at the end of a script
    shown[name], sys.stderr = sys.stderr.getvalue(), stderr

# Rank 0 catches the error, and nobody would see it if rank 1 relied on rank 0.
patience, failures._SECONDS_UNTIL_SHOWN = failures._SECONDS_UNTIL_SHOWN, 0.5
stderr, sys.stderr = sys.stderr, io.StringIO()
try:
    train(classes.double())
except RuntimeError:
    if rank == 1:
        sys.excepthook(*sys.exc_info())
shown["an error that rank 0 catches"], sys.stderr = sys.stderr.getvalue(), stderr
failures._SECONDS_UNTIL_SHOWN = patience
Path(f"shown_{rank}.json").write_text(json.dumps(shown))
train(classes.float())
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each of two ranks has shown in each case, and the output of the script, which ends with an error."""
    folder = tmp_path_factory.mktemp("shown")
    launched = Launch(folder)(SCRIPT, ranks=2)
    assert launched.status == 1
    ranks = [json.loads((folder / f"shown_{rank}.json").read_text()) for rank in range(2)]
    return {"output": launched.output, **{name: [rank[name] for rank in ranks] for name in ranks[0]}}


SHARED = {
    "a loss class": "pa_core.errors.ArgumentTypeError",
    "the same again, a second later on one": "pa_core.errors.ArgumentTypeError",
    "one callback, not in a list": "pa_core.errors.ArgumentTypeError",
    "no epochs": "pa_core.errors.ConfigurationError",
    "targets as floats": "builtins.RuntimeError",
    "targets as floats again": "builtins.RuntimeError",
    "an error of the user's own": "builtins.OSError",
}


@pytest.mark.parametrize("name", SHARED)
def test_the_first_process_shows_an_error_of_all(name: str, shown: dict[str, Any]) -> None:
    """Rank 0 prints the traceback, rank 1 one line that says what was given there."""
    first, second = shown[name]
    assert first.count("Traceback (most recent call last)") >= 1
    (line,) = second.splitlines()
    assert line.startswith(f"[rank1]: {SHARED[name]}: the same error as on rank 0")
    if "builtins" not in SHARED[name]:
        assert "given here: " in line
        assert "got 0" in first or "do:   " in first


def test_a_script_that_ends_with_an_error_shows_it_once(shown: dict[str, Any]) -> None:
    """The whole output has the advice once."""
    assert shown["output"].count("without the second dimension: targets.squeeze(1).long()") == 1
    assert shown["output"].count("[rank1]: builtins.RuntimeError: the same error as on rank 0") == 1


def test_other_errors_are_not_hidden(shown: dict[str, Any]) -> None:
    """Where the ranks raise different errors, each shows its own; so does one that raises alone."""
    first, second = shown["other errors"]
    assert "Target 7 is out of bounds." in first
    assert "targets.squeeze(1).long()" in second
    first, second = shown["an error of one alone"]
    assert first == ""
    assert "The loss function is a string." in second


def test_an_error_that_the_first_process_catches_is_shown_by_the_others(shown: dict[str, Any]) -> None:
    """A process that waits in vain for the first one shows the error itself."""
    first, second = shown["an error that rank 0 catches"]
    assert first == ""
    assert "targets.squeeze(1).long()" in second


ROOT = Path(launching.__file__).parents[1]
WAITING = Path(__file__).with_name("waiting_in_vain.py")
SLOW = ["sleeps", "trains_once_more", "is_busy_between_runs"]
APART = ["breaks", "stops", "evaluates"]
BETWEEN = ["breaks after an epoch", "stops after an epoch", "evaluates after an epoch"]
TOGETHER = ["all stop", "all break"]

Ends: TypeAlias = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """How each pair of ranks ended; all pairs wait at the same time."""
    folder = tmp_path_factory.mktemp("pairs")
    names = [*SLOW, *APART, *BETWEEN, *TOGETHER]
    assert Launch(folder)(WAITING, json.dumps(names), env={"PYTHONPATH": str(ROOT)}).status == 0
    ended: Ends = json.loads((folder / "ended.json").read_text())
    return ended


def statuses(ends: Ends, names: list[str]) -> dict[str, list[int | None]]:
    """The exit statuses of the ranks of some pairs."""
    for name in names:
        print(name, ends[name]["statuses"], *ends[name]["outputs"], sep="\n")  # noqa: T201 - shown when a test fails
    return {name: ends[name]["statuses"] for name in names}


def test_processes_that_wait_in_vain_end_with_a_report(ends: Ends) -> None:
    """Each prints its stack, one of them who waits for whom, and none lives on; between two runs, there is time."""
    assert statuses(ends, SLOW) == {
        "sleeps": [1, 1],
        "trains_once_more": [0, 1],
        "is_busy_between_runs": [0, 0],
    }
    reports = {name: "".join(ends[name]["outputs"]) for name in SLOW}

    assert "rank 1 was in on_optimizer_step_end of Late (waiting_in_vain.py" in reports["sleeps"]
    assert "rank 0 waited in the exchange of gradients" in reports["sleeps"]
    assert "time.sleep(1000)" in ends["sleeps"]["outputs"][1]
    assert "raise max_wait_seconds" in reports["sleeps"]

    assert "OtherProcessError: Another process is gone" in reports["trains_once_more"]
    assert "rank 0 ended its script, after 1 update;" in reports["trains_once_more"]
    assert "Begin as many runs on each process as on the others." in reports["trains_once_more"]

    assert "rank" not in reports["is_busy_between_runs"]


def test_ranks_that_part_in_a_loop_of_ones_own_end_with_an_error(ends: Ends) -> None:
    """One that breaks, stops or evaluates alone is named; where all do the same, nothing is wrong."""
    names = [*APART, *BETWEEN]
    assert statuses(ends, names) == {name: [1, 1] for name in names}
    assert statuses(ends, TOGETHER) == {name: [0, 0] for name in TOGETHER}
    reports = {name: "".join(ends[name]["outputs"]) for name in [*names, *TOGETHER]}
    for name in APART:
        assert "OtherProcessError: A process has waited for another one" in reports[name]
    for name in BETWEEN:
        assert "RanksDifferError: The processes of this run have gone different ways: " in reports[name]
    assert "rank 1 waited in all_gather" in reports["breaks"]
    assert "at the end of the run, after 3 updates" in reports["stops"]
    assert "in an evaluation, after 3 updates" in reports["evaluates"]
    assert "in an evaluation, after 5 updates on rank 1" in reports["evaluates after an epoch"]
    for name, report in reports.items():
        leaves = name.startswith(("breaks", "stops"))
        assert ("call run.request_stop() on it instead of leaving the loop" in report) == leaves
    assert ends["all stop"]["outputs"] == ["3 updates\n", "3 updates\n"]
    assert ends["all break"]["outputs"] == ["5 updates\n", "5 updates\n"]
