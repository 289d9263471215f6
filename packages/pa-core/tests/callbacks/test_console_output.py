"""What a user sees of a run: on a terminal, in a log file, and through a logger of his own."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

from pa_core import (
    DEFAULT_CALLBACKS,
    PrintProgressCallback,
    ProgressBarCallback,
    StepBasedEvaluationCallback,
    StopTrainingError,
    Trainer,
    _tqdm,
)
from pa_core.callbacks import CallbackLike, progress_bar
from pa_core.testing import make_regression
from tests import launching
from tests.launching import Launch
from tests.support.callbacks import AlsoAt, CallAt, FailAt, TellAt
from tests.support.trainers import linear_trainer

DATA = make_regression(40)


SLOW_STEPS = CallAt("on_train_step_start", lambda _trainer: time.sleep(0.03))
"""Takes long enough over each training step for a bar to be refreshed."""


def lines_on_screen(written: str) -> list[str]:
    """The lines that a terminal shows after it was written to, as far as bars make use of its abilities."""
    screen: list[list[str]] = [[]]
    row = column = 0
    for token in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|[\s\S]", written):
        if token == "\r":
            column = 0
        elif token == "\n":
            row, column = row + 1, 0
        elif token == "\x1b[A":
            row -= 1
        elif not token.startswith("\x1b"):
            screen += [[] for _ in range(row + 1 - len(screen))]
            line = screen[row]
            line += [" "] * (column + 1 - len(line))
            line[column] = token
            column += 1
    return [text for line in screen if (text := "".join(line).rstrip())]


def on_terminal(
    monkeypatch: pytest.MonkeyPatch, action: Callable[[], object], size: tuple[int, int] = (40, 120)
) -> str:
    """Run an action with a real terminal of some rows and columns, and return what was written there."""
    termios = pytest.importorskip("termios", reason="terminals are different there")
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, size)
    received = io.BytesIO()

    def read() -> None:
        while chunk := _read_or_nothing(ours):
            received.write(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(sys, "stderr", terminal)
        action()
    reader.join()
    os.close(ours)
    return received.getvalue().decode()


def _read_or_nothing(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end was closed
        return b""


TRAINS = "Trains all 5 parameters"
HEADER = r"epoch  train loss  eval loss        lr  samples/s     time"
ROW = r" +\d  +[\d.e-]+  +\*?[\d.e-]+      0\.01  +[\d,.]+   \d\.\d\d s"
TABLE = [
    r"  metric +last +best +epoch",
    r"  eval_loss_epoch +[\d.e-]+ +[\d.e-]+ +\d",
    r"  train_loss_epoch +[\d.e-]+ +[\d.e-]+ +\d",
]


def assert_lines(lines: list[str], patterns: list[str]) -> None:
    """Each line is as its pattern says, and none is longer than a terminal."""
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), "\n".join(lines)
    assert all(len(line) <= 80 for line in lines[1:])


def test_a_terminal_shows_bars_and_leaves_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are a bar for the run and one for the epoch; what stays is a row for each epoch, whole and aligned."""
    trainer = linear_trainer(*DEFAULT_CALLBACKS, SLOW_STEPS)
    output = on_terminal(monkeypatch, lambda: trainer.train(DATA, 2, DATA), size=(24, 80))
    assert_lines(
        lines_on_screen(output),
        [
            r"Training starts: 2 epochs of 5 updates, 8 samples per update; 1 process, device cpu, .*",
            TRAINS,
            HEADER,
            ROW,
            ROW,
            r"Training ended: 2 epochs, 10 updates in [\d.]+ s, [\d,.]+ samples/s, at \d\d:\d\d:\d\d",
            *TABLE,
        ],
    )
    drawn = re.split(r"[\r\n]|\x1b\[A", output)
    assert any(re.match(r"Run \|.*\| [1-9]0% \[00:0\d<00:0\d\]", bar) for bar in drawn), drawn
    assert any(re.match(r"Epoch 2 \|.*\| [1-5]/5 \[00:0\d<00:0\d, loss=[\d.e-]+, lr=0\.01, ", bar) for bar in drawn), (
        drawn
    )
    assert any(re.match(r"Epoch 2 eval \|.*\| 5/5 \[", bar) for bar in drawn), drawn
    assert all(len(bar) <= 80 for bar in drawn if "|" in bar)


