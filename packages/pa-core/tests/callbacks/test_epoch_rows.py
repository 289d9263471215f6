"""The lines of a run: the first ones, one row an epoch, the table at its end, and what a logger is told."""

from __future__ import annotations

import re
import shlex
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import (
    DEFAULT_CALLBACKS,
    AnyTrainer,
    LogMetricsCallback,
    PrintProgressCallback,
    ProgressBarCallback,
    Run,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    StopTrainingError,
    TerminateOnNaNCallback,
    Trainer,
    TrainerCallback,
    TrainingPreempted,
)
from pa_core.callbacks import CallbackLike
from pa_core.callbacks.epoch_rows import EpochRows
from pa_core.testing import make_regression
from tests import launching
from tests.support.callbacks import CallAt, FailAt
from tests.support.trainers import linear_trainer

DATA = make_regression(16)


def three_layers() -> nn.Sequential:
    """20, 20 and 5 parameters."""
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))


def first_lines(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The first two lines of what was printed."""
    first, second, *_ = capsys.readouterr().out.splitlines()
    return first, second


def test_a_head_that_no_optimizer_has_is_named_and_frozen_layers_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    """The one was forgotten, the others are meant not to be trained."""
    model = three_layers()
    optimizer = SGD(model[1].parameters(), lr=0.1)
    trainer = Trainer(model, nn.MSELoss(), optimizer)
    trainer.train(DATA, 1)
    names = "0.weight, 0.bias and 2 more (25, not frozen)"
    assert first_lines(capsys)[1] == f"Trains 20 of 45 parameters; no optimizer has {names}"
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    trainer.train(DATA, 1)
    assert first_lines(capsys)[1] == "Trains 20 of 45 parameters (25 frozen)"


def test_everything_that_is_trained_beside_the_model_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Modules that were added, and a parameter that two layers share is one."""
    model, added = three_layers(), nn.Linear(1, 1)
    model[1].weight = model[0].weight
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1))
    trainer.add_module("added", added, SGD(added.parameters(), lr=0.1))
    trainer.train(DATA, 1)
    assert first_lines(capsys)[1] == "Trains all 31 parameters"


