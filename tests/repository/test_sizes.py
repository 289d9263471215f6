"""The code stays small enough to be known: what is there is counted, and what a step and a save go through."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.launching import Launch

ROOT = Path(__file__).parents[2]
PA_CORE = ROOT / "packages" / "pa-core" / "src" / "pa_core"

LIMITS = {
    "code lines of pa-core": 16_370,
    "code lines of all packages": 42_200,
    "code lines of tests": 66_200,
    "code lines of a module of pa-core": 560,
    "lines of trainer.py": 910,
    "words of architecture.md": 2_500,
    "modules of ours that an import loads": 181,
    "other modules that an import loads": 2,  # secrets and hmac
    "time of an import, compared with that of accelerate": 2.5,  # 1.3 on an idle machine
    "files of a save and the next update": 47,
}
"""The most that there may be of each."""

MOVES = {
    "one process": 41,
    "two processes": 67,
    "reproducible": 73,
    "reproducible on two processes": 105,
}
"""The most calls and returns of an update that lead into another file of ours."""

HOW_AN_UPDATE_MOVES = """
import sys
import torch
from torch import nn
from torch.utils.data import TensorDataset
from pa_core import Trainer, TrainerCallback

files = []
is_watched = False

def is_ours(frame):
    return frame.f_globals.get("__name__", "").startswith("pa_")

def note(frame, event, argument):
    if not is_watched or not is_ours(frame) or event not in ("call", "return"):
        return
    if event == "return":
        frame = frame.f_back
        while frame is not None and not is_ours(frame):
            frame = frame.f_back
    if frame is not None:
        files.append(frame.f_code.co_filename)

class FifthUpdate(TrainerCallback):
    def on_optimizer_step_end(self, trainer, update, **kwargs):
        global is_watched
        is_watched = update == 5

model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
is_reproducible = sys.argv[1:] == ["reproducible"]
options = {"reproducible": "any_processes"} if is_reproducible else {}
trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[FifthUpdate()], **options)
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 8), torch.randint(0, 3, (256,)))
sizes = {"samples_per_update": 32} if is_reproducible else {}
size = 32 // trainer.num_processes if is_reproducible else 16
sys.setprofile(note)
trainer.train(data, 1, per_device_batch_size=size, train_dataloader_kwargs={"num_workers": 0}, **sizes)
sys.setprofile(None)
trainer.print("moves", sum(one != other for one, other in zip(files, files[1:])))
"""

WHAT_A_RUN_GOES_THROUGH = """
import json, sys, threading
import torch
from torch import nn
from torch.utils.data import TensorDataset
from pa_core import SaveTrainingStateCallback, Trainer, TrainerCallback

files = set()
is_saving = False

def note(frame, event, argument):
    module = frame.f_globals.get("__name__", "")
    if is_saving and module.startswith("pa_"):
        files.add(module)

class Parts(TrainerCallback):
    def on_optimizer_step_end(self, trainer, update, **kwargs):
        global is_saving
        is_saving = update == 10

model = nn.Linear(8, 3)
trainer = Trainer(
    model,
    nn.CrossEntropyLoss(),
    torch.optim.SGD(model.parameters(), lr=0.1),
    callbacks=[Parts, SaveTrainingStateCallback("states", save_every_n_steps=10)],
)
threading.setprofile(note)
sys.setprofile(note)
trainer.train(TensorDataset(torch.randn(256, 8), torch.randint(0, 3, (256,))), 1, per_device_batch_size=16)
sys.setprofile(None)
print(json.dumps(sorted(files)))
"""


WHAT_AN_IMPORT_COSTS = """
import gc, json, sys, time
import torch

def seconds_of_import(name):
    gc.collect()  # torch leaves a collection due, for which whoever is imported next is not to pay
    began = time.process_time()
    __import__(name)
    return time.process_time() - began