def test_evaluations_within_an_epoch_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their values are in the columns of the evaluation after the epoch, above the bar that goes on."""
    callbacks: list[CallbackLike] = [*DEFAULT_CALLBACKS, SLOW_STEPS, StepBasedEvaluationCallback(2)]
    trainer = linear_trainer(*callbacks)
    output = on_terminal(monkeypatch, lambda: trainer.train(DATA, 1, DATA))
    lines = lines_on_screen(output)
    intermediate = r" 0\.{}0           - +\*?[\d.e-]+      0\.01  +[\d,.]+   \d\.\d\d s"
    assert_lines(lines[2:6], [HEADER, intermediate.format(4), intermediate.format(8), ROW])
    assert re.search(r"Epoch 1 \|.*\| 5/5 ", output)


def rates_shown(output: str) -> list[float]:
    """The samples per second of the first epoch, in its row, in the summary and on the bar."""
    lines = lines_on_screen(output)
    rates = [next(line for line in lines if line.startswith("    1 ")).split()[-3]]
    rates += re.findall(r"([\d.]+) samples/s, at", "\n".join(lines))
    rates.append(re.findall(r"Epoch 1 \|.*?([\d.]+) samples/s\]", output)[-1])
    assert len(rates) == 3
    return [float(rate.replace(",", "")) for rate in rates]


def test_a_terminal_that_does_not_know_its_size_shows_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of CI systems and containers report 0 x 0: bars are as wide as for 80 columns; their loss is recorded."""
    trainer = linear_trainer(ProgressBarCallback, SLOW_STEPS)
    lines = lines_on_screen(on_terminal(monkeypatch, lambda: trainer.train(DATA, 1, DATA), size=(0, 0)))
    assert [re.split(r"[|]", line)[0].strip() for line in lines] == ["Epoch 1", "Epoch 1 eval"], lines
    for line in lines:
        assert re.fullmatch(r"Epoch 1( eval)? +\|█+\| 5/5 \[.*loss=[\d.e-]+, .* samples/s\]", line)
        assert 70 <= len(line) <= 80
    assert f"loss={float(trainer.run_history.get_latest_metric('train_loss_epoch')):.4g}," in lines[0]


def test_evaluations_and_the_first_update_do_not_count_as_training_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples per second, on the bar, in the row and in the summary, are those of the training alone.

    In the first update workers start and a model may be compiled.
    """
    slow_evaluation = AlsoAt("on_eval_step_start", lambda _trainer: time.sleep(0.5))
    slow_start = TellAt("on_train_step_start", lambda one, _: time.sleep(float(one.num_updates_completed == 0)))
    callbacks: list[CallbackLike] = [
        PrintProgressCallback,
        ProgressBarCallback,
        slow_start,
        SLOW_STEPS,
        slow_evaluation,
    ]
    trainer = linear_trainer(*callbacks, StepBasedEvaluationCallback(1))
    output = on_terminal(monkeypatch, lambda: trainer.train(DATA, 1, make_regression(8)))
    rates = rates_shown(output)
    # 40 samples in 5 steps of 0.03 s; the 4 evaluations in between take 2 s, and the start 1 s.
    assert max(rates) <= 40 / (5 * 0.03)
    assert min(rates) > max(40 / 1.0, 1.5 * 40 / (5 * 0.03 + 4 * 0.5))


def test_the_rate_that_is_shown_is_the_highest_of_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a pretrained body has a lower rate than its head, neither bar nor row shows that of the body."""
    body, head = nn.Linear(4, 2), nn.Linear(2, 1)
    optimizer = SGD([{"params": body.parameters(), "lr": 1e-6}, {"params": head.parameters(), "lr": 0.02}])
    trainer = Trainer(nn.Sequential(body, head), nn.MSELoss(), optimizer, [PrintProgressCallback, ProgressBarCallback])
    output = on_terminal(monkeypatch, lambda: trainer.train(DATA, 1))
    assert re.search(r"Epoch 1 \|.*lr=0\.02, ", output)
    assert next(line for line in lines_on_screen(output) if line.startswith("    1 ")).split()[2] == "0.02"