def test_the_first_lines_say_what_an_update_is_made_of_and_where_the_run_writes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The batches that are accumulated, and the files and folders of all callbacks."""
    model, best, states = nn.Linear(4, 1), tmp_path / "best.pt", tmp_path / "states"
    callbacks: list[CallbackLike] = [*DEFAULT_CALLBACKS, SaveBestModelCallback(best), SaveTrainingStateCallback(states)]
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=callbacks)
    trainer.train(DATA, 1, DATA, per_device_batch_size=2, gradient_accumulation_steps=4)
    first, second = first_lines(capsys)
    assert first.startswith("Training starts: 1 epoch of 2 updates, 8 samples per update (4 batches of 2); 1 process")
    assert second == f"Trains all 5 parameters; writes to {best}, {states}"


def train_each(models: dict[str, Any], trained: dict[str, Any], rates: dict[str, float]) -> None:
    """Train models in a loop of the script; each optimizer has some of the parameters."""
    optimizers = {name: SGD(trained[name], lr=rate) for name, rate in rates.items()}
    with Run(models, optimizers, DATA, num_epochs=1, callbacks=[PrintProgressCallback]) as run:
        for inputs, targets in run.batches():
            for name in optimizers:
                run.backward(nn.functional.mse_loss(models[name](inputs), targets), model=name)
                run.step(name)


def test_a_loop_of_the_script_says_the_same_of_its_models(capsys: pytest.CaptureFixture[str]) -> None:
    """A model without an optimizer, such as a copy, is not taken for forgotten; what two models share counts once.

    The rate of the first optimizer is in its column, those of the others are by name below the row.
    """
    models: dict[str, Any] = {"online": nn.Linear(4, 1), "target": nn.Linear(4, 1)}
    train_each(models, {"online": [models["online"].weight]}, {"online": 0.1})
    said = "Trains 4 of 5 parameters; no optimizer has online.bias (1, not frozen); no TerminateOnNaNCallback"
    assert first_lines(capsys)[1] == said
    encoder = nn.Linear(4, 4)
    models = {name: nn.Sequential(encoder, nn.Linear(4, 1)) for name in ("first", "second")}
    trained = {"first": models["first"].parameters(), "second": models["second"][1].parameters()}
    train_each(models, trained, {"first": 0.1, "second": 0.25})
    printed = capsys.readouterr().out
    assert printed.splitlines()[1] == "Trains all 30 parameters; no TerminateOnNaNCallback"
    assert re.search(r"^ +1 .* 0\.1 .*\n       lr of second 0\.25$", printed, re.MULTILINE)


def test_updates_out_of_a_batch_are_counted_as_the_most_that_there_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    """How many the loop makes of each batch, and of how many samples, only the loop knows."""
    model = nn.Linear(4, 1)
    show, optimizer = [PrintProgressCallback], SGD(model.parameters(), lr=0.1)
    with Run(model, optimizer, DATA, num_epochs=1, max_updates_per_batch=3, callbacks=show) as run:
        for batch in run.batches():
            for inputs, targets in run.batches([batch]):
                run.backward(nn.functional.mse_loss(model(inputs), targets))
                run.step()
    assert first_lines(capsys)[0].startswith("Training starts: 1 epoch of at most 6 updates, 8 samples per batch; ")


def test_lazy_layers_are_not_left_out_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    """How many parameters they have shows only in the first forward pass."""
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1))
    trainer.train(DATA, 1)
    assert first_lines(capsys)[1] == "Trains all 4 parameters, and 2 tensors of sizes that are not known yet"


def test_a_list_without_any_default_callback_is_warned_of(tmp_path: Path) -> None:
    """Whoever names one of them knows that the list replaces them, and so does whoever passes an empty one."""
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    best = SaveBestModelCallback(tmp_path / "best.pt")
    with pytest.warns(UserWarning, match=r"callbacks=\[\*DEFAULT_CALLBACKS, \.\.\.\]") as warned:
        Trainer(model, nn.MSELoss(), optimizer, callbacks=[best])
    assert [one.filename for one in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(model, nn.MSELoss(), optimizer, callbacks=[])
        Trainer(model, nn.MSELoss(), optimizer, callbacks=[best, TerminateOnNaNCallback])
        Trainer(model, nn.MSELoss(), optimizer, callbacks=[ProgressBarCallback])
        Trainer(model, nn.MSELoss(), None, callbacks=[best])


FIGURES_OF_ROW = re.compile(" +lr  samples/s +time$")
FIGURES = {"lr": "0.01", "samples/s": "12,345", "time": "1.23 s"}


TRAIN = """
import sys
import torch
from pa_core import Trainer, get_default_callbacks
from pa_core.testing import make_regression
while True:  # until the reader has ended
    try:
        print("line", flush=True)
    except BrokenPipeError:
        break
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=get_default_callbacks()).train(make_regression(16), 2)
sys.stderr.write("trained")
"""


class Record(TrainerCallback):
    """Records the values of an epoch with its evaluation."""

    def __init__(self, **values: list[float]) -> None:
        self.values = values

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        for name, values in self.values.items():
            if trainer.run_history.current_epoch <= len(values):
                trainer.run_history.update_metric(name, values[trainer.run_history.current_epoch - 1])


def rows_of_run(
    capsys: pytest.CaptureFixture[str], *callbacks: CallbackLike, epochs: int = 3, **arguments: Any
) -> list[list[str]]:
    """The words of the header, and of each line up to the end of the run, without what a row says of its epoch."""
    capsys.readouterr()
    linear_trainer(PrintProgressCallback, *callbacks).train(DATA, epochs, DATA, **arguments)
    lines = capsys.readouterr().out.splitlines()
    header = next(index for index, line in enumerate(lines) if line.startswith("epoch"))
    end = next((i for i, line in enumerate(lines) if line.startswith(("Training ended", "Stopping"))), len(lines))
    assert all(len(line) <= 80 for line in lines[header:])
    of_figures = FIGURES_OF_ROW.search(lines[header])
    assert of_figures is not None
    cut = [line if line.startswith("      ") else line[: of_figures.start()] for line in lines[header:end]]
    return [line.replace(" loss", "_loss").split() for line in cut]


def test_a_value_is_marked_where_it_is_better_than_all_before(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the first one, nor NaN, nor what has no better or worse, nor a value of the training."""
    record = Record(f1=[0.5, 0.75, 0.625, 0.875], error=[2.0, 3.0, float("nan"), 1.0], speed=[1.0, 2.0, 3.0, 4.0])
    rows = rows_of_run(capsys, record, LogMetricsCallback, epochs=4)
    of = {name: [row[rows[0].index(name)] for row in rows[1:]] for name in ("f1", "error", "speed")}
    assert of["f1"] == ["0.5000", "*0.7500", "0.6250", "*0.8750"]
    assert of["error"] == ["2.0000", "3.0000", "nan", "*1.0000"]
    assert of["speed"] == ["1.0000", "2.0000", "3.0000", "4.0000"]
    assert not any(row[1].startswith("*") for row in rows)