of_accelerate = seconds_of_import("accelerate")
before = set(sys.modules)
of_pa_core = seconds_of_import("pa_core")
loaded = set(sys.modules) - before
ours = {name for name in loaded if name.startswith("pa_")}
print(json.dumps({"ours": len(ours), "others": sorted(loaded - ours), "ratio": of_pa_core / of_accelerate}))
"""


def count_code_lines(source: str) -> int:
    """Count the lines that are neither blank nor only a comment or a docstring."""
    written = (line.strip() for line in source.splitlines())
    lines = {number for number, line in enumerate(written, start=1) if line and not line.startswith("#")}
    docstrings = set[int]()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str()) | ast.JoinedStr():  # whatever is within
                lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case ast.Expr(value=ast.Constant(value=str())):  # of an attribute or a type, too
                docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case _:
                pass
    return len(lines - docstrings)


@cache
def code_lines_below(folder: Path) -> dict[Path, int]:
    """The number of code lines of each Python file below a folder; wrong programs for type checkers do not count."""
    paths = [path for path in folder.rglob("*.py") if not any(part.startswith("must_") for part in path.parts)]
    return {path: count_code_lines(path.read_text()) for path in paths}


def _sum_of(folders: Iterator[Path]) -> int:
    return sum(sum(code_lines_below(folder).values()) for folder in folders)


def test_blank_lines_comments_and_docstrings_are_no_code() -> None:
    """A statement over two lines counts twice, a string that is no docstring as well."""
    source = (
        '"""A module.\n\nOf two lines."""\n\n# a comment\ndef f():\n    """Do."""\n    return g("""a\nb""",\n  1)\n'
        'X = 3\n"""What X holds,\nin two lines."""\n'
    )
    assert count_code_lines(source) == 5


def test_pa_core_is_small() -> None:
    """Whoever adds to it takes something out; each of its modules can be read in one go."""
    modules = code_lines_below(PA_CORE)
    most = LIMITS["code lines of a module of pa-core"]
    assert {path.name: number for path, number in modules.items() if number > most} == {}
    assert sum(modules.values()) <= LIMITS["code lines of pa-core"]
    assert len((PA_CORE / "trainer.py").read_text().splitlines()) <= LIMITS["lines of trainer.py"]


def test_all_packages_and_all_tests_are_small() -> None:
    """What grows in one place shrinks in another."""
    assert _sum_of(ROOT.glob("packages/*/src")) <= LIMITS["code lines of all packages"]
    assert _sum_of(ROOT.glob("packages/*/tests")) + _sum_of(ROOT.glob("tests")) <= LIMITS["code lines of tests"]


def test_the_page_for_new_maintainers_is_short() -> None:
    """It is what they read first; what is longer has a page of its own."""
    words = (ROOT / "docs" / "maintainers" / "architecture.md").read_text().split()
    assert len(words) <= LIMITS["words of architecture.md"]


@pytest.mark.parametrize("kind", MOVES)
def test_an_update_moves_between_few_files(launch: Launch, kind: str) -> None:
    """What an update does can be read without many a turn to another file."""
    arguments = ["reproducible"] if kind.startswith("reproducible") else []
    launched = launch(HOW_AN_UPDATE_MOVES, *arguments, ranks=2 if "two" in kind else 1)
    assert launched.status == 0, launched.output
    moves = next(line for line in launched.output.splitlines() if line.startswith("moves "))
    assert int(moves.rpartition(" ")[2]) <= MOVES[kind]


def test_a_save_goes_through_few_files(launch: Launch) -> None:
    """What is written of a run can be followed through the code."""
    launched = launch(WHAT_A_RUN_GOES_THROUGH)
    assert launched.status == 0
    files: list[str] = json.loads(launched.output.splitlines()[-1])
    assert "pa_checkpoint._checkpoint" in files
    assert len(files) <= LIMITS["files of a save and the next update"]


def test_an_import_loads_few_modules_and_takes_little_time(launch: Launch) -> None:
    """Beyond torch and accelerate: what few scripts need is imported when they need it."""

    def measure() -> dict[str, Any]:
        launched = launch(WHAT_AN_IMPORT_COSTS, env={"PYTHONDONTWRITEBYTECODE": None}, fresh=True)
        costs: dict[str, Any] = json.loads(launched.output.splitlines()[-1])
        return costs

    costs = measure()
    assert costs["ours"] <= LIMITS["modules of ours that an import loads"]
    assert len(costs["others"]) <= LIMITS["other modules that an import loads"]
    most = LIMITS["time of an import, compared with that of accelerate"]
    assert costs["ratio"] <= most or measure()["ratio"] <= most  # of a machine that was busy