def test_a_bar_is_refreshed_at_its_own_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand fast steps refresh the bar ten times a second, not a thousand times."""
    trainer = linear_trainer(ProgressBarCallback)
    started = time.monotonic()
    output = on_terminal(monkeypatch, lambda: trainer.train(make_regression(1000), 1, per_device_batch_size=1))
    assert output.count("\r") < 6 + 10 * (time.monotonic() - started)


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt(), StopTrainingError("good enough")])
def test_a_bar_is_closed_when_the_run_breaks_off(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed afterwards, a traceback or the reason of a stop, starts on a line of its own below the bar."""
    trainer = linear_trainer(ProgressBarCallback, FailAt("on_train_step_end", error, update=2))

    def train_and_report() -> None:
        with contextlib.suppress(RuntimeError, KeyboardInterrupt):
            trainer.train(DATA, 1)
        print("afterwards", file=sys.stderr)  # noqa: T201
        sys.stderr.flush()

    lines = lines_on_screen(on_terminal(monkeypatch, train_and_report))
    assert len(lines) == 2
    assert re.match(r"Epoch 1 \|.*\| 3/5 ", lines[0])
    assert lines[1] == "afterwards"
    if isinstance(error, StopTrainingError):
        linear_trainer(PrintProgressCallback, FailAt("on_train_step_end", error, update=2)).train(DATA, 2)
        printed = capsys.readouterr().out
        assert "Stopping early: good enough\n" in printed
        assert re.search(r"^Training ended: 0 epochs, 2 updates in .* samples/s, at \d\d:\d\d:\d\d$", printed, re.M)


def test_files_get_whole_lines_in_their_order(capfd: pytest.CaptureFixture[str]) -> None:
    """Each line of the run is in standard output, without a carriage return, and none is among the errors."""
    trainer = linear_trainer(*DEFAULT_CALLBACKS)
    trainer.train(DATA, 1, make_regression(16))
    trainer.evaluate(make_regression(16))
    output, errors = capfd.readouterr()
    assert errors == ""
    assert "\r" not in output
    assert_lines(
        output.splitlines(),
        [
            r"Training starts: 1 epoch of 5 updates, .*, at \d\d:\d\d:\d\d",
            TRAINS,
            HEADER,
            ROW,
            r"Training ended: 1 epoch, 5 updates in .* s, .* samples/s, at \d\d:\d\d:\d\d",
            *TABLE,
            "Evaluation starts: 2 batches; .*",
            "Evaluation ended in .* s",
            r"  evaluation_loss [\d.e-]+",
        ],
    )


def test_a_file_has_the_rows_while_the_terminal_has_the_bars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With standard output in a file, bars are drawn on the terminal, and the file is as without a terminal."""

    def train(*callbacks: CallbackLike) -> Callable[[], None]:
        def to_file() -> None:
            with (tmp_path / "out.txt").open("w") as file, monkeypatch.context() as patch:
                patch.setattr(sys, "stdout", file)
                linear_trainer(*callbacks).train(DATA, 1, DATA)

        return to_file

    assert lines_on_screen(on_terminal(monkeypatch, train(*DEFAULT_CALLBACKS))) == []
    assert_lines((tmp_path / "out.txt").read_text().splitlines()[2:4], [HEADER, ROW])

    bars = lines_on_screen(on_terminal(monkeypatch, train(ProgressBarCallback)))
    assert [line.split("|")[0].strip() for line in bars] == ["Epoch 1", "Epoch 1 eval"]
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["Epoch 1: 5/5 batches", "Epoch 1 eval: 5/5 batches"]


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that says it cannot draw, as in some editors, is written whole lines."""

    def train() -> None:
        monkeypatch.setenv("TERM", "dumb")
        linear_trainer(ProgressBarCallback).train(DATA, 1)

    output = on_terminal(monkeypatch, train)
    assert output.replace("\r\n", "\n").count("\r") == 0
    assert "Epoch 1: 5/5 batches, loss=" in output


