"""Metrics, averages and early stopping, where a run has several evaluation sets with names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy
from typing_extensions import override

from pa_callbacks_extra import EarlyStoppingCallback, ModelEmaCallback, TorchMetricsCallback
from pa_core import ConfigurationError, EvaluationSet, StepBasedEvaluationCallback, Trainer, TrainerCallback
from pa_core.testing import TinyClassifier, make_classification
from tests.support.explained import assert_explained

TRAIN, VAL, OOD = make_classification(16), make_classification(12, seed=1), make_classification(10, seed=2)
SETS: dict[str, Any] = {"val": VAL, "ood": EvaluationSet(OOD, every_n_epochs=2)}


def make_trainer(*callbacks: TrainerCallback, kind: type[Trainer] = Trainer) -> Trainer:
    """A trainer of a small classifier, the same each time."""
    torch.manual_seed(0)
    model = TinyClassifier()
    return kind(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.5), callbacks=callbacks)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_metrics_are_those_of_each_set_under_its_name() -> None:
    """Of all of its samples, and of no other set's: as if it had been evaluated alone."""

    class RecordVectors(TorchMetricsCallback):
        """A second callback, of other metrics."""

    accuracy = TorchMetricsCallback(MetricCollection({"accuracy": MulticlassAccuracy(3, average="micro")}))
    recalls = RecordVectors(MetricCollection({"recall": MulticlassAccuracy(3, average=None)}))
    trainer = make_trainer(accuracy, recalls, StepBasedEvaluationCallback(1))
    trainer.train(TRAIN, 2, SETS, per_device_batch_size=4)
    history = trainer.run_history
    for name, data in (("val", VAL), ("ood", OOD)):
        inputs, targets = data.tensors
        right = (trainer.model(inputs).argmax(1) == targets).float()
        assert history.get_latest_metric(f"eval_{name}_accuracy") == pytest.approx(float(right.mean()))
        assert history.get_latest_metric(f"eval_{name}_recall_0") == pytest.approx(float(right[targets == 0].mean()))
    assert history.count_metric_values("eval_val_accuracy") == 2
    assert history.count_metric_values("eval_ood_accuracy") == 1
    names = set(history.get_metric_names())
    assert "intermediate_eval_val_accuracy" in names
    assert "eval_accuracy" not in names
    trainer.evaluate({"test": VAL})
    assert "evaluation_test_accuracy" in history.get_metric_names()


def test_the_average_is_evaluated_on_the_sets_of_the_epoch(tmp_path: Path) -> None:
    """Its metrics have the names of the sets, and the best average is kept by one of them."""
    average = ModelEmaCallback(0.5, save_path=tmp_path / "ema.pt", watch_metric="ema_model_eval_ood_loss_epoch")
    trainer = make_trainer(average)
    trainer.train(TRAIN, 3, SETS)
    history = trainer.run_history
    assert history.count_metric_values("ema_model_eval_val_loss_epoch") == 3
    assert history.count_metric_values("ema_model_eval_ood_loss_epoch") == 2
    assert average.best.value == min(history.get_metric_values("ema_model_eval_ood_loss_epoch"))
    with average.averaged_weights(trainer), torch.no_grad():
        loss = nn.CrossEntropyLoss()(trainer.model(OOD.tensors[0]), OOD.tensors[1])
    assert history.get_latest_metric("ema_model_eval_ood_loss_epoch") == pytest.approx(float(loss))


class Losses(Trainer):
    """A trainer whose losses of the set "ood" are told beforehand, by epoch."""

    losses = (1.0, 5.0, 1.0, 5.0, 1.0, 5.0, 1.0, 5.0)

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> Any:
        loss = self.losses[self.run_history.current_epoch - 1]
        return {"loss": torch.tensor(loss), "model_outputs": None, "batch_size": len(batch[0])}


def test_patience_counts_the_evaluations_of_the_set() -> None:
    """An epoch in which the set is not evaluated is none without an improvement."""
    stop = EarlyStoppingCallback(2, watch_metric="eval_ood_loss_epoch")
    trainer = make_trainer(stop, kind=Losses)
    trainer.train(TRAIN, 8, SETS)
    assert trainer.num_epochs_completed == 6  # 5.0 in epoch 2, and no better in epochs 4 and 6
    assert (stop.best.epoch, stop.epochs_without_improvement) == (2, 2)


def test_the_loss_of_a_single_dataset_cannot_be_watched(tmp_path: Path) -> None:
    """The default of each callback is refused before anything is trained, with the name to watch."""
    watching: list[tuple[TrainerCallback, str]] = [
        (EarlyStoppingCallback(2), "'eval_val_loss_epoch'"),
        (ModelEmaCallback(save_path=tmp_path / "ema.pt"), "'ema_model_eval_val_loss_epoch'"),
    ]
    for callback, advised in watching:
        trainer = make_trainer(callback)
        with pytest.raises(ConfigurationError) as refused:
            trainer.train(TRAIN, 1, SETS)
        assert_explained(refused.value, f"watch_metric={advised}")
        assert trainer.num_updates_completed == 0
