"""Each entry of the checkpoints in docs/checkpoints-alone.md is needed, and so are the orders that the page names."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.optim import SGD, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

import pa_checkpoint as ckpt
from tests.docs.pages import ROOT, Page
from tests.launching import Launch

PAGE = ROOT / "docs" / "checkpoints-alone.md"
SCRIPTS = [block.code for block in Page(PAGE, PAGE.read_text()).blocks() if block.says("file") == "loop.py"]
LOAD = "        part.load_state_dict(saved[name])\n"
RNG = """    if saved is not None:
        set_rng_states(saved["rng"])
        saved = None
"""
SEEDS = """    batches = iter(loader)
    for _ in range(progress["batches"]):
        next(batches)  # trained before the kill
"""
WITHOUT = {
    **{
        name: (LOAD, f"        if name != '{name}':\n    {LOAD}")
        for name in ("model", "optimizer", "scheduler", "scaler", "ema")
    },
    **{
        name: ('progress = saved["progress"]', f'progress = saved["progress"] | {{"{name}": {first}}}')
        for name, first in {"epoch": 0, "batches": 0, "updates": 0, "best_loss": 'float("inf")'}.items()
    },
    "the RNG of Python": ('    random.setstate(states["python"])\n', ""),
    "the RNG of NumPy": ('    np.random.set_state(states["numpy"])\n', ""),
    "the RNG of torch": ('    torch.set_rng_state(states["torch"])\n', ""),
    "the RNG of the epoch": ('set_rng_states(saved["rng_of_epoch"])', "pass"),
    "the RNG after the seeds of the loader": (
        f"{SEEDS}{RNG}",
        RNG.replace("        saved = None\n", "") + SEEDS + "    saved = None\n",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of a whole run, and of a run that was killed."""
    folder = tmp_path_factory.mktemp("runs")
    launch = Launch(folder)
    (script,) = SCRIPTS
    assert launch(script, "whole", "0").status == 0
    assert launch(script, "killed", "14").status != 0
    return folder


ALWAYS = {"batches", "the RNG after the seeds of the loader"}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[] if what in ALWAYS else [pytest.mark.more_cases]) for what in WITHOUT]
)
def test_a_run_that_resumes_without_an_entry_ends_differently(folder: Path, what: str) -> None:
    """Each row of the table decides how the run ends, and so does the moment at which random states are restored."""
    (script,) = SCRIPTS
    old, new = WITHOUT[what]
    assert script.count(old) == 1
    script = script.replace(old, new)
    resumed = folder / what.replace(" ", "_")
    shutil.copytree(folder / "killed", resumed)
    launched = Launch(folder)(script, str(resumed), "0")
    is_error_of_the_schedule = "Tried to step" in launched.output  # after the last update of the whole run
    newest = ckpt.Folder(resumed).newest()
    assert newest is not None
    assert is_error_of_the_schedule or ckpt.compare(folder / "whole" / "update_24", newest.path) is not None


def rates(optimizer: SGD, scheduler: LRScheduler, updates: int) -> list[float]:
    """Return the learning rates of the next updates."""
    found: list[float] = []
    for _ in range(updates):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


ALL = ["LinearLR", "ConstantLR", "SequentialLR"]
NONE = ["CosineAnnealingLR", "StepLR"]
SCHEDULERS: dict[str, Callable[[SGD], LRScheduler]] = {
    "OneCycleLR": partial(lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=20),
    "CyclicLR": partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.5, step_size_up=5),
    "LambdaLR": partial(lr_scheduler.LambdaLR, lr_lambda=lambda update: min(1, (update + 1) / 10)),
    "CosineAnnealingWarmRestarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5),
    "LinearLR": partial(lr_scheduler.LinearLR, start_factor=0.1, total_iters=10),
    "ConstantLR": partial(lr_scheduler.ConstantLR, factor=0.3, total_iters=9),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5), lr_scheduler.ExponentialLR(optimizer, 0.9)],
        milestones=[5],
    ),
    "CosineAnnealingLR": partial(lr_scheduler.CosineAnnealingLR, T_max=20),
    "StepLR": partial(lr_scheduler.StepLR, step_size=3),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_is_created_before_the_optimizer_is_loaded(name: str) -> None:
    """Then the order of the two loads is free; created later, the named schedulers change the loaded rate."""
    create = SCHEDULERS[name]

    def new_optimizer() -> SGD:
        return SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)

    optimizer = new_optimizer()
    scheduler = create(optimizer)
    rates(optimizer, scheduler, 7)
    saved = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    expected = rates(optimizer, scheduler, 6)

    for is_optimizer_first in (True, False):
        optimizer = new_optimizer()
        scheduler = create(optimizer)
        loads = [
            partial(optimizer.load_state_dict, copy.deepcopy(saved[0])),
            partial(scheduler.load_state_dict, copy.deepcopy(saved[1])),
        ]
        for load in loads if is_optimizer_first else reversed(loads):
            load()
        assert rates(optimizer, scheduler, 6) == expected

    optimizer = new_optimizer()
    optimizer.load_state_dict(copy.deepcopy(saved[0]))
    scheduler = create(optimizer)
    scheduler.load_state_dict(copy.deepcopy(saved[1]))
    created_late = rates(optimizer, scheduler, 6)
    differs = [rate != right for rate, right in zip(created_late, expected, strict=True)]
    assert PAGE.read_text().count(f"`{name}`") == {True: 0, False: 1}[name in NONE] + (name in ALL)
    assert differs[0] == (name not in NONE)
    assert (any(differs[1:])) == (name in ALL)
