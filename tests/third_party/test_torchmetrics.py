"""Metrics of torchmetrics that need packages of others: they are the same on any number of processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchmetrics.text import ROUGEScore
from typing_extensions import override

from pa_callbacks_extra import TorchMetricsCallback
from pa_core import Trainer

pytest.importorskip("pycocotools")
pytest.importorskip("rouge_score")
detection: Any = pytest.importorskip("torchmetrics.detection.mean_ap")

TEXTS = ("the cat sat", "a dog ran", "big bird", "sun is hot", "rain falls down")
REFERENCES = ("the cat sat down", "a dog ran off", "big bird", "the sun is hot", "rain fell down")
BOXES = [torch.tensor([[5.0, 5.0, 20.0, 30.0 + shift] for shift in range(count)]) for count in (2, 0, 3, 1, 4)]


class ByIndex(Trainer[nn.Module]):
    """Evaluates samples that are the numbers of texts and of pictures."""

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> Any:
        return {"loss": batch[0].sum() / 100, "model_outputs": batch[0], "batch_size": len(batch[0])}


def evaluated(metric: Any, predictions: Any, targets: Any) -> dict[str, float]:
    """What a metric is over five samples in batches of three."""
    callback = TorchMetricsCallback(
        metric,
        predictions=lambda _batch, output: [predictions(int(one)) for one in output["model_outputs"]],
        targets=lambda _batch, output: [targets(int(one)) for one in output["model_outputs"]],
    )
    trainer = ByIndex(nn.Identity(), None, None, callbacks=[callback])
    recorded = trainer.evaluate(TensorDataset(torch.arange(5.0)), per_device_batch_size=3)
    return {name.removeprefix("evaluation_"): value for name, value in recorded.items()}


@pytest.mark.runs_on("one_process", "two_ranks")
def test_rouge_of_texts_is_that_of_all_processes() -> None:
    """It keeps an entry for each text, and processes have other numbers of texts in as many batches."""
    of_all = ROUGEScore(rouge_keys="rouge1", sync_on_compute=False)
    expected = of_all([*TEXTS], [*REFERENCES])
    recorded = evaluated(ROUGEScore(rouge_keys="rouge1"), TEXTS.__getitem__, REFERENCES.__getitem__)
    for name, value in expected.items():
        assert recorded[name] == pytest.approx(float(value)), name


def found(number: int) -> dict[str, Tensor]:
    """The boxes that a model finds in a picture."""
    labels = torch.zeros(len(BOXES[number]), dtype=torch.long)
    return {"boxes": BOXES[number] + 1, "scores": torch.linspace(0.5, 0.9, len(labels)), "labels": labels}


def there(number: int) -> dict[str, Tensor]:
    """The boxes that are in it."""
    return {"boxes": BOXES[number], "labels": torch.zeros(len(BOXES[number]), dtype=torch.long)}


@pytest.mark.runs_on("one_process", "two_ranks")
def test_detection_is_judged_over_the_pictures_of_all_processes() -> None:
    """Its lists have an entry for each picture, some of them without a box."""

    class MeanPrecision(detection.MeanAveragePrecision):  # type: ignore[misc]  # of an optional package
        def compute(self) -> Any:
            return super().compute()["map"]

    expected = MeanPrecision(sync_on_compute=False)([found(one) for one in range(5)], [there(one) for one in range(5)])
    assert evaluated(MeanPrecision(), found, there)["MeanPrecision"] == pytest.approx(float(expected))
