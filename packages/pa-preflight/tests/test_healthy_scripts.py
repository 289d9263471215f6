"""Scripts without a mistake are left alone, no matter how unusual they are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD
from torch.utils.data import Dataset, TensorDataset
from typing_extensions import override

from pa_core import Trainer
from pa_preflight import check
from tests.support.pa_preflight.corpus import HEALTHY, TUTORIALS

ALL = {**HEALTHY, **TUTORIALS}
CASES = [*HEALTHY, *(pytest.param(name, marks=pytest.mark.more_cases) for name in TUTORIALS)]


@pytest.mark.parametrize("name", CASES)
def test_no_mistake_is_reported_of_a_healthy_script(name: str) -> None:
    """A finding is a note at the most."""
    script = ALL[name]()
    report = check(script.trainer, **script.arguments)
    assert [finding for finding in report.findings if finding.level != "note"] == []


class _Rows(Dataset[dict[str, Tensor]]):
    """Samples that are mappings, as those of datasets of Hugging Face are."""

    def __init__(self, rows: list[dict[str, Tensor]]) -> None:
        self.rows = rows

    @override
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)


class _ClassifierWithLoss(nn.Module):
    """Returns its loss and its logits, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 6)

    @override
    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(inputs)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def test_a_model_may_compute_its_own_loss() -> None:
    """Each check is made of it, and none fails at a loss without dimensions."""
    inputs = torch.randn(60, 8)
    data = _Rows([{"inputs": row, "labels": row[:6].argmax()} for row in inputs])
    model = _ClassifierWithLoss()
    trainer = Trainer(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    report = check(trainer, data, num_epochs=2, per_device_batch_size=10)
    assert report.mistakes == []
    assert report.left_out == []


def test_samples_may_be_columns_of_a_row() -> None:
    """A target of one element then has any stride, and what is wrong is found."""
    data, model = TensorDataset(torch.randn(16, 3), torch.randn(1, 16).T), nn.Linear(3, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    report = check(trainer, data, num_epochs=2, per_device_batch_size=4, eval_dataset=data)
    assert "same-samples-in-evaluation" in str(report)
