"""The metrics of the subclass are those of all digits, each counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import Launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "metrics_in_a_subclass.py"

COUNT_BY_HAND = """
import runpy, sys
import torch
from torch import nn
from torch.utils.data import DataLoader

example = runpy.run_path(sys.argv[1])
train, _, test = example["load_data"]()
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
trainer = example["DigitsTrainer"](model, torch.optim.AdamW(model.parameters(), lr=0.01))
trainer.train(train, 1, per_device_batch_size=32)
trainer.evaluate(test, per_device_batch_size=64)

((pixels, digits),) = DataLoader(test, batch_size=300)
logits = model(pixels)
right = logits.argmax(1) == digits
expected = {
    "recognised": right.float().mean(),
    "recognised_per_digit": torch.stack([right[digits == digit].float().mean() for digit in range(10)]).mean(),
    "evaluation_certainty": logits.softmax(1).amax(1).mean(),
}
for name, value in expected.items():
    assert abs(float(trainer.run_history.get_latest_metric(name)) - float(value.detach())) < 1e-5, name
trainer.print("as by hand")
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_metrics_are_those_that_are_counted_by_hand(launch: Launch, ranks: int) -> None:
    """Accuracies and the logged mean are over the 300 test digits, on any number of processes."""
    launched = launch(COUNT_BY_HAND, str(EXAMPLE), ranks=ranks)
    assert launched.status == 0
    assert "as by hand" in launched.output
