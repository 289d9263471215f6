"""Several evaluation sets: each is evaluated, recorded, watched and shown under its name."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from pa_core import (
    DEFAULT_CALLBACKS,
    AnyTrainer,
    ConfigurationError,
    EvaluationSet,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
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
from tests.support.histories import epochs_of
from tests.support.pa_core.custom_loops.loops import make_line, step_through
from tests.support.pa_core.own_schedulers import Timm

DATA = samples(8)
VAL, OOD = samples(5), samples(3)


class NoteSets(TrainerCallback):
    """Notes each event of an evaluation with the set that is under way, and the samples of its batches."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @override
    def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.events.append(f"{trainer.eval_name} starts")

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        numbers = ", ".join(str(int(number)) for number in batch[0][:, 0])
        self.events.append(f"{trainer.eval_name} {numbers}")

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.events.append(f"{trainer.eval_name} ends")

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.events.append(f"{trainer.eval_name}, epoch {trainer.num_epochs_completed}")

    @property
    def batches(self) -> list[str]:
        """What was noted of batches."""
        return [event for event in self.events if re.search(r" \d", event) and "epoch" not in event]


def test_each_set_is_evaluated_in_turn_and_recorded_under_its_name() -> None:
    """The events come once for each set, which can be asked for; its loss is what the set alone would have."""
    note = NoteSets()
    trainer = make_trainer(Trainer, note)
    trainer.train(DATA, 1, {"val": VAL, "test_ood": OOD}, per_device_batch_size=4)
    assert note.events == [
        "val starts", "val 0, 1, 2, 3", "val 4", "val ends",
        "test_ood starts", "test_ood 0, 1, 2", "test_ood ends",
        "None, epoch 1",
    ]  # fmt: skip
    for name, dataset in (("val", VAL), ("test_ood", OOD)):
        loss = trainer.run_history.get_latest_metric(f"eval_{name}_loss_epoch")
        inputs, targets = dataset.tensors
        with torch.no_grad():
            assert loss == pytest.approx(float((trainer.model(inputs) - targets).square().mean()))
    assert set(trainer.run_history.get_metric_names()) == {
        "train_loss_epoch", "eval_val_loss_epoch", "eval_test_ood_loss_epoch",
    }  # fmt: skip


def test_training_is_the_same_with_one_set_and_with_several() -> None:
    """Further sets change neither the weights nor what is recorded of the first one, bit for bit."""
    one, several = make_trainer(), make_trainer()
    for trainer, evaluated in ((one, VAL), (several, {"val": VAL, "ood": OOD})):
        torch.manual_seed(7)
        trainer.train(DATA, 2, evaluated, per_device_batch_size=2)
    for name, weight in one.model.state_dict().items():
        assert torch.equal(weight, several.model.state_dict()[name])
    assert list(one.run_history.get_metric_values("eval_loss_epoch")) == list(
        several.run_history.get_metric_values("eval_val_loss_epoch")
    )


def test_a_set_is_evaluated_every_n_epochs_and_after_the_last_one() -> None:
    """``every_n_epochs`` counts the epochs of the run; the last one counts however the run gets there."""
    sets: dict[str, Any] = {"val": VAL, "ood": EvaluationSet(OOD, every_n_epochs=2)}
    trainer = make_trainer()
    trainer.train(DATA, 5, sets)
    assert epochs_of(trainer, "eval_val_loss_epoch") == [1, 2, 3, 4, 5]
    assert epochs_of(trainer, "eval_ood_loss_epoch") == [2, 4, 5]
    trainer.train(DATA, 99, sets, per_device_batch_size=4, max_num_train_steps=5)  # in the middle of epoch 3
    assert epochs_of(trainer, "eval_ood_loss_epoch") == [2, 3]


def test_evaluate_takes_several_sets_and_repeats_those_of_the_run_before() -> None:
    """``evaluate()`` records ``evaluation_NAME_loss`` of each set, and without data evaluates those of the last run."""
    trainer = make_trainer()
    trainer.train(DATA, 1, {"val": VAL, "ood": EvaluationSet(OOD, every_n_epochs=7)})
    trainer.evaluate()
    assert set(trainer.run_history.get_metric_names()) == {"evaluation_val_loss", "evaluation_ood_loss"}
    trainer.evaluate({"other": OOD})
    assert set(trainer.run_history.get_metric_names()) == {"evaluation_other_loss"}
    trainer.evaluate(VAL)
    trainer.evaluate()
    assert set(trainer.run_history.get_metric_names()) == {"evaluation_loss"}


