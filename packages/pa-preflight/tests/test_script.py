"""The command checks what a script is about to train, without a change of the script."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import Launched, forked_python, run_command

_TRAINS = """
import sys

import torch
from torch import nn

from pa_core import DEFAULT_CALLBACKS, SaveTrainingStateCallback, Trainer
from pa_core.testing import make_classification
from beside import describe


class OwnTrainer(Trainer):
    def train(self, dataset, epochs):
        print("asked for", epochs)
        super().train(dataset, num_epochs=epochs, per_device_batch_size=16)


if __name__ == "__main__":
    torch.manual_seed(0)
    print(describe(sys.argv))
    last = [nn.Softmax(1)] if "--softmax" in sys.argv else []
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), *last)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    save = SaveTrainingStateCallback("states", save_every_n_epochs=1)
    trainer = OwnTrainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[*DEFAULT_CALLBACKS, save])
    data = make_classification(160)
    found = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[])
    with found.dry_run(), found.callback_handler.replaced_by([]):  # as a search for a learning rate
        found.train(data, num_epochs=1)
        print("searched", found.num_updates_completed)
    trainer.train(data, 3)
    print("has trained")
"""

_LOOP = """
import torch
from torch import nn

from pa_core import Run
from pa_core.testing import make_classification

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(1))
head = nn.Linear(4, 3)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=0.0)
with Run({"model": model, "head": head}, optimizer, make_classification(160), num_epochs=2) as run:
    for number, (inputs, targets) in enumerate(run.batches()):
        model.eval()
        print("batch", number)
        run.backward(nn.functional.cross_entropy(model(inputs), targets))
        run.step()
print("has trained")
"""


def _preflight(folder: Path, text: str, *arguments: str) -> Launched:
    (folder / "script.py").write_text(text)
    (folder / "beside.py").write_text("def describe(arguments): return f'with {arguments}'")
    return run_command([*forked_python(), "-m", "pa_preflight", "script.py", *arguments], folder=folder)


def test_a_script_ends_where_it_would_train(tmp_path: Path) -> None:
    """A search for a rate is no run; plan and report are of the arguments that reach ``Trainer.train``; status 0."""
    ended = _preflight(tmp_path, _TRAINS, "--name", "first")
    lines = ended.output.splitlines()
    assert lines[:3] == ["with ['script.py', '--name', 'first']", "searched 20", "asked for 3"]
    assert "epochs         3 with 30 updates in all" in lines
    assert "Nothing found in" in lines[-1]
    assert ended.status == 0
    assert not (tmp_path / "states").exists()


def test_a_script_with_a_mistake_ends_with_status_1(tmp_path: Path) -> None:
    """The report names it."""
    ended = _preflight(tmp_path, _TRAINS, "--softmax")
    assert "\nsoftmax-before-cross-entropy: " in ended.output
    assert "has trained" not in ended.output
    assert ended.status == 1


def test_a_loop_of_a_script_is_watched(tmp_path: Path) -> None:
    """The first ten updates show what its losses are given, and what does not learn; then the script ends."""
    ended = _preflight(tmp_path, _LOOP)
    for found in (
        "softmax-before-cross-entropy: ",
        "not-in-training-mode: ",
        "rate-is-zero: The learning rate is 0 in the first 10 updates.",
        "parameters-without-gradient: head.weight, head.bias got no gradient",
    ):
        assert f"\n{found}" in ended.output
    assert "epochs         2 with 40 updates in all" in ended.output
    assert "\nbatch 9\n" in ended.output
    assert "\nbatch 10\n" not in ended.output
    assert "has trained" not in ended.output
    assert ended.status == 1


def test_a_loop_that_fails_has_its_report_before_its_traceback(tmp_path: Path) -> None:
    """What the loss was given explains the error."""
    ended = _preflight(tmp_path, _LOOP.replace("model(inputs), targets", "model(inputs), targets + 5"))
    report, _, error = ended.output.partition("Traceback (most recent call last):\n")
    assert "targets-out-of-range: " in report
    assert error.startswith('  File "script.py", line ')
    assert "IndexError: Target " in error
    assert ended.status == 1


def test_a_script_that_does_not_train_says_so(tmp_path: Path) -> None:
    """With status 2; a script that ends with a status of its own keeps it."""
    ended = _preflight(tmp_path, "print('hello')")
    assert ended.output == (
        "hello\nscript.py has ended without training: it has called neither Trainer.train nor a loop of a Run.\n"
    )
    assert ended.status == 2
    assert _preflight(tmp_path, "import sys\nsys.exit(64)").status == 64


def test_a_script_that_fails_before_shows_its_own_traceback(tmp_path: Path) -> None:
    """Without a line of what runs it."""
    ended = _preflight(tmp_path, "def fail():\n    raise ValueError('no data')\n\nfail()")
    assert ended.output.splitlines()[:3] == [
        "Traceback (most recent call last):",
        '  File "script.py", line 4, in <module>',
        "    fail()",
    ]
    assert ended.output.endswith("\nValueError: no data\n")
    assert "runpy" not in ended.output
    assert ended.status == 1


_AROUND = """
import atexit
import multiprocessing
import sys
import threading
import time

