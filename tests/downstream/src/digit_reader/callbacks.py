"""Callbacks of this project: one that needs its trainer, one that any trainer suits, and the metrics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score
from typing_extensions import override

from pa_callbacks_extra import TorchMetricsCallback
from pa_core import AnyTrainer, TrainerCallback

from .batches import DigitBatch
from .trainer import DigitOutput, DigitTrainer


class SmoothLess(TrainerCallback[DigitTrainer, DigitBatch, DigitOutput]):
    """Takes back the smoothing of labels, epoch by epoch, and counts misread digits.

    Attributes:
        misread: How often each digit was misread in the last evaluation, of shape ``(10,)``.
    """

    def __init__(self, factor: float = 0.5) -> None:
        self.factor: float = factor
        self.misread: Tensor = torch.zeros(10, dtype=torch.int64)

    @override
    def on_train_epoch_end(self, trainer: DigitTrainer, **kwargs: Any) -> None:
        trainer.label_smoothing *= self.factor

    @override
    def on_eval_epoch_start(self, trainer: DigitTrainer, **kwargs: Any) -> None:
        self.misread = torch.zeros(10, dtype=torch.int64)

    @override
    def on_eval_step_end(
        self, trainer: DigitTrainer, batch: DigitBatch, batch_output: DigitOutput, **kwargs: Any
    ) -> None:
        missed = trainer.gather({"labels": batch.labels, "is_right": batch_output["is_right"]})
        self.misread += torch.bincount(missed["labels"][~missed["is_right"]], minlength=10).cpu()


class TellBest(TrainerCallback):
    """Says at the end of a run in which epoch a metric was best, whatever was trained.

    Args:
        metric: A metric that is higher where it is better.
    """

    def __init__(self, metric: str) -> None:
        self.metric: str = metric
        self.epoch: int | None = None

    @override
    def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        values = [float(value) for value in trainer.run_history.get_metric_values(self.metric)]
        self.epoch = 1 + values.index(max(values))
        trainer.print(f"{self.metric} was best in epoch {self.epoch} of {trainer.run_config.num_epochs}")


def make_metrics() -> TorchMetricsCallback[DigitBatch, DigitOutput]:
    """Return the metrics of each evaluation: ``eval_accuracy`` and ``eval_f1``."""
    metrics = MetricCollection(
        {"accuracy": MulticlassAccuracy(num_classes=10, average="micro"), "f1": MulticlassF1Score(num_classes=10)}
    )
    return TorchMetricsCallback(metrics, predictions=_logits, targets=_labels)


def _logits(batch: DigitBatch, output: DigitOutput) -> Tensor:
    logits: Tensor = output["model_outputs"]
    return logits


def _labels(batch: DigitBatch, output: DigitOutput) -> Tensor:
    return batch.labels