def test_what_a_step_logs_and_a_callback_records_is_named_after_the_set() -> None:
    """Means of steps, and what callbacks record in the events of an evaluation, are never mixed over sets."""

    class Logs(Trainer):
        @override
        def calculate_eval_batch_loss(self, batch: Any) -> Any:
            self.log("loss_of_class", float(len(batch[0])))
            return super().calculate_eval_batch_loss(batch)

    record = CallAt("on_eval_epoch_end", lambda trainer: trainer.run_history.update_metric("spread", 1.0))
    trainer = make_trainer(Logs, record)
    trainer.train(DATA, 1, {"val": VAL, "loss": OOD})
    names = set(trainer.run_history.get_metric_names()) - {"train_loss_epoch"}
    assert names == {
        f"eval_{name}_{metric}"
        for name in ("val", "loss")
        for metric in ("loss_epoch", "loss_of_class_epoch", "spread")
    }


def test_a_set_may_be_a_loader_beside_datasets() -> None:
    """A DataLoader is used as it is, and arguments for loaders are for the sets that are datasets."""
    note = NoteSets()
    sets: dict[str, Any] = {"val": DataLoader(VAL, batch_size=3), "ood": OOD}
    make_trainer(Trainer, note).train(DATA, 1, sets, eval_dataloader_kwargs={"batch_size": 2})
    assert note.batches == ["val 0, 1, 2", "val 3, 4", "ood 0, 1", "ood 2"]


def test_a_loader_of_ones_own_may_differ_between_sets() -> None:
    """While ``create_eval_dataloader`` makes the loader of a set, ``eval_name`` and ``eval_dataset`` are its own."""
    sizes = {"val": 5, "ood": 2}

    class OwnSizes(Trainer):
        @override
        def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: dict[str, Any] | None = None) -> Any:
            return super().create_eval_dataloader(sizes[self.eval_name or ""], eval_dl_kwargs)

    note = NoteSets()
    make_trainer(OwnSizes, note).train(DATA, 1, {"val": VAL, "ood": OOD})
    assert note.batches == ["val 0, 1, 2, 3, 4", "ood 0, 1", "ood 2"]


def test_limits_of_batches_hold_for_each_set() -> None:
    """``LimitBatchesCallback`` and ``LimitEvalStepsCallback`` limit all sets, and the loaders are whole afterwards."""
    for limit in (LimitBatchesCallback(1), LimitEvalStepsCallback(1, limit_intermediate_only=False)):
        note = NoteSets()
        trainer = make_trainer(Trainer, limit, note)
        trainer.train(DATA, 2, {"val": VAL, "ood": OOD}, per_device_batch_size=2)
        assert note.batches == 2 * ["val 0, 1", "ood 0, 1"]
        lengths = [len(loader) for loader in trainer.eval_dataloaders.values()]
        assert lengths == ([1, 1] if isinstance(limit, LimitBatchesCallback) else [3, 2])


def test_a_loader_that_a_callback_puts_there_stays_for_one_evaluation() -> None:
    """The next evaluation is of the whole set again, and other sets are evaluated as they are."""

    def keep_last_batch(trainer: Any) -> None:
        if trainer.eval_name == "val" and trainer.run_history.current_epoch == 1:
            trainer.eval_dataloader = list(trainer.eval_dataloader)[-1:]

    note = NoteSets()
    trainer = make_trainer(Trainer, CallAt("on_eval_epoch_start", keep_last_batch), note)
    trainer.train(DATA, 2, {"val": VAL, "ood": OOD}, per_device_batch_size=3)
    assert note.batches == ["val 3, 4", "ood 0, 1, 2", "val 0, 1, 2", "val 3, 4", "ood 0, 1, 2"]


def test_the_trainer_has_the_first_set_in_hand_between_evaluations() -> None:
    """``eval_dataset`` and ``eval_dataloader`` are those of the set under way, and otherwise of the first one."""
    seen: list[tuple[str | None, bool, bool]] = []

    class Look(TrainerCallback):
        @override
        def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            name = trainer.eval_name
            dataset = trainer.eval_sets[name or "val"].dataset
            loader: Any = trainer.eval_dataloaders[name or "val"]
            seen.append((name, trainer.eval_dataset is dataset, trainer.eval_dataloader is loader))
            assert loader.dataset is dataset

        on_eval_epoch_start = on_training_run_end = on_train_epoch_start

    make_trainer(Trainer, Look()).train(DATA, 1, {"val": VAL, "ood": OOD})
    assert seen == [(name, True, True) for name in (None, "val", "ood", None)]


