"""When a run ends early: which value of a metric is better, how long a run waits, and what is remembered."""

from __future__ import annotations

import importlib
import math
import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from typing_extensions import override

from pa_callbacks_extra import ConvertSyncBatchNormCallback, EarlyStoppingCallback, ModelEma, ModelEmaCallback
from pa_core import (
    AnyTrainer,
    ConfigurationError,
    PrintProgressCallback,
    Run,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
)
from pa_core.engine.best_metric import direction_in_name
from pa_core.testing import TinyClassifier, make_classification, make_regression
from tests.support.callbacks import CallAt


def record_scores(scores: Sequence[float]) -> CallAt:
    """A callback that records a given score in each epoch of a run, so that it is known when the run has to end."""
    given = iter(scores)
    return CallAt("on_train_epoch_end", lambda trainer: trainer.run_history.update_metric("figure", next(given)))


class KeepError(TrainerCallback):
    """Keeps why a run was stopped."""

    @override
    def on_stop_training_error(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.error: StopTrainingError = kwargs["error"]


def make_trainer(*callbacks: TrainerCallback, lr: float = 0.1) -> Trainer[nn.Linear]:
    """A trainer of a linear model."""
    model = nn.Linear(4, 1)
    return Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=lr), callbacks=callbacks)


def epochs_run(scores: Sequence[float], *callbacks: TrainerCallback) -> int:
    """The number of epochs of a run that reaches the given scores, one in each epoch, and may end early."""
    trainer = make_trainer(record_scores(scores), *callbacks)
    trainer.train(make_regression(8), num_epochs=len(scores))
    return len(list(trainer.run_history.get_metric_values("figure")))


def watch_score(
    patience: int = 1, threshold: float = 0.01, *, greater_is_better: bool = False
) -> EarlyStoppingCallback:
    """The callback for the scores of ``epochs_run``."""
    return EarlyStoppingCallback(patience, threshold, "figure", greater_is_better)


SCORES = st.lists(st.sampled_from([0, 0.5, 1, 1.5, 2, 3, 4, 5, math.nan]), min_size=1, max_size=8)


@given(SCORES, st.integers(1, 3), st.sampled_from([0, 0.5, 1, 2]), st.booleans())
def test_a_run_ends_where_a_count_by_hand_says(
    scores: list[float], patience: int, threshold: float, greater_is_better: bool
) -> None:
    """It ends at the first epoch that is ``patience`` epochs away from its last improvement, which NaN never is."""
    best, since, expected = math.inf, 0, 0
    for score in scores:
        expected += 1
        if score < best and best - score >= threshold:
            best, since = score, 0
        else:
            since += 1
        if since == patience:
            break

    given_scores = [-score for score in scores] if greater_is_better else scores
    stop = watch_score(patience, threshold, greater_is_better=greater_is_better)
    assert epochs_run(given_scores, stop) == expected


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("stops_first", [True, False])
def test_the_best_model_is_that_of_the_last_epoch_in_any_order_of_callbacks(
    shared_tmp_path: Path, stops_first: bool
) -> None:
    """An epoch that was better, but not by the threshold, ends the run and is kept, whichever callback comes first."""
    stop, save = watch_score(threshold=1.0), SaveBestModelCallback(shared_tmp_path / "best.pt", "figure")

    assert epochs_run([5, 4.5, 1], *((stop, save) if stops_first else (save, stop))) == 2

    assert (save.best.value, save.best.epoch) == (4.5, 2)
    assert (stop.best.value, stop.best.epoch) == (5, 1)


@pytest.mark.runs_on("two_ranks")
def test_ranks_that_measured_different_values_stop_together() -> None:
    """Where each rank has a metric of its own, that of the first rank ends the run, on all ranks."""
    scores = [5, 4, 3, 3, 3, 3] if dist.get_rank() == 0 else [5, 6, 7, 8, 9, 10]

    assert epochs_run(scores, watch_score(patience=2)) == 5


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        ([4, 3, 3.5, 3.25], r"figure is 3.25: 2 epochs .* early_stopping_threshold=0.01 on 3, of epoch 2"),
        ([math.nan, math.nan], r"figure is nan: 2 epochs .* early_stopping_threshold=0.01\.$"),
    ],
    ids=["worse", "never a number"],
)
def test_the_error_says_why_the_run_ended(scores: list[float], reason: str) -> None:
    """Who listens for the stop learns the metric, the threshold and the best value."""
    keep = KeepError()
    make_trainer(record_scores(scores), watch_score(2), keep).train(make_regression(8), num_epochs=10)

    assert re.match(reason, str(keep.error))


def test_each_run_starts_without_a_best_value() -> None:
    """By default a second run is judged by its own metrics alone, with all of its patience."""
    callback = watch_score(patience=2)

    assert epochs_run([1, 2, 2, 2], callback) == 3
    assert epochs_run([9, 8, 9, 9, 9], callback) == 4


