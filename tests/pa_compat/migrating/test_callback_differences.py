"""What the pages on differences from the original say of callbacks: a test for each row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from typing_extensions import override

from pa_core import AnyTrainer, MetricNotFoundError
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import (
    ConvertSyncBatchNormCallback,
    LogMetricsCallback,
    ModelEmaCallback,
    PrintProgressCallback,
    SaveBestModelCallback,
    StepBasedEvaluationCallback,
    TrainerCallback,
)
from pytorch_accelerated.utils import LimitBatches, ModelEma
from tests.pa_compat.test_documented_signatures import EVENTS
from tests.small_runs import make_trainer, samples

PAGE = Path(__file__).parents[3] / "docs" / "maintainers" / "differences-from-pytorch-accelerated.md"


def test_new_events() -> None:
    """The events that the page lists are those that are not documented, and a method of this name is called."""
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith("| <!-- new_events -->")]
    documented = {*EVENTS, "new_events"}
    listed = {name for name in re.findall(r"`(\w+)`", row) if name not in documented}
    ours = {name for name in vars(TrainerCallback) if name.startswith("on_")}
    assert listed == ours - documented
    called: list[str] = []

    class Fails(TrainerCallback):
        @override
        def on_prepare_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            called.append("on_prepare_start")

        @override
        def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
            called.append("on_optimizer_step_end")

        @override
        def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            raise KeyError

        @override
        def on_exception(self, trainer: AnyTrainer, exception: BaseException, **kwargs: Any) -> None:
            called.append("on_exception")

    with pytest.raises(KeyError):
        make_trainer(Trainer, Fails).train(samples(4), 1)
    assert called == ["on_prepare_start", "on_optimizer_step_end", "on_exception"]


def test_typo() -> None:
    """A method that nobody would ever call is told of, with the event that may have been meant."""

    class Misspelt(TrainerCallback):
        def on_train_epoch_ends(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            """Never called."""

    with pytest.warns(UserWarning, match="on_train_epoch_end\\b"):
        make_trainer(Trainer, Misspelt)


def test_unknown_metric(tmp_path: Path) -> None:
    """The error lists the metrics that there are."""
    save = SaveBestModelCallback(tmp_path / "best.pt", watch_metric="acuracy")
    with pytest.raises(MetricNotFoundError, match="eval_loss_epoch, train_loss_epoch"):
        make_trainer(Trainer, save).train(samples(4), 1, eval_dataset=samples(4))


def test_direction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a word on the direction the worst accuracy is saved, which is warned of and shown by the table."""

    class Accuracy(Trainer):
        @override
        def eval_epoch_end(self) -> None:
            self.run_history.update_metric("accuracy", self.run_history.current_epoch / 10)

    with pytest.warns(UserWarning, match="greater_is_better=True"):
        save = SaveBestModelCallback(tmp_path / "best.pt", watch_metric="accuracy")
    make_trainer(Accuracy, save, PrintProgressCallback).train(samples(4), 2, eval_dataset=samples(4))
    assert torch.load(tmp_path / "best.pt", weights_only=True)["best_value"] == 0.1
    assert re.search(r"accuracy +0.2 +0.1 +1\n", capsys.readouterr().out)


def test_train_in_name() -> None:
    """A training metric with a prefix is logged with the others of the training."""
    logged: list[list[str]] = []

    class Log(LogMetricsCallback):
        @override
        def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
            logged.append(sorted(metrics))

    class Teacher(Trainer):
        @override
        def train_epoch_end(self) -> None:
            self.run_history.update_metric("teacher_train_loss", 1.0)

    make_trainer(Teacher, Log).train(samples(4), 1, eval_dataset=samples(4))
    assert logged == [["teacher_train_loss", "train_loss_epoch"], ["eval_loss_epoch"]]


def test_late_metrics() -> None:
    """A metric that is recorded when the epoch is over is logged with that epoch."""
    logged: list[tuple[int, str]] = []

    class Late(TrainerCallback):
        @override
        def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            trainer.run_history.update_metric("late", 1.0)

    class Log(LogMetricsCallback):
        @override
        def log_metrics(self, trainer: AnyTrainer, metrics: dict[str, float]) -> None:
            logged.extend((trainer.run_history.current_epoch, name) for name in metrics)

    make_trainer(Trainer, Late, Log).train(samples(4), 2)
    assert logged == [(1, "train_loss_epoch"), (1, "late"), (2, "train_loss_epoch"), (2, "late")]