def test_a_dataset_of_a_mapping_is_no_mapping_of_sets() -> None:
    """A mapping of positions to samples is a dataset, as before."""
    by_position: Any = {number: VAL[number] for number in range(len(VAL))}
    trainer = make_trainer()
    trainer.train(DATA, 1, by_position)
    assert "eval_loss_epoch" in trainer.run_history.get_metric_names()


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ({}, "eval_dataset must be"),
        (EvaluationSet(VAL, every_n_epochs=2), 'eval_dataset={"val": EvaluationSet(...)}'),
        ({"test-ood": VAL}, "letters, digits and underscores"),
        ({3: VAL}, "{3: ...}"),
        ({"val": None}, 'None as eval_dataset["val"]'),
        ({"val": {"a": VAL}}, 'eval_dataset["val"]'),
        ({"val": 5}, 'int as eval_dataset["val"]'),
        ({"val": TensorDataset}, 'eval_dataset["val"]'),
        ({"inputs": VAL.tensors[0], "targets": VAL.tensors[1]}, "['inputs']"),
    ],
)
def test_sets_that_cannot_be_evaluated_are_explained(sets: Any, said: str) -> None:
    """Names that cannot be part of a metric's name, nothing at all, and what is no dataset: with what to do."""
    with pytest.raises(ConfigurationError) as refused:
        make_trainer().train(DATA, 1, sets)
    assert_explained(refused.value)
    assert said in str(refused.value)


def test_arguments_for_loaders_are_refused_where_all_sets_are_loaders() -> None:
    """They would have no effect on any of them."""
    with pytest.raises(ConfigurationError, match="eval_dataloader_kwargs"):
        make_trainer().train(DATA, 1, {"val": DataLoader(VAL)}, eval_dataloader_kwargs={"batch_size": 2})


@pytest.mark.parametrize("number", [0, 1.5, True])
def test_epochs_between_evaluations_are_counted_by_a_whole_number(number: Any) -> None:
    """``every_n_epochs`` of anything else is explained."""
    with pytest.raises(ConfigurationError, match="every_n_epochs"):
        EvaluationSet(VAL, every_n_epochs=number)


RARE: dict[str, Any] = {"val": VAL, "test": OOD, "test_ood": EvaluationSet(OOD, every_n_epochs=2)}
"""The name of one set is the beginning of another one's."""


def values_trainer(kind: Any, values: dict[str, list[float]], *callbacks: TrainerCallback) -> Any:
    """A trainer whose evaluation losses are told beforehand, by set and epoch."""
    trainer = make_trainer(kind, *callbacks)

    def told(_batch: Any) -> Any:
        loss = values[trainer.eval_name or ""][trainer.run_history.current_epoch - 1]
        return {"loss": torch.tensor(loss), "model_outputs": None, "batch_size": 1}

    vars(trainer)["calculate_eval_batch_loss"] = told
    return trainer


ALWAYS = {"val": [9.0] * 6, "test": [9.0] * 6}


def test_the_best_model_is_judged_in_the_epochs_in_which_its_set_is_evaluated(tmp_path: Path) -> None:
    """Before the first evaluation of the set nothing is saved, and nothing is taken twice; the name decides."""
    best = SaveBestModelCallback(tmp_path / "best.pt", watch_metric="eval_test_ood_loss_epoch")
    trainer = values_trainer(Trainer, {**ALWAYS, "test_ood": [0.0, 3.0, 0.0, 2.0, 1.5]}, best)
    saved: list[int] = []
    best.save_best = lambda trainer: saved.append(trainer.run_history.current_epoch)  # type: ignore[method-assign]
    best.load_best = lambda trainer: None  # type: ignore[method-assign]
    trainer.train(DATA, 5, RARE)
    assert saved == [2, 4, 5]
    assert (best.best.value, best.best.epoch) == (1.5, 5)


def test_a_scheduler_is_stepped_with_a_metric_in_the_epochs_in_which_it_is_evaluated() -> None:
    """The patience of ``ReduceLROnPlateau`` is then a number of evaluations."""
    trainer = values_trainer(Trainer, {**ALWAYS, "test_ood": [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]})
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


def test_schedulers_of_timm_get_the_loss_of_the_first_set() -> None:
    """And None in the epochs in which it is not evaluated."""
    trainer = values_trainer(TrainerWithTimmScheduler, {"val": [5.0, 4.0, 3.0], "ood": [9.0] * 3})
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
