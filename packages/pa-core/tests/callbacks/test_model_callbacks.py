"""Keeping the best model of a run, by the best of the recorded values, and moving other modules to its device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torchmetrics.classification import MulticlassAccuracy
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    CheckpointError,
    ConfigurationError,
    MetricNotFoundError,
    MoveModulesToDeviceCallback,
    SaveBestModelCallback,
    StepBasedEvaluationCallback,
    StopTrainingError,
    Trainer,
    TrainerCallback,
)
from pa_core.callbacks import BestMetric
from pa_core.testing import TinyClassifier, make_regression
from tests.support.callbacks import CallAt, FailAt, TellAt
from tests.support.pa_core.scripted_scores import Script
from tests.support.trainers import linear_trainer

DATA = make_regression(16)


def scripted_trainer(
    scores: Sequence[float], save_best: SaveBestModelCallback, *others: TrainerCallback
) -> Trainer[nn.Linear]:
    """A trainer of which each epoch has the weights of its number, and the given score."""
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Trainer(model, nn.MSELoss(), optimizer, callbacks=[Script(scores), save_best, *others])


def epoch_of(trainer: Trainer[nn.Linear]) -> float:
    """The number of the epoch that the weights of a scripted trainer are from."""
    return trainer.model.weight[0, 0].item()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file in an empty folder."""
    return tmp_path / "best.pt"


@pytest.mark.parametrize(
    ("greater_is_better", "scores", "best"),
    [(False, [3.0, 1.0, 2.0], 2), (True, [1.0, 3.0, 2.0], 2), (False, [1.0, 1.0, 2.0], 1), (True, [3.0, 2.0, 1.0], 1)],
)
def test_the_best_model_is_saved_and_loaded(
    path: Path, greater_is_better: bool, scores: list[float], best: int
) -> None:
    """After the run the model has the weights of the best epoch, and the file says which and why."""
    save_best = SaveBestModelCallback(path, "figure", greater_is_better=greater_is_better)
    trainer = scripted_trainer(scores, save_best)
    trainer.train(DATA, num_epochs=3)
    assert epoch_of(trainer) == best
    content = torch.load(path, weights_only=True)
    assert (content["watch_metric"], content["best_value"], content["best_epoch"]) == ("figure", scores[best - 1], best)
    assert (save_best.best.value, save_best.best.epoch) == (scores[best - 1], best)