@pytest.mark.parametrize("is_before", [True, False])
def test_a_logger_adds_its_metrics_to_the_rows(capsys: pytest.CaptureFixture[str], is_before: bool) -> None:
    """In one table, in whatever order the callbacks come."""
    callbacks: list[CallbackLike] = [LogMetricsCallback, PrintProgressCallback]
    trainer = linear_trainer(Record(accuracy=[0.5, 0.5]), *(callbacks if is_before else reversed(callbacks)))
    trainer.train(DATA, 2, DATA)
    header, *rows = capsys.readouterr().out.splitlines()[2:5]
    assert header == "epoch  train loss  eval loss  accuracy        lr  samples/s     time"
    assert [re.split(" +", row.strip())[0] for row in rows] == ["1", "2"]
    assert all(len(row) == len(header) for row in rows)


def test_of_many_metrics_the_watched_ones_come_first_and_the_rest_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row has eight values, the same ones in each epoch; the table at the end has all of them."""
    record = Record(
        **{f"train_recall_{index}": [0.5, 0.5] for index in range(30)},
        **{f"eval_recall_{index}": [0.5, 0.5] for index in range(30)},
    )
    best = SaveBestModelCallback(tmp_path / "best.pt", "eval_recall_29", greater_is_better=True)
    trainer = linear_trainer(record, LogMetricsCallback, PrintProgressCallback, best)
    trainer.train(DATA, 2, DATA)
    of_rows, _, of_table = capsys.readouterr().out.partition("Training ended")
    above, titles = of_rows.splitlines()[2:4]
    assert "29" in f"{above} {titles}".replace("_", " ").split()
    assert of_rows.count("       and 54 more\n") == 2
    assert "train_recall" not in of_rows
    assert "train recall" not in of_rows
    assert of_table.count("train_recall_") == 30


def test_without_rows_names_and_values_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """After the training and after the evaluation of each epoch."""
    linear_trainer(Record(accuracy=[0.5]), LogMetricsCallback).train(DATA, 1, DATA)
    patterns = (r"  train_loss_epoch [\d.]+", r"  eval_loss_epoch [\d.]+, accuracy 0\.5000")
    for line, pattern in zip(capsys.readouterr().out.splitlines(), patterns, strict=True):
        assert re.fullmatch(pattern, line)


def test_a_logger_that_sends_elsewhere_leaves_the_losses(capsys: pytest.CaptureFixture[str]) -> None:
    """They are on the console all the same; with ``super()`` the metrics are as well."""
    sent: list[dict[str, float]] = []

    class SendElsewhere(LogMetricsCallback):
        @override
        def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
            sent.append(metrics)

    class SendAndPrint(SendElsewhere):
        @override
        def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
            super().log_metrics(trainer, metrics)
            LogMetricsCallback.log_metrics(self, trainer, metrics)

    record = Record(accuracy=[0.5])
    assert rows_of_run(capsys, record, SendElsewhere, epochs=1)[0] == ["epoch", "train_loss", "eval_loss"]
    assert [set(metrics) for metrics in sent] == [{"train_loss_epoch"}, {"accuracy", "eval_loss_epoch"}]
    assert rows_of_run(capsys, record, SendAndPrint, epochs=1)[0] == ["epoch", "train_loss", "eval_loss", "accuracy"]


def test_titles_take_two_lines_where_that_makes_room_for_a_metric() -> None:
    """Metrics of training and evaluation beside both losses, with their full names; marks take room of the gap."""
    names = ["train_loss_epoch", "eval_loss_epoch", "train_accuracy_epoch", "eval_accuracy_epoch", "eval_f1_epoch"]
    rows = EpochRows()
    lines = rows.lines("1", dict.fromkeys(names, 0.5), names[1:], FIGURES)
    assert lines == [
        "        train    eval     train      eval    eval",
        "epoch    loss    loss  accuracy  accuracy      f1        lr  samples/s     time",
        "    1  0.5000 *0.5000   *0.5000   *0.5000 *0.5000      0.01     12,345   1.23 s",
    ]
    assert rows.lines("2", {}, (), FIGURES) == [
        "    2       -       -         -         -       -      0.01     12,345   1.23 s"
    ]


def test_metrics_have_the_room_that_there_is() -> None:
    """No line is longer than 80 columns, and every value is there; names that are alike or long move nothing else."""
    metrics = {f"metric_{number}_epoch": float(number) for number in range(12)} | {"long_" * 9 + "name": 0.5}
    lines = EpochRows().lines("1", metrics, figures=FIGURES)
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["metric"] * 5
    assert lines[1].split() == ["epoch", *map(str, range(5)), *FIGURES]
    assert all(line.startswith("       metric_") or line.startswith("       long_") for line in lines[3:])
    for name in [f"metric_{number}_epoch" for number in range(5, 12)] + ["long_" * 9 + "name"]:
        assert f"{name} " in "\n".join(lines[3:])

    lines = EpochRows().lines("1", {"train_loss_epoch": 1.0, "a" * 70: 0.5}, figures=FIGURES)
    assert lines[0] == "epoch  train loss        lr  samples/s     time"
    assert lines[2] == f"       {'a' * 70} 0.5000"
    lines = EpochRows().lines("1", {"lr": 0.5, "epoch": 3.0}, figures=FIGURES)
    assert lines[0] == "epoch        lr  samples/s     time"
    assert lines[2:] == ["       lr 0.5000, epoch 3.0000"]
    wide = EpochRows().lines("1", {"a": -1.234e-10, "b": 0.5}, ["a"], FIGURES)
    assert wide[1] == "    1 *-1.23e-10 0.5000      0.01     12,345   1.23 s"
    for order in (("f1_epoch", "f1"), ("f1", "f1_epoch")):
        assert EpochRows().lines("1", dict.fromkeys(order, 0.5))[0].split() == ["epoch", *order]


def test_a_metric_that_comes_late_gets_a_column_under_a_new_header() -> None:
    """Where a metric is missing in a row there is a dash, and columns stay where they are."""
    rows = EpochRows()
    first = rows.lines("1", {"train_loss_epoch": 1.0}, figures=FIGURES)
    second = rows.lines("2", {"train_loss_epoch": 0.5, "f1": 0.25}, ["f1"], FIGURES)
    third = rows.lines("3", {"train_loss_epoch": 0.25}, figures=FIGURES)
    assert [len(lines) for lines in (first, second, third)] == [2, 2, 1]
    assert second[0] == "epoch  train loss       f1        lr  samples/s     time"
    assert second[1] == "    2      0.5000  *0.2500      0.01     12,345   1.23 s"
    assert third[0] == "    3      0.2500        -      0.01     12,345   1.23 s"


def test_a_resumed_run_prints_a_header_and_remembers_the_best(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What was better before the interruption is still the best."""
    record = Record(accuracy=[0.9, 0.5, 0.75, 0.95])
    rows_of_run(capsys, record, LogMetricsCallback, SaveTrainingStateCallback(tmp_path), epochs=2)
    rows = rows_of_run(capsys, record, LogMetricsCallback, epochs=4, resume_from=tmp_path)
    assert [row[0] for row in rows] == ["epoch", "3", "4"]
    assert [row[-1] for row in rows[1:]] == ["0.7500", "*0.9500"]


