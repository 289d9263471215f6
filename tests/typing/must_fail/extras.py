"""What must not pass a type checker around pa-callbacks-extra."""

# What is unknown because of an error is no error of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy

from pa_callbacks_extra import ModelEma, ModelEmaCallback, ModelEmaFactory, TorchMetricsCallback, TrackerCallback
from tests.typing.vocabulary import Batch, ForNetTrainer, Net, OtherNet, Output


class Restless(ModelEma):
    """Takes a rate in the place of a decay."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        super().__init__(model, 1 - rate)


def first(batch: tuple[Tensor, Tensor], output: Output) -> Tensor:
    """Targets of other batches."""
    return batch[0]


ones = torch.ones(2)
output: Output = {"loss": ones.sum(), "model_outputs": None, "batch_size": 2, "confidence": ones}
collection = MetricCollection([BinaryAccuracy()])
metrics = TorchMetricsCallback[Batch, Output](collection)

# Averages

ModelEma(Net().parameters())  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]  # pa_callbacks_extra.ModelEma[ModelT_co]: a model is a module
model: OtherNet = ModelEma(Net()).module  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_callbacks_extra.ModelEma.module[ModelT_co]: it is of another class
not_a_model: ModelEma[Tensor]  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]  # pa_callbacks_extra.ModelEma[ModelT_co]: the parameter is a class of modules
ModelEmaCallback(callbacks=[ForNetTrainer])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # pa_callbacks_extra.ModelEmaCallback: it needs a NetTrainer
ModelEmaCallback(model_ema=Net)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_callbacks_extra.ModelEmaCallback: a model is no factory of averages
factory: ModelEmaFactory = Restless  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_callbacks_extra.ModelEmaFactory: it is called with a decay

# Metrics

TorchMetricsCallback[Batch, Output](BinaryAccuracy(), targets=first)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_callbacks_extra.TorchMetricsCallback[BatchT_contra]: another batch
TorchMetricsCallback[Batch, Output](
    BinaryAccuracy(),
    predictions=lambda batch, output: output["certainty"],  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownLambdaType]  # pa_callbacks_extra.TorchMetricsCallback[OutputT_contra]: no such key
)
metrics.update_metrics(collection, batch=(ones, ones), output=output)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_callbacks_extra.TorchMetricsCallback.update_metrics[BatchT_contra]: another batch
metrics.update_metrics(collection, batch=Batch(ones, ones), output={"loss": ones})  # type: ignore[typeddict-item]  # pyright: ignore[reportArgumentType]  # pa_callbacks_extra.TorchMetricsCallback.update_metrics[OutputT_contra]: keys are missing

# The rest

TrackerCallback("wandb", "digits", init_kwargs={"mode": "offline"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]  # pa_callbacks_extra.TrackerCallback: by tracker
