"""Several evaluation sets: each is evaluated, and recorded, under its name."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from pa_core import (
    AnyTrainer,
    ConfigurationError,
    EvaluationSet,
    LimitBatchesCallback,
    LimitEvalStepsCallback,
    Trainer,
    TrainerCallback,
)
from tests.small_runs import make_trainer, samples
from tests.support.callbacks import CallAt
from tests.support.explained import assert_explained
from tests.support.histories import epochs_of

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