def test_a_run_resumed_in_an_evaluation_says_nothing_of_the_training(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """There are dashes for the loss, rate and speed of a training that an earlier run did."""
    preempt = CallAt("on_eval_step_end", AnyTrainer.request_preemption)
    states = SaveTrainingStateCallback(tmp_path, stop_on_signals=["SIGUSR1"])
    with pytest.raises(TrainingPreempted):
        linear_trainer(PrintProgressCallback, states, preempt).train(DATA, 2, DATA)
    capsys.readouterr()
    linear_trainer(PrintProgressCallback).train(DATA, 2, DATA, resume_from=tmp_path)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if re.match(" +[12] ", line)]
    assert [rows[0][index] for index in (0, 1, 3, 4)] == ["1", "-", "-", "-"]
    assert "-" not in rows[1]


def test_evaluation_sets_share_the_row_of_an_evaluation_within_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    """As they do after the epoch; a run that ends between two of them has a row of the first."""

    def fail_in_noisy(trainer: AnyTrainer) -> None:
        if trainer.eval_name == "noisy":
            raise RuntimeError("broken")

    fail = CallAt("on_eval_epoch_start", fail_in_noisy, 3)
    trainer = linear_trainer(PrintProgressCallback, StepBasedEvaluationCallback(1), fail)
    with pytest.raises(RuntimeError, match="broken"):
        trainer.train(DATA, 2, {"val": DATA, "noisy": DATA})
    _, _, header, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert header[:9] == ["epoch", "train", "loss", "eval", "val", "loss", "eval", "noisy", "loss"]
    assert [row[:2] for row in rows[:2]] == [["0.50", "-"], ["1", rows[1][1]]]
    assert all(row[2].strip("*") == row[3].strip("*") for row in rows[:2])
    assert rows[2][0] == "1.50"
    assert rows[2][3] == "-"


