"""What watches, shows and times evaluations, where there are several sets with names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from typing_extensions import override

from pa_core import (
    DEFAULT_CALLBACKS,
    AnyTrainer,
    ConfigurationError,
    EvaluationSet,
    ProgressBarCallback,
    SaveBestModelCallback,
    StepBasedEvaluationCallback,
    Trainer,
    TrainerCallback,
    TrainerWithTimmScheduler,
)
from tests.small_runs import make_trainer, samples
from tests.support.callbacks import CallAt, RatesUsed
from tests.support.explained import assert_explained
from tests.support.pa_core.custom_loops.loops import make_line, step_through
from tests.support.pa_core.own_schedulers import Timm

DATA, VAL, OOD = samples(8), samples(5), samples(3)
RARE: dict[str, Any] = {"val": VAL, "test": OOD, "test_ood": EvaluationSet(OOD, every_n_epochs=2)}
"""The name of one set is the beginning of another one's."""


def told_beforehand(trainer: Any) -> Any:
    """What a step of an evaluation returns whose loss is told beforehand, by set and epoch."""
    loss = trainer.values[trainer.eval_name or ""][trainer.run_history.current_epoch - 1]
    return {"loss": torch.tensor(loss), "model_outputs": None, "batch_size": 1}


class Values(Trainer):
    """A trainer whose evaluation losses are told beforehand."""

    values: dict[str, list[float]]

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> Any:
        return told_beforehand(self)


def values_trainer(values: dict[str, list[float]], *callbacks: TrainerCallback) -> Values:
    """A trainer with these losses."""
    trainer: Any = make_trainer(Values, *callbacks)
    trainer.values = values
    return trainer  # type: ignore[no-any-return]


ALWAYS = {"val": [9.0] * 6, "test": [9.0] * 6}


def test_the_best_model_is_judged_in_the_epochs_in_which_its_set_is_evaluated(tmp_path: Path) -> None:
    """Before the first evaluation of the set nothing is saved, and nothing is taken twice; the name decides."""
    best = SaveBestModelCallback(tmp_path / "best.pt", watch_metric="eval_test_ood_loss_epoch")
    trainer = values_trainer({**ALWAYS, "test_ood": [0.0, 3.0, 0.0, 2.0, 1.5]}, best)
    saved: list[int] = []
    best.save_best = lambda trainer: saved.append(trainer.run_history.current_epoch)  # type: ignore[method-assign]
    best.load_best = lambda trainer: None  # type: ignore[method-assign]
    trainer.train(DATA, 5, RARE)
    assert saved == [2, 4, 5]
    assert (best.best.value, best.best.epoch) == (1.5, 5)


def test_a_scheduler_is_stepped_with_a_metric_in_the_epochs_in_which_it_is_evaluated() -> None:
    """The patience of ``ReduceLROnPlateau`` is then a number of evaluations."""
    trainer = values_trainer({**ALWAYS, "test_ood": [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]})
    plateau = partial(ReduceLROnPlateau, patience=1, factor=0.5)
    used = RatesUsed()
    trainer.callback_handler.add_callback(used)
    trainer.train(DATA, 6, RARE, create_scheduler_fn=plateau, watch_metric="eval_test_ood_loss_epoch")
    assert [*used.rates, trainer.optimizer.param_groups[0]["lr"]] == [1e-4] * 6 + [5e-5]


def test_the_loss_of_a_single_dataset_cannot_be_watched(tmp_path: Path) -> None:
    """``eval_loss_epoch`` would never be recorded: refused before anything is trained, with the name to watch."""
    trainer = make_trainer(Trainer, SaveBestModelCallback(tmp_path / "best.pt"))
    with pytest.raises(ConfigurationError) as refused:
        trainer.train(DATA, 1, RARE)
    assert_explained(refused.value, "watch_metric='eval_val_loss_epoch'")
    assert trainer.num_updates_completed == 0
    with pytest.raises(ConfigurationError) as refused:
        make_trainer().train(DATA, 1, RARE, create_scheduler_fn=ReduceLROnPlateau, watch_metric="eval_loss_epoch")
    assert_explained(refused.value, "watch_metric='eval_val_loss_epoch'")


def test_evaluations_within_an_epoch_are_of_the_sets_of_each_epoch_or_of_those_named() -> None:
    """A set that is rarer than epochs is evaluated among their steps only if it is asked for."""
    for names, expected in ((None, ["val", "test"]), (["test_ood"], ["test_ood"])):
        trainer = make_trainer(Trainer, StepBasedEvaluationCallback(1, eval_names=names))
        trainer.train(DATA, 1, RARE, per_device_batch_size=4)
        within = {name for name in trainer.run_history.get_metric_names() if name.startswith("intermediate_")}
        assert within == {f"intermediate_eval_{name}_loss_epoch" for name in expected}


def test_the_best_model_within_epochs_is_judged_after_its_own_set(tmp_path: Path) -> None:
    """Also where another set, whose name its name begins with, is evaluated before."""
    watched = "intermediate_eval_test_ood_loss_epoch"
    best = SaveBestModelCallback(tmp_path / "best.pt", watch_metric=watched)
    evaluate = StepBasedEvaluationCallback(1, eval_names=["test", "test_ood"])
    trainer = make_trainer(Trainer, evaluate, best)
    saved: list[str | None] = []
    best.save_best = lambda trainer: saved.append(trainer.eval_name)  # type: ignore[method-assign]
    best.load_best = lambda trainer: None  # type: ignore[method-assign]
    trainer.train(DATA, 1, RARE, per_device_batch_size=4)
    assert saved == ["test_ood"]