def test_a_best_value_may_be_kept_over_runs() -> None:
    """With ``reset_on_train=False`` a second run has to improve on the first, with all of its patience."""
    callback = EarlyStoppingCallback(2, 0.01, "figure", reset_on_train=False)

    assert epochs_run([1, 2, 2, 2], callback) == 3
    assert epochs_run([9, 8, 7, 6, 5], callback) == 2
    assert epochs_run([9, 0, 9, 9], callback) == 4


@pytest.mark.parametrize("metric", ["eval_loss_epoch", "intermediate_eval_loss_epoch"])
def test_a_run_without_an_evaluation_is_refused_before_it_trains(metric: str) -> None:
    """The loss to watch would never be recorded, which is known when the run starts."""
    trainer = make_trainer(EarlyStoppingCallback(watch_metric=metric))
    with pytest.raises(ConfigurationError, match="no eval_dataset"):
        trainer.train(make_regression(8), num_epochs=2)
    assert trainer.num_updates_completed == 0


def test_a_loop_of_the_script_may_evaluate_when_it_likes() -> None:
    """That it does shows only in its first epoch."""
    model, data = nn.Linear(4, 1), make_regression(8)
    stop = EarlyStoppingCallback(early_stopping_threshold=1e9)
    with Run(model, SGD(model.parameters(), lr=0.1), data, num_epochs=9, callbacks=[stop]) as run:
        for _ in run.epochs():
            for update in run.updates():
                for inputs, targets in update:
                    update.backward(nn.functional.mse_loss(model(inputs), targets))
                update.step()
            for inputs, targets in run.evaluation_batches(data):
                run.log("loss", nn.functional.mse_loss(model(inputs), targets))
    assert run.num_epochs_completed == 2


def test_a_metric_that_was_never_recorded_is_an_error_that_lists_those_that_were() -> None:
    """A misspelt metric is an error in the first epoch."""
    with pytest.raises(KeyError, match=r"watch_metric='train_los_epoch'(.|\n)*train_loss_epoch"):
        make_trainer(EarlyStoppingCallback(watch_metric="train_los_epoch")).train(make_regression(8), num_epochs=2)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"early_stopping_patience": 0}, "early_stopping_patience must be .* got 0"),
        ({"early_stopping_patience": "3"}, "early_stopping_patience must be .* got '3'"),
        ({"early_stopping_threshold": "0.1"}, "early_stopping_threshold must be .* got '0.1'"),
        ({"early_stopping_threshold": -0.5}, "early_stopping_threshold must be .* got -0.5"),
        ({"early_stopping_threshold": math.nan}, "early_stopping_threshold must be .* got nan"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any], named: str) -> None:
    """A patience of no epoch and a threshold that is no distance are refused when the callback is made."""
    with pytest.raises(ValueError, match=named):
        EarlyStoppingCallback(**arguments)


JUDGES = [SaveBestModelCallback, EarlyStoppingCallback, ModelEmaCallback]

NAMES = {
    True: """
        eval_accuracy eval_acc eval_top1 val_acc@5 eval_MulticlassAccuracy eval_MulticlassAUROC eval_recall_0 meanIoU
        eval_map_50 eval_PeakSignalNoiseRatio eval_R2Score eval_MulticlassJaccardIndex eval_MulticlassCohenKappa
        eval_PearsonCorrCoef eval_StructuralSimilarityIndexMeasure eval_BLEUScore rougeL eval_ndcg@10
        eval_AveragePrecision log_likelihood ExplainedVariance valacc_score
    """,
    False: """
        eval_loss_epoch ema_model_eval_loss_epoch valloss error_rate eval_mse eval_MeanAbsolutePercentageError eval_ppl
        eval_WordErrorRate negative_log_likelihood eval_crossentropy eval_KLDivergence FrechetInceptionDistance
        brier_score BinaryCalibrationError eval_HammingDistance RetrievalFallOut
    """,
    None: "lr grad_norm epoch samples_per_second train_metric eval_ConfusionMatrix custom",
}
"""Names of metrics, by whether a higher value is better."""


@pytest.mark.parametrize("expected", NAMES, ids=["higher", "lower", "neither"])
def test_names_tell(expected: bool | None) -> None:
    """Names as scripts and torchmetrics have them say which direction is better, or nothing."""
    names = NAMES[expected].split()
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