def test_a_run_goes_on_when_nobody_reads_what_it_prints(launch: launching.Launch) -> None:
    """As behind ``| head -1``: there is a warning among the errors, and the training is done."""
    (launch.folder / "train.py").write_text(TRAIN)
    command = f"{shlex.join(launching.forked_python())} train.py 2> err.txt | true; sleep 0.1"
    launching.run_command(["sh", "-c", command], folder=launch.folder)
    errors = (launch.folder / "err.txt").read_text()
    assert "Standard output cannot be written to any more ([Errno 32] Broken pipe)" in errors
    assert "train.py" in errors.splitlines()[0]
    assert "trained" in errors


def test_a_run_that_stops_in_an_evaluation_has_the_row_of_its_training(capsys: pytest.CaptureFixture[str]) -> None:
    """What is known of the epoch is printed before the reason of the stop; and before the traceback of an error."""
    rows = rows_of_run(capsys, LogMetricsCallback, FailAt("on_eval_epoch_start", StopTrainingError("enough")))
    assert [row[0] for row in rows] == ["epoch", "1"]
    with pytest.raises(RuntimeError, match="broken"):
        linear_trainer(PrintProgressCallback, FailAt("on_eval_epoch_start", RuntimeError("broken"))).train(
            DATA, 1, DATA
        )
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "1"


def test_what_is_recorded_after_its_row_comes_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    """By a callback behind the logger, at the end of an epoch: that is not of the next one."""

    def record_late(trainer: AnyTrainer) -> None:
        trainer.run_history.update_metric("late", torch.tensor(float(trainer.run_history.current_epoch)))

    rows = rows_of_run(capsys, LogMetricsCallback, CallAt("on_training_run_epoch_end", record_late))
    assert [row[:2] for row in rows if row[0] == "late"] == [["late", "1.0000"], ["late", "2.0000"]]
    assert [row[0] for row in rows] == ["epoch", "1", "late", "2", "late", "3"]


def test_a_logger_prints_at_once_outside_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """``log_metrics`` of a callback that no trainer has is a way to print some values."""
    LogMetricsCallback().log_metrics(linear_trainer(), {"accuracy": 0.5, "loss": 2.0})
    assert capsys.readouterr().out == "  accuracy 0.5000, loss 2.0000\n"


TRAINED = "on_train_epoch_end"