import torch
from torch import nn

from pa_core import Trainer
from pa_core.testing import make_classification

if "--thread" in sys.argv:
    threading.Thread(target=threading.Event().wait).start()
if "--process" in sys.argv:
    multiprocessing.Process(target=time.sleep, args=(1000,)).start()
if "--atexit" in sys.argv:
    atexit.register(print, "atexit was called")
model = nn.Linear(4, 3)
trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=0.01), callbacks=[])
try:
    trainer.train(make_classification(160), num_epochs=1, **({"batch": 16} if "--wrong" in sys.argv else {}))
except BaseException:
    print("was caught")
finally:
    torch.save(model, "model.pt")
"""

_LOOP_AROUND = _LOOP.replace("with Run", "try:\n  with Run").replace('print("has trained")', "") + (
    'finally:\n  torch.save(model, "model.pt")\n'
)


def _with_a_good_model(folder: Path) -> Path:
    model = folder / "model.pt"
    model.write_text("trained for a week")
    return model


def test_nothing_of_the_script_follows_the_report(tmp_path: Path) -> None:
    """Its ``finally`` would replace a trained model by one that is not; nor do ``except`` and ``atexit`` run."""
    model = _with_a_good_model(tmp_path)
    ended = _preflight(tmp_path, _AROUND, "--atexit")
    assert "Nothing found in" in ended.output.splitlines()[-1]
    assert ended.status == 0
    assert model.read_text() == "trained for a week"


@pytest.mark.parametrize("waiting", ["--thread", "--process"])
def test_what_waits_beside_the_script_does_not_keep_it(tmp_path: Path, waiting: str) -> None:
    """A thread that is no daemon, or another process, which would wait for ever for the training."""
    ended = _preflight(tmp_path, _AROUND, waiting)
    assert "Nothing found in" in ended.output.splitlines()[-1]
    assert ended.status == 0


def test_nothing_of_the_script_follows_arguments_that_are_wrong(tmp_path: Path) -> None:
    """The traceback leads to the line of the script, whose ``except`` and ``finally`` do not run."""
    model = _with_a_good_model(tmp_path)
    ended = _preflight(tmp_path, _AROUND, "--wrong")
    _, _, error = ended.output.rpartition("Traceback (most recent call last):\n")
    assert error.startswith('  File "script.py", line ')
    assert error.splitlines()[-1].endswith("got an unexpected keyword argument 'batch'.")
    assert "was caught" not in ended.output
    assert ended.status == 1
    assert model.read_text() == "trained for a week"


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_the_script_follows_the_report_of_its_loop(tmp_path: Path, *, fails: bool) -> None:
    """Neither after ten updates, nor after an error of the loop."""
    model = _with_a_good_model(tmp_path)
    text = _LOOP_AROUND.replace("model(inputs), targets", "model(inputs), targets + 5") if fails else _LOOP_AROUND
    ended = _preflight(tmp_path, text)
    assert "softmax-before-cross-entropy: " in ended.output or fails
    assert ("IndexError: Target " in ended.output) is fails
    assert ended.status == 1
    assert model.read_text() == "trained for a week"


def test_help_says_what_the_command_does(tmp_path: Path) -> None:
    """That the script ends where it would train, without its ``finally``; of no script, the same is an error."""
    helped = run_command([*forked_python(), "-m", "pa_preflight", "--help"], folder=tmp_path)
    assert "usage: python -m pa_preflight script.py" in helped.output
    assert "`finally`" in helped.output
    assert helped.status == 0
    nothing = run_command([*forked_python(), "-m", "pa_preflight"], folder=tmp_path)
    assert "usage: python -m pa_preflight script.py" in nothing.output
    assert nothing.status == 2