def test_the_default_judges_by_the_evaluation_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without arguments, the lowest evaluation loss decides, and the file is best_model.pt."""
    monkeypatch.chdir(tmp_path)
    trainer = linear_trainer(SaveBestModelCallback)
    trainer.train(DATA, 3, DATA)
    losses = [float(value) for value in trainer.run_history.get_metric_values("eval_loss_epoch")]
    assert torch.load("best_model.pt", weights_only=True)["best_value"] == min(losses)


def test_the_weights_of_the_last_update_stay_if_so_wanted(path: Path) -> None:
    """With ``load_saved_checkpoint=False`` the file has the best model, and the trainer the last one."""
    trainer = scripted_trainer([1.0, 2.0], SaveBestModelCallback(path, "figure", load_saved_checkpoint=False))
    trainer.train(DATA, num_epochs=2)
    assert epoch_of(trainer) == 2
    assert torch.load(path, weights_only=True)["model_state_dict"]["weight"][0, 0] == 1


@pytest.mark.parametrize("save_optimizer", [True, False])
@pytest.mark.parametrize("save_scheduler", [True, False])
def test_every_option_is_honoured_on_the_first_save(path: Path, save_optimizer: bool, save_scheduler: bool) -> None:
    """A run whose first epoch is its best has exactly the states in its file that were asked for."""
    save_best = SaveBestModelCallback(path, "figure", save_optimizer=save_optimizer, save_scheduler=save_scheduler)
    trainer = scripted_trainer([1.0, 2.0], save_best)
    trainer.train(DATA, 2, create_scheduler_fn=lambda optimizer: StepLR(optimizer, 1))
    content = torch.load(path, weights_only=True)
    assert ("optimizer_state_dict" in content) is save_optimizer
    assert ("scheduler_state_dict" in content) is save_scheduler
    assert epoch_of(trainer) == 1


def test_the_optimizer_is_that_of_the_best_epoch(path: Path) -> None:
    """With the weights come the optimizer and its learning rate, all of one moment."""
    trainer = scripted_trainer([1.0, 2.0], SaveBestModelCallback(path, "figure"))
    trainer.train(DATA, 2, per_device_batch_size=16, create_scheduler_fn=lambda optimizer: StepLR(optimizer, 1, 0.5))
    assert trainer.optimizer.param_groups[0]["lr"] == 0.05


def test_a_file_of_an_earlier_run_is_not_loaded_when_nothing_was_saved(path: Path) -> None:
    """A run in which no epoch had a number keeps its own weights, and leaves the file alone."""
    scripted_trainer([1.0], SaveBestModelCallback(path, "figure")).train(DATA, num_epochs=1)
    before = path.read_bytes()
    trainer = scripted_trainer([math.nan, math.nan], SaveBestModelCallback(path, "figure"))
    trainer.train(DATA, num_epochs=2)
    assert epoch_of(trainer) == 2
    assert path.read_bytes() == before


def test_a_run_that_ends_before_its_first_epoch_does_loads_nothing(path: Path) -> None:
    """A stop in mid-epoch is no crash, even though there is nothing to load."""
    stop = FailAt("on_train_step_end", StopTrainingError())
    trainer = scripted_trainer([1.0], SaveBestModelCallback(path, "figure"), stop)
    trainer.train(DATA, num_epochs=1)
    assert not path.exists()


def test_a_file_that_another_run_replaced_is_not_loaded(path: Path) -> None:
    """The error says what was found, and the model keeps the weights that this run gave it."""
    other = {"watch_metric": "figure", "best_value": 0.5, "best_epoch": 9}
    replace = CallAt("on_training_run_epoch_end", lambda trainer: trainer.save_checkpoint(path, other), 4)
    trainer = scripted_trainer([1.0, 2.0], SaveBestModelCallback(path, "figure"), replace)
    with pytest.raises(CheckpointError, match=r"replaced or removed(.|\n)*0\.5(.|\n)*1\.0"):
        trainer.train(DATA, num_epochs=2)
    assert epoch_of(trainer) == 2


@pytest.mark.parametrize(("reset_on_train", "best"), [(True, 5.0), (False, 1.0)])
def test_the_best_value_is_kept_over_runs_if_so_wanted(path: Path, reset_on_train: bool, best: float) -> None:
    """By default each run has a best model of its own; otherwise the best of all runs is loaded."""
    save_best = SaveBestModelCallback(path, "figure", reset_on_train=reset_on_train)
    trainer = scripted_trainer([1.0], save_best)
    trainer.train(DATA, num_epochs=1)
    script = trainer.callback_handler.callbacks[0]
    assert isinstance(script, Script)
    script.scores = [6.0, 5.0]
    trainer.train(DATA, num_epochs=2)
    assert save_best.best.value == best
    assert torch.load(path, weights_only=True)["best_value"] == best
    assert epoch_of(trainer) == (2 if reset_on_train else 1)


def score_updates(score: Callable[[int], float]) -> list[TrainerCallback]:
    """Makes the weights those of the number of updates, and records a score of it in each evaluation."""

    def weigh(trainer: AnyTrainer) -> None:
        nn.init.constant_(trainer.get_model().get_parameter("weight"), trainer.num_updates_completed)

    def record(trainer: AnyTrainer) -> None:
        trainer.run_history.update_metric("figure", score(trainer.num_updates_completed))

    return [CallAt("on_optimizer_step_end", weigh), TellAt("on_eval_epoch_end", lambda trainer, _: record(trainer))]


@pytest.mark.parametrize(("metric", "best"), [("intermediate_figure", 3), ("figure", 8)])
def test_the_best_of_the_evaluations_within_the_epochs_is_saved_where_it_is_measured(
    path: Path, metric: str, best: int
) -> None:
    """With the prefix of these evaluations the model is judged after each of them, without it after each epoch."""
    scores = {1: 0.5, 2: 0.4, 3: 0.2, 4: 0.9, 5: 0.6, 6: 0.7, 7: 0.8, 8: 0.1}
    trainer = linear_trainer(
        *score_updates(scores.__getitem__), StepBasedEvaluationCallback(1), SaveBestModelCallback(path, metric)
    )
    trainer.train(DATA, 2, DATA, per_device_batch_size=4)
    assert torch.load(path, weights_only=True)["best_value"] == scores[best]
    assert epoch_of(trainer) == best


def test_a_metric_of_evaluations_that_do_not_take_place_is_an_error(path: Path) -> None:
    """The name with the prefix in a run that evaluates after its epochs only."""
    trainer = scripted_trainer([1.0], SaveBestModelCallback(path, "intermediate_eval_loss_epoch"))
    with pytest.raises(MetricNotFoundError, match="intermediate_eval_loss_epoch"):
        trainer.train(DATA, 1, DATA)


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("name", ["folder", "file/best.pt"])
def test_a_path_that_cannot_be_written_is_refused_when_the_run_starts(shared_tmp_path: Path, name: str) -> None:
    """Not after the first epoch; and on all processes."""
    (shared_tmp_path / "folder").mkdir(exist_ok=True)
    (shared_tmp_path / "file").touch()
    trainer = linear_trainer(SaveBestModelCallback(shared_tmp_path / name))
    with pytest.raises(CheckpointError, match="save_path"):
        trainer.train(DATA, num_epochs=1, eval_dataset=DATA)
    assert trainer.num_updates_completed == 0


def test_a_url_for_the_best_model_is_refused_when_the_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written to a folder called `s3:`, neither then nor by an export."""
    monkeypatch.chdir(tmp_path)
    trainer = linear_trainer(SaveBestModelCallback("s3://bucket/best.pt"))
    with pytest.raises(CheckpointError, match="it is a URL"):
        trainer.train(DATA, num_epochs=1, eval_dataset=DATA)
    with pytest.raises(CheckpointError, match="not in an object store"):
        trainer.save_checkpoint("s3://bucket/model.pt")
    with pytest.raises(ConfigurationError, match="not in an object store"):
        trainer.save_model("s3://bucket/model")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_saved_in_another_way_needs_no_file(tmp_path: Path) -> None:
    """An override of `save_best` may write to a folder, or elsewhere."""

    class Export(SaveBestModelCallback):
        @override
        def save_best(self, trainer: AnyTrainer) -> None:
            trainer.save_model(self.path)

    (tmp_path / "export").mkdir()
    export = Export(tmp_path / "export", "figure", load_saved_checkpoint=False)
    scripted_trainer([1.0], export).train(DATA, num_epochs=1)
    assert (tmp_path / "export" / "model.safetensors").exists()