@pytest.mark.parametrize("has_widgets", [False, True])
def test_a_notebook_draws_bars_where_it_has_widgets(monkeypatch: pytest.MonkeyPatch, has_widgets: bool) -> None:
    """Without them bars would leave control codes in the cell; in both cases there is a line for each epoch."""

    class OutStream(io.StringIO):
        __module__ = "ipykernel.iostream"

    errors, cell = OutStream(), OutStream()
    find_spec = importlib.util.find_spec
    widgets = importlib.machinery.ModuleSpec("ipywidgets", None) if has_widgets else None

    def find(name: str) -> importlib.machinery.ModuleSpec | None:
        return widgets if name == "ipywidgets" else find_spec(name)

    monkeypatch.setattr(_tqdm, "find_spec", find)
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setattr(sys, "stdout", cell)
    trainer = linear_trainer(ProgressBarCallback)
    trainer.train(DATA, 1)
    trainer.evaluate(DATA)
    epoch, evaluation = cell.getvalue().splitlines()
    assert re.fullmatch(r"Epoch 1: 5/5 batches, loss=[\d.e-]+, lr=0\.01, [\d,.]+ samples/s", epoch)
    assert evaluation.startswith("Evaluation: 5/5 batches, loss=")
    assert ("Epoch 1 |" in errors.getvalue()) == has_widgets
    assert lines_on_screen(errors.getvalue()) == []


@pytest.mark.parametrize("rows", [[], [PrintProgressCallback]])
def test_a_long_epoch_shows_signs_of_life_in_a_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rows: list[CallbackLike]
) -> None:
    """Where its row is printed at its end, lines come in between as they do without rows."""
    monkeypatch.setattr(progress_bar, "SECONDS_BETWEEN_LINES", 0.0)
    linear_trainer(*rows, ProgressBarCallback).train(DATA, 1)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Epoch 1: ")]
    assert [line.split()[2] for line in lines] == ["1/5", "2/5", "3/5", "4/5", "5/5", *([] if rows else ["5/5"])]


def test_a_prediction_shows_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A line at its end in a log, early or not, without a loss."""
    trainer = linear_trainer(ProgressBarCallback())
    list(trainer.predict(make_regression(5), per_device_batch_size=2))
    next(trainer.predict(make_regression(5), per_device_batch_size=2))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["Prediction: 3/3 batches", "Prediction: 1/3 batches"]
    assert "loss" not in "".join(lines)
    assert "samples/s" in lines[0]


@pytest.mark.runs_on("two_ranks")
def test_only_the_first_process_of_a_machine_shows_anything(capfd: pytest.CaptureFixture[str]) -> None:
    """Of two ranks one writes, and the figures it shows count the batches of both."""
    linear_trainer(*DEFAULT_CALLBACKS).train(make_regression(32), 1, make_regression(32))
    captured = capfd.readouterr()
    output = captured.out + captured.err
    if dist.get_rank() != 0:
        assert output == ""
        return
    assert "2 processes (gloo)" in output
    starts = ["Training starts:", "epoch  train loss  eval loss", "    1   ", "Training ended:"]
    assert [output.count(start) for start in starts] == [1] * 4, output


ON_TWO_NODES = """
import torch
from torch import nn
from pa_core import DEFAULT_CALLBACKS, Trainer
from pa_core.testing import make_regression

model = nn.Linear(4, 1)
trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=DEFAULT_CALLBACKS)
trainer.train(make_regression(32), 2, eval_dataset=make_regression(8))
trainer.evaluate(make_regression(8))
trainer.print("a line of each node")
"""


def test_the_first_of_several_machines_prints(launch: Launch) -> None:
    """Start, rows, summary and evaluation are printed once in the whole run; ``print`` prints on each node."""
    common = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    common["MASTER_PORT"] = str(launching.free_port())
    with ThreadPoolExecutor() as both:
        started = [both.submit(launch, ON_TWO_NODES, env={**common, "RANK": str(rank)}) for rank in (0, 1)]
        first, second = [one.result().output.splitlines() for one in started]
    starts = "Training starts", "Training ended", "Evaluation starts", "Evaluation ended", "epoch  train loss"
    assert [sum(line.startswith(start) for line in first) for start in starts] == [1] * 5
    assert [line for line in second if "Warning" not in line and "Gloo" not in line] == ["a line of each node"]
