"""Whether a higher or a lower value of a metric is the better one."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from pa_callbacks_extra import EarlyStoppingCallback, ModelEmaCallback
from pa_core import AnyTrainer, PrintProgressCallback, SaveBestModelCallback, Trainer, TrainerCallback
from pa_core.callbacks.best_metric import direction_in_name
from pa_core.testing import make_regression
from tests.support.callbacks import CallAt

JUDGES = [SaveBestModelCallback, EarlyStoppingCallback, ModelEmaCallback]

HIGHER = [
    "eval_accuracy",
    "eval_acc",
    "eval_top1",
    "val_acc@5",
    "eval_MulticlassAccuracy",
    "eval_MulticlassAUROC",
    "eval_recall_0",
    "meanIoU",
    "eval_map_50",
    "eval_PeakSignalNoiseRatio",
    "eval_R2Score",
    "eval_MulticlassJaccardIndex",
    "eval_MulticlassCohenKappa",
    "eval_PearsonCorrCoef",
    "eval_StructuralSimilarityIndexMeasure",
    "eval_BLEUScore",
    "rougeL",
    "eval_ndcg@10",
    "eval_AveragePrecision",
    "log_likelihood",
    "ExplainedVariance",
    "valacc_score",
]
LOWER = [
    "eval_loss_epoch",
    "ema_model_eval_loss_epoch",
    "valloss",
    "error_rate",
    "eval_mse",
    "eval_MeanAbsolutePercentageError",
    "eval_ppl",
    "eval_WordErrorRate",
    "negative_log_likelihood",
    "eval_crossentropy",
    "eval_KLDivergence",
    "FrechetInceptionDistance",
    "brier_score",
    "BinaryCalibrationError",
    "eval_HammingDistance",
    "RetrievalFallOut",
]
NEITHER = ["lr", "grad_norm", "epoch", "samples_per_second", "train_metric", "eval_ConfusionMatrix", "custom"]


@pytest.mark.parametrize(
    ("names", "expected"), [(HIGHER, True), (LOWER, False), (NEITHER, None)], ids=["higher", "lower", "neither"]
)
def test_names_tell(names: list[str], expected: bool | None) -> None:
    """Names as scripts and torchmetrics have them say which direction is better, or nothing."""
    assert {name: direction_in_name(name) for name in names} == dict.fromkeys(names, expected)


def test_metrics_of_torchmetrics_that_say_which_is_better_agree() -> None:
    """Where the class of a metric knows its direction, its name tells the same, or nothing."""
    module: Any = importlib.import_module("torchmetrics")
    classes = {name: getattr(module, name) for name in module.__all__}
    known = {
        name: found.higher_is_better
        for name, found in classes.items()
        if getattr(found, "higher_is_better", None) is not None
    }
    assert len(known) > 30
    assert [name for name, direction in known.items() if direction_in_name(name) not in (direction, None)] == []


@pytest.mark.parametrize("judge", JUDGES)
def test_a_default_that_contradicts_the_name_is_warned_of(judge: Callable[..., Any]) -> None:
    """The line of the script is named, and what to pass; the default stays what it is documented to be."""
    with pytest.warns(UserWarning, match="eval_MulticlassAccuracy.*greater_is_better=True") as warned:
        callback = judge(watch_metric="eval_MulticlassAccuracy")
    assert [one.filename for one in warned] == [__file__]
    assert callback.greater_is_better is callback.best.greater_is_better is False


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("metric", ["eval_accuracy", "eval_error", "custom"])
@pytest.mark.parametrize("direction", [True, False])
def test_what_is_said_counts_without_a_word(judge: Callable[..., Any], metric: str, direction: bool) -> None:
    """An explicit direction wins over the name, whichever it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        callback = judge(watch_metric=metric, greater_is_better=direction)
    assert callback.greater_is_better is callback.best.greater_is_better is direction


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("metric", ["eval_loss_epoch", "ema_model_eval_val_loss_epoch"])
def test_the_highest_loss_is_not_taken_for_the_best_without_a_word(judge: Callable[..., Any], metric: str) -> None:
    """It is once, where the callback is created: the worst model would be kept."""
    with pytest.warns(UserWarning, match=f"A higher {metric} .*: leave greater_is_better out") as warned:
        judge(watch_metric=metric, greater_is_better=True)
    assert [one.filename for one in warned] == [__file__]


@pytest.mark.parametrize("judge", JUDGES)
def test_losses_and_unknown_names_need_no_direction(judge: Callable[..., Any]) -> None:
    """The default suits a loss, and what nobody knows."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert judge().greater_is_better is False
        assert judge(watch_metric="custom").greater_is_better is False


def record_scores(trainer: AnyTrainer) -> None:
    """Record the value of an epoch for two metrics."""
    for name in ("custom", "accuracy"):
        trainer.run_history.update_metric(name, [0.5, 0.75, 0.25][trainer.run_history.current_epoch - 1])


@pytest.mark.parametrize("direction", [True, False])
def test_the_best_value_of_the_table_is_the_one_that_was_saved(
    direction: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a metric that a callback judges by, whatever its name; that of another one by its name."""
    save = SaveBestModelCallback(tmp_path / "best.pt", "custom", greater_is_better=direction)
    model = nn.Linear(4, 1)
    callbacks: list[TrainerCallback] = [CallAt("on_train_epoch_end", record_scores), save, PrintProgressCallback()]
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=callbacks)
    trainer.train(make_regression(4), 3)
    best, epoch = (0.75, 2) if direction else (0.25, 3)
    printed = capsys.readouterr().out
    assert re.search(rf"custom +0.25 +{best} +{epoch}\n", printed), printed
    assert re.search(r"accuracy +0.25 +0.75 +2\n", printed), printed
    assert torch.load(tmp_path / "best.pt", weights_only=True)["best_value"] == best