VALUES = st.lists(
    st.sampled_from([*(number / 8 for number in range(-4, 5)), 1e-30]) | st.floats(width=32), min_size=1, max_size=20
)
"""Any numbers and what is none; changes between some of them are just enough."""


@given(values=VALUES, greater_is_better=st.booleans(), min_change=st.sampled_from([0.0, 0.25, 1.5]) | st.floats(0, 10))
def test_the_best_value_is_the_first_that_is_better_by_enough(
    values: list[float], greater_is_better: bool, min_change: float
) -> None:
    """Changes are measured from the best value, so that small steps add up; ``is_improved_by`` foretells ``update``."""
    best = BestMetric(greater_is_better, min_change)
    expected: tuple[float | None, int | None] = None, None
    for epoch, value in enumerate(values, start=1):
        gain = (value - (expected[0] or 0)) * (1 if greater_is_better else -1)
        is_better = not math.isnan(value) and (expected[0] is None or (gain > 0 and gain >= min_change))
        assert best.is_improved_by(value) is is_better
        assert (best.value, best.epoch) == expected
        assert best.update(value, epoch) is is_better
        expected = (value, epoch) if is_better else expected
        assert (best.value, best.epoch) == expected


@pytest.mark.parametrize("min_change", [-0.1, math.nan, math.inf])
def test_a_threshold_that_makes_no_sense_is_refused(min_change: float) -> None:
    """A negative threshold would call a worse value better; one that is not finite, none."""
    with pytest.raises(ConfigurationError, match="min_change"):
        BestMetric(min_change=min_change)


