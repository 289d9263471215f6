"""Datasets of Hugging Face's `datasets`: what they return is trained with, or the error says how it could be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from pa_core import Trainer

datasets: Any = pytest.importorskip("datasets")


class WithLoss(nn.Linear):
    """A classifier that returns its own loss."""

    @override
    def forward(self, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # as models of transformers
        return {"loss": nn.functional.cross_entropy(super().forward(pixels), labels)}


def test_the_advice_about_lists_is_right() -> None:
    """A dataset without a format fails with the name of the format, with which it trains."""
    dataset = datasets.Dataset.from_list([{"pixels": [0.1 * i, 0.2, 0.3], "labels": i % 2} for i in range(16)])
    model = WithLoss(3, 2)
    trainer = Trainer(model, None, torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])

    with pytest.raises(TypeError) as caught:
        trainer.train(dataset, 1, train_dataloader_kwargs={"num_workers": 0})
    assert any('dataset.with_format("torch")' in note for note in caught.value.__notes__)

    trainer.train(dataset.with_format("torch"), 1, train_dataloader_kwargs={"num_workers": 0})
    assert trainer.num_updates_completed == 2