@pytest.mark.parametrize(
    ("sets", "names", "said"),
    [
        ({"rare": EvaluationSet(OOD, every_n_epochs=2)}, None, "eval_names=['rare']"),
        (RARE, ["vall"], "'vall'"),
        (VAL, ["val"], "leave eval_names out"),
    ],
)
def test_evaluations_within_epochs_of_no_set_are_refused_at_the_start(sets: Any, names: Any, said: str) -> None:
    """With what to pass, and before anything is trained."""
    trainer = make_trainer(Trainer, StepBasedEvaluationCallback(1, eval_names=names))
    with pytest.raises(ConfigurationError) as refused:
        trainer.train(DATA, 1, sets, per_device_batch_size=4)
    assert_explained(refused.value, said)
    assert trainer.num_updates_completed == 0


def test_names_to_evaluate_are_a_list() -> None:
    """A single string, or none, is explained where the callback is made."""
    names: list[Any] = ["val", []]
    for given in names:
        with pytest.raises(ConfigurationError) as refused:
            StepBasedEvaluationCallback(1, eval_names=given)
        assert_explained(refused.value)


def test_a_callback_evaluates_sets_by_name() -> None:
    """``run_evaluation_epoch(eval_names=...)`` in the order of the run; an unknown name is explained."""

    def evaluate(trainer: AnyTrainer) -> None:
        trainer.run_evaluation_epoch(is_intermediate=True, eval_names=["test", "val"])
        with pytest.raises(ConfigurationError) as refused:
            trainer.run_evaluation_epoch(eval_names=["vall"])
        assert_explained(refused.value, "'vall'", "'val'")

    trainer = make_trainer(Trainer, CallAt("on_optimizer_step_end", evaluate))
    trainer.train(DATA, 1, RARE)
    names = [name for name in trainer.run_history.get_metric_names() if name.startswith("intermediate")]
    assert sorted(names) == ["intermediate_eval_test_loss_epoch", "intermediate_eval_val_loss_epoch"]


def test_what_is_shown_names_the_set(capsys: pytest.CaptureFixture[str]) -> None:
    """In the row of an epoch, in the table at the end, in the lines of progress, and where ``evaluate()`` starts."""
    trainer = make_trainer(Trainer, *DEFAULT_CALLBACKS)
    trainer.train(DATA, 1, RARE)
    trainer.evaluate()
    shown = capsys.readouterr().out
    _, _, first, second, row, *_ = shown.splitlines()  # the titles of four losses take two lines
    bars = make_trainer(Trainer, ProgressBarCallback)
    bars.train(DATA, 1, RARE)
    bars.evaluate()
    lines = capsys.readouterr().out
    for name in RARE:
        assert f"Epoch 1 eval {name}: 1/1 batches" in lines
        assert f"Evaluation of {name}: 1/1 batches" in lines
        assert f"evaluation_{name}_loss " in shown
        assert f"  eval_{name}_loss_epoch " in shown
    assert second.split()[:8] == ["epoch", "loss", "val", "loss", "test", "loss", "ood", "loss"]
    assert first.split() == ["train", "eval", "eval", "eval", "test"]
    assert len(row.split()) == 9
    assert "Evaluation starts: 3 batches of val, test, test_ood;" in shown


class ValuesOfTimm(TrainerWithTimmScheduler):
    """The same for schedulers of timm."""

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> Any:
        return told_beforehand(self)


def test_schedulers_of_timm_get_the_loss_of_the_first_set() -> None:
    """And None in the epochs in which it is not evaluated."""
    kind: Any = ValuesOfTimm
    trainer: Any = make_trainer(kind)
    trainer.values = {"val": [5.0, 4.0, 3.0], "ood": [9.0] * 3}
    trainer.train(DATA, 3, {"val": EvaluationSet(VAL, every_n_epochs=2), "ood": OOD}, create_scheduler_fn=Timm)
    assert [one[1] for one in trainer.scheduler.told if isinstance(one, tuple)] == [None, 4.0, 3.0]


def test_a_loop_of_ones_own_tells_callbacks_the_name_of_its_evaluation() -> None:
    """``eval_name`` is what ``evaluation_batches`` was given, and None afterwards, also where the loop was left."""
    seen: list[str | None] = []
    note = CallAt("on_eval_epoch_start", lambda run: seen.append(run.eval_name))
    with make_line(data=DATA, lr=1e-4, callbacks=[note]) as run:
        for name in ("eval_val", None):
            for inputs, targets in run.evaluation_batches(VAL, name=name):
                run.log("loss", (run.model(inputs) - targets).square().mean())
        for _ in run.evaluation_batches(VAL, name="left"):
            break
        assert run.eval_name is None
        step_through(run)
    assert seen == ["eval_val", None, "left"]
    assert {"eval_val_loss_epoch", "eval_loss_epoch"} < set(run.run_history.get_metric_names())
