"""The command checks what a script is about to train, without a change of the script."""

from __future__ import annotations

from pathlib import Path

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
    with found.undoing_runs(), found.callback_handler.replaced_by([]):  # as a search for a learning rate
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
        "hello\nscript.py has ended without training: it has called no Trainer.train, and no loop of a Run.\n"
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