@pytest.mark.runs_on("two_ranks")
def test_ranks_decide_alike_even_if_their_metrics_differ(shared_tmp_path: Path) -> None:
    """With a metric that each rank computed by itself, the first rank's values decide for all."""
    scores = [[3.0, 1.0, 2.0], [1.0, 2.0, 3.0]][dist.get_rank()]
    save_best = SaveBestModelCallback(shared_tmp_path / "best.pt", "figure")
    trainer = linear_trainer(Script(scores), save_best)
    trainer.train(make_regression(16), num_epochs=3)
    assert (save_best.best.value, save_best.best.epoch) == (1.0, 2)
    assert trainer.model.weight[0, 0] == 2
    assert torch.load(shared_tmp_path / "best.pt", weights_only=True)["best_epoch"] == 2


@pytest.mark.runs_on("two_ranks")
def test_ranks_save_the_best_of_the_evaluations_within_an_epoch_together(shared_tmp_path: Path) -> None:
    """The file is that of the second of four updates, and both ranks end with its weights."""
    save_best = SaveBestModelCallback(shared_tmp_path / "best.pt", "intermediate_figure")

    def score(update: int) -> float:  # the first rank alone finds the second update good
        return 0.0 if update == 2 and dist.get_rank() == 0 else 1.0 + dist.get_rank()

    trainer = linear_trainer(*score_updates(score), StepBasedEvaluationCallback(1), save_best)
    trainer.train(make_regression(64), 1, make_regression(16))
    assert save_best.best.value == 0.0
    saved = torch.load(shared_tmp_path / "best.pt", weights_only=True)
    assert torch.equal(trainer.model.weight.detach(), saved["model_state_dict"]["weight"])


META = torch.device("meta")


class TrainerElsewhere(Trainer[TinyClassifier]):
    """A trainer whose device is another one than that of fresh modules, wherever the tests run."""

    @property
    @override
    def device(self) -> torch.device:
        return META

    @property
    def costly(self) -> nn.Module:
        """A property that must not be evaluated by somebody who looks for modules."""
        raise AssertionError

    def __init__(self) -> None:
        model = TinyClassifier()
        loss_func = nn.CrossEntropyLoss(weight=torch.ones(3))
        super().__init__(model, loss_func, SGD(model.parameters(), lr=0.1), callbacks=[])
        self.accuracy = MulticlassAccuracy(num_classes=3)
        self.in_list: list[object] = [nn.Linear(1, 1), "no module"]
        self.in_tuple = (nn.Linear(1, 1),)
        self.in_dict = {"teacher": nn.Linear(1, 1)}


@pytest.mark.parametrize("event", ["on_training_run_start", "on_evaluation_run_start"])
def test_every_module_but_the_model_is_moved(event: str) -> None:
    """Class weights, metrics and modules in containers are on the device; the model is left alone."""
    trainer: Any = TrainerElsewhere()
    accuracy, contained = trainer.accuracy, [trainer.in_list[0], trainer.in_tuple[0], trainer.in_dict["teacher"]]
    getattr(MoveModulesToDeviceCallback(), event)(trainer)
    assert next(trainer.model.parameters()).device == torch.device("cpu")
    assert {one.weight.device for one in (trainer.loss_func, *contained)} == {accuracy.tp.device} == {META}
    assert trainer.accuracy is accuracy
    assert trainer.in_dict["teacher"] is contained[2]