CONTRADICTED: list[tuple[str, dict[str, bool], str]] = [
    ("eval_MulticlassAccuracy", {}, "eval_MulticlassAccuracy.*greater_is_better=True"),
    *((name, {"greater_is_better": True}, f"A higher {name} .*: leave greater_is_better out")
      for name in ("eval_loss_epoch", "ema_model_eval_val_loss_epoch")),
]  # fmt: skip


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize(("metric", "given_direction", "told"), CONTRADICTED)
def test_a_direction_that_the_name_contradicts_is_warned_of(
    judge: Callable[..., Any], metric: str, given_direction: dict[str, bool], told: str
) -> None:
    """Once, at the line of the script, with what to pass; what is documented, or was passed, counts all the same."""
    with pytest.warns(UserWarning, match=told) as warned:
        callback = judge(watch_metric=metric, **given_direction)
    assert [one.filename for one in warned] == [__file__]
    assert callback.greater_is_better is callback.best.greater_is_better is bool(given_direction)


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize(
    "arguments",
    [
        *({"watch_metric": name, "greater_is_better": direction}
          for name in ("eval_accuracy", "eval_error", "custom") for direction in (True, False)),
        {},
        {"watch_metric": "custom"},
    ],
)  # fmt: skip
def test_other_directions_are_not_warned_of(judge: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """One that was passed wins over the name; losses and unknown names need none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        callback = judge(**arguments)
    expected = arguments.get("greater_is_better", False)
    assert callback.greater_is_better is callback.best.greater_is_better is expected


def record_two_metrics(trainer: AnyTrainer) -> None:
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
    callbacks: list[TrainerCallback] = [CallAt("on_train_epoch_end", record_two_metrics), save, PrintProgressCallback()]
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=callbacks)
    trainer.train(make_regression(4), 3)
    best, epoch = (0.75, 2) if direction else (0.25, 3)
    printed = capsys.readouterr().out
    assert re.search(rf"custom +0.25 +{best} +{epoch}\n", printed), printed
    assert re.search(r"accuracy +0.25 +0.75 +2\n", printed), printed
    assert torch.load(tmp_path / "best.pt", weights_only=True)["best_value"] == best


NUM_EPOCHS = 30


class Centre(nn.Module):
    """Subtracts a mean that it keeps in a buffer, which is not part of its state dict."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(inputs.detach().float().mean(0), 0.1)
        return inputs - self.mean


class Outcome(NamedTuple):
    """What a run leaves behind."""

    fingerprint: str
    num_epochs: int
    average: tuple[dict[str, Any], int]
    best_average: dict[str, Tensor]
    best: dict[str, Any]
    stopping: dict[str, Any]


def run(folder: Path, every: int, saves_first: bool, resume_from: Path | None = None, seed: int = 0) -> Outcome:
    """Train with dropout and batch norm until the average no longer improves, saving states on the way."""
    torch.default_generator.manual_seed(seed)
    model = nn.Sequential(Centre(), nn.Dropout(0.1), TinyClassifier(batch_norm=True))
    average = ModelEmaCallback(
        0.9, save_path=folder / "ema.pt", model_ema=partial(ModelEma, warm_up=True), update_every_n_steps=every
    )
    average.best.greater_is_better = saves_first  # one of the runs had its best average long before it was interrupted
    stopping = EarlyStoppingCallback(2, 0.1, "ema_model_eval_loss_epoch")
    save = SaveTrainingStateCallback(folder / f"states_{seed}", save_every_n_epochs=2, save_every_n_steps=7)
    callbacks = [save, average, stopping, ConvertSyncBatchNormCallback()] if saves_first else [average, stopping, save]
    trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(model.parameters(), lr=0.02), callbacks=callbacks)

    trainer.train(make_classification(48), NUM_EPOCHS, make_classification(24), resume_from=resume_from)

    trainer.gather(torch.zeros(1))  # wait until the first rank has written
    return Outcome(
        trainer.fingerprint(),
        trainer.num_epochs_completed,
        average=(
            {**average.ema.module.state_dict(), **dict(average.ema.module.named_buffers())},
            average.ema.num_updates,
        ),
        best_average=torch.load(folder / "ema.pt", weights_only=True)["model_state_dict"],
        best=average.best.state_dict(),
        stopping=stopping.state_dict(),
    )


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
@pytest.mark.parametrize(("every", "saves_first"), [(1, True), (3, False)])
def test_an_interrupted_run_ends_as_if_it_had_not_been(shared_tmp_path: Path, every: int, saves_first: bool) -> None:
    """From each of its states, a run ends with the same weights, average, metrics and reason, to the last bit."""
    whole = run(shared_tmp_path, every, saves_first)
    assert 3 <= whole.num_epochs < NUM_EPOCHS
    states = sorted((shared_tmp_path / "states_0").iterdir())

    for number in (1, len(states) - 2):  # within an epoch, and after one
        resumed = run(shared_tmp_path, every, saves_first, resume_from=states[number], seed=1 + number)
        assert resumed[:2] == whole[:2]
        torch.testing.assert_close(resumed[2:], whole[2:], rtol=0, atol=0)
