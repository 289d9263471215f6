"""Scripts without a mistake are left alone, no matter how unusual they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

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


def test_samples_may_be_columns_of_a_row() -> None:
    """A target of one element then has any stride, and what is wrong is found."""
    data, model = TensorDataset(torch.randn(16, 3), torch.randn(1, 16).T), nn.Linear(3, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    report = check(trainer, data, num_epochs=2, per_device_batch_size=4, eval_dataset=data)
    assert "same-samples-in-evaluation" in str(report)