class LogToList(LogMetricsCallback):
    """A logger as users write them: its ``__init__`` does not call that of its base class."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    @override
    def on_training_run_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        assert trainer.run_config.to_dict()

    @override
    def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
        self.logged.append((trainer.run_history.current_epoch, dict(metrics)))

    @property
    def names(self) -> list[set[str]]:
        """The names of the metrics of each call."""
        return [set(metrics) for _, metrics in self.logged]


class RecordTensors(TrainerCallback):
    """Records metrics as users do: as tensors, in several events."""

    def __init__(self, **metrics: str) -> None:
        for event in metrics.values():
            setattr(self, event, partial(self._record, [name for name in metrics if metrics[name] == event]))

    def _record(self, names: list[str], trainer: AnyTrainer, **_: Any) -> None:
        for name in names:
            trainer.run_history.update_metric(name, torch.tensor([0.5]))


def test_metrics_are_logged_when_they_belong_to_the_phase() -> None:
    """Metrics with train in their name come after the training epoch, all others after the evaluation, as numbers."""
    logger = LogToList()
    record = RecordTensors(accuracy=TRAINED, my_train_accuracy=TRAINED, precision="on_eval_epoch_end")
    linear_trainer(record, logger).train(DATA, 2, DATA)
    assert logger.names == 2 * [{"my_train_accuracy", "train_loss_epoch"}, {"accuracy", "eval_loss_epoch", "precision"}]
    assert [epoch for epoch, _ in logger.logged] == [1, 1, 2, 2]
    assert all(type(value) is float for _, metrics in logger.logged for value in metrics.values())


def test_a_metric_is_logged_once_and_none_is_forgotten() -> None:
    """What is recorded behind the logger, or without any evaluation, is logged at the end of its epoch or run."""
    logger = LogToList()
    late = RecordTensors(late="on_training_run_epoch_end", behind="on_eval_epoch_end")
    linear_trainer(logger, late).train(DATA, 2, DATA)
    assert logger.names == [
        {"train_loss_epoch"},
        {"eval_loss_epoch"},
        {"behind"},
        {"train_loss_epoch"},
        {"eval_loss_epoch", "late"},
        {"behind"},
        {"late"},
    ]

    logger = LogToList()
    linear_trainer(RecordTensors(accuracy=TRAINED), logger).train(DATA, 1)
    assert logger.names == [{"train_loss_epoch"}, {"accuracy"}]


def test_a_later_run_logs_its_own_metrics_only() -> None:
    """Old metrics are not logged again, and new values are, even if there are as many of them as before."""
    logger = LogToList()
    trainer = linear_trainer(logger)
    trainer.train(DATA, 1, DATA)
    trainer.train(DATA, 1, reset_run_history=False)
    trainer.evaluate(DATA)
    trainer.evaluate(DATA)
    assert logger.names == [
        {"train_loss_epoch"},
        {"eval_loss_epoch"},
        {"train_loss_epoch"},
        {"evaluation_loss"},
        {"evaluation_loss"},
    ]


def test_the_closing_table_names_the_best_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    """Losses are best when low, accuracies when high; what was told wins, and other names have a best only then."""
    names = ("accuracy", "my_error", "speed", "beauty", "score")
    record = Record(**{name: [0.5, 0.75, 0.25] for name in names})
    summary = PrintProgressCallback(greater_is_better={"beauty": True, "score": False})
    linear_trainer(record, summary).train(DATA, 3, DATA)
    table = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[-8:]}
    assert table["metric"] == ["last", "best", "epoch"]
    assert table["accuracy"] == ["0.25", "0.75", "2"]
    assert table["my_error"] == ["0.25", "0.25", "3"]
    assert table["beauty"] == ["0.25", "0.75", "2"]
    assert table["score"] == ["0.25", "0.25", "3"]
    assert table["speed"] == ["0.25", "-", "-"]


ONES = TensorDataset(torch.ones(8, 2), torch.ones(8, 1))


def printed(
    capsys: pytest.CaptureFixture[str], *callbacks: TrainerCallback, kind: type[Trainer] = Trainer, lazy: bool = False
) -> list[str]:
    """The lines of a run of four epochs that say what is trained."""
    model = nn.Sequential(nn.LazyLinear(3) if lazy else nn.Linear(2, 3), nn.Linear(3, 1))
    if callbacks:
        model[0].requires_grad_(False)
    trainer = kind(
        model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[*DEFAULT_CALLBACKS, *callbacks]
    )
    trainer.train(ONES, num_epochs=4, per_device_batch_size=4)
    return [line for line in capsys.readouterr().out.splitlines() if "rains " in line]


def test_a_line_says_when_layers_thaw(capsys: pytest.CaptureFixture[str]) -> None:
    """And when they are frozen again."""

    def thaw(trainer: Any) -> None:
        trainer.model[0].requires_grad_({2: True, 3: False}.get(trainer.run_history.current_epoch, False))

    lines = printed(capsys, CallAt("on_training_run_epoch_end", thaw))
    assert lines == [
        "Trains 4 of 13 parameters (9 frozen)",
        "From epoch 3 on, trains all 13 parameters",
        "From epoch 4 on, trains 4 of 13 parameters (9 frozen)",
    ]


class Adversarial(Trainer):
    """Freezes a part within each step, as adversarial training does."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        model: Any = self.model
        output = super().calculate_train_batch_loss(batch)
        model[1].requires_grad_(False)
        return output


@pytest.mark.parametrize(("kind", "lazy"), [(Trainer, False), (Trainer, True), (Adversarial, False)])
def test_other_runs_print_no_such_line(capsys: pytest.CaptureFixture[str], kind: type[Trainer], lazy: bool) -> None:
    """Sizes that become known are no change, nor is what a step freezes."""
    assert len(printed(capsys, kind=kind, lazy=lazy)) == 1