@pytest.mark.runs_on("one_process", "two_ranks")
def test_ema_moves(shared_tmp_path: Path) -> None:
    """The average has moved as often as the weights."""
    moved: list[int] = []

    class NoteMoves(ModelEma):
        @override
        def update(self, model: nn.Module) -> None:
            moved.append(1)
            super().update(model)

    average = ModelEmaCallback(save_path=shared_tmp_path / "ema.pt", model_ema=NoteMoves)
    trainer = make_trainer(Trainer, average)
    trainer.train(samples(16), 2, eval_dataset=samples(4), per_device_batch_size=2)
    assert len(moved) == trainer.run_history.clock.update > 2


@pytest.mark.runs_on("one_process", "two_ranks")
def test_ema_end(shared_tmp_path: Path) -> None:
    """The model is where a run without averaging ends; the file has the average."""
    plain = make_trainer(lr=1e-3)
    torch.default_generator.manual_seed(0)
    plain.train(samples(16), 2, eval_dataset=samples(4))
    average = ModelEmaCallback(decay=0.5, evaluate_during_training=False, save_path=shared_tmp_path / "ema.pt")
    averaged = make_trainer(Trainer, average, lr=1e-3)
    torch.default_generator.manual_seed(0)
    averaged.train(samples(16), 2, eval_dataset=samples(4))

    weight: Any = averaged.model.weight
    assert torch.equal(weight, cast("Any", plain.model.weight))
    saved = torch.load(shared_tmp_path / "ema.pt", weights_only=True)["model_state_dict"]["weight"]
    assert torch.equal(saved, cast("Any", average.ema.module.weight))
    assert not torch.equal(saved, weight)


class NoteLayer(TrainerCallback):
    """Notes of which class the last layer is in training."""

    def __init__(self) -> None:
        self.seen: set[type[nn.Module]] = set()

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.seen.add(type(list(trainer.get_model().modules())[-1]))


def with_batch_norm() -> nn.Sequential:
    """A layer, and batch norm behind it."""
    torch.default_generator.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)).double()


@pytest.mark.runs_on("two_ranks")
def test_sync_on_cpu() -> None:
    """The statistics of two processes with two samples each are those of four samples."""
    torch.default_generator.manual_seed(0)
    model = with_batch_norm()
    expected = with_batch_norm()
    expected(samples(4).tensors[0])
    trainer = make_trainer(Trainer, ConvertSyncBatchNormCallback, model=model)
    trainer.train(samples(4), 1, per_device_batch_size=2)
    assert torch.allclose(dict(model.named_buffers())["1.running_mean"], expected.get_buffer("1.running_mean"))


@pytest.mark.runs_on("one_process", "two_ranks")
def test_sync_end() -> None:
    """Other layers than its own are in the model while the run lasts on several processes, and not afterwards."""
    note = NoteLayer()
    model = with_batch_norm()
    trainer = make_trainer(Trainer, ConvertSyncBatchNormCallback, note, model=model)
    trainer.train(samples(4), 1, per_device_batch_size=2)
    is_alone = trainer.run_config.num_processes == 1
    assert (note.seen == {nn.BatchNorm1d}) == is_alone
    assert type(model[1]) is nn.BatchNorm1d


def test_intermediate() -> None:
    """Two epochs have two evaluation losses, and those of the evaluations within them a name of their own."""
    trainer = make_trainer(Trainer, StepBasedEvaluationCallback(3))
    trainer.train(samples(16), 2, eval_dataset=samples(4), per_device_batch_size=2)
    values = trainer.run_history.get_metric_values
    assert len(list(values("eval_loss_epoch"))) == len(list(values("train_loss_epoch"))) == 2
    assert len(list(values("intermediate_eval_loss_epoch"))) == 16 // 3


def test_limit_within() -> None:
    """A trainer that is made within the context stays limited; one made before is limited within it, with a warning."""
    before = make_trainer()
    with LimitBatches(2):
        within = make_trainer()
        with pytest.warns(UserWarning, match="limited to 2 batches"):
            before.train(samples(16), 1, per_device_batch_size=2)
    assert before.num_updates_completed == 2
    before.train(samples(16), 1, per_device_batch_size=2)
    within.train(samples(16), 1, per_device_batch_size=2)
    assert (before.num_updates_completed, within.num_updates_completed) == (8, 2)


def test_console(capsys: pytest.CaptureFixture[str]) -> None:
    """An epoch is a row with its metrics, and a run ends with a table of them."""
    make_trainer(Trainer, PrintProgressCallback, LogMetricsCallback).train(samples(4), 2)
    printed = capsys.readouterr().out
    assert re.search(r"\nepoch +train loss +lr +samples/s +time\n +1 .*\n +2 ", printed)
    assert "Starting epoch" not in printed
    assert "train_loss_epoch: " not in printed
    assert re.search(r"metric +last +best +epoch\n +train_loss_epoch", printed)
