"""A process without a sample takes part in what the others do with a sharded model, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import BatchOutput, Trainer
from tests.support.pa_core.sharding.by_hand import require_same, updates_by_hand
from tests.support.sharded_models import TinyTransformer, sentences, sharded, tiny_transformer

pytestmark = pytest.mark.runs_on("two_ranks")


class TwoHeads(TinyTransformer):
    """Has keyword arguments, and an output that no loss needs, from a block that is used for nothing else."""

    @override
    def forward(self, words: Tensor, *, twice: dict[str, Any] | None = None) -> Any:
        hidden = self.embed(words)
        first, second = self.blocks[0](hidden), self.blocks[1](hidden)
        factor = 1.0 if twice is None else twice["factor"]
        return {"first": self.head(first.mean(dim=1)) * factor, "unused": self.head(second.mean(dim=1))}


def two_heads() -> TwoHeads:
    """The same on each process."""
    torch.manual_seed(0)
    return TwoHeads().double()


class CallsTwice(Trainer[Any, Any, Any, Any]):
    """Calls the model twice in a step, and leaves out what it returns beside."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> BatchOutput:
        words, classes = batch
        with torch.no_grad():
            weight = self.model(words)["unused"].softmax(-1).amax()
        logits = self.model(words=words, twice={"factor": torch.tensor(0.5).double() * weight})["first"]
        return {"loss": nn.functional.cross_entropy(logits, classes), "model_outputs": logits, "batch_size": len(words)}


def test_last_step_with_a_sample_on_one_process_only() -> None:
    """One sample is left for two processes: the update is that of one process, accumulated or not."""
    for accumulation in (1, 2):
        data = TensorDataset(*sentences(2 * 4 * accumulation + 1))
        model = sharded(tiny_transformer())
        trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
        trainer.train(data, 1, per_device_batch_size=4, gradient_accumulation_steps=accumulation)
        expected = tiny_transformer()
        optimizer = SGD(expected.parameters(), lr=0.1)
        list(updates_by_hand(expected, data, trainer.run_config.seed, 8 * accumulation, optimizer=optimizer))
        require_same(model, expected)


def test_a_step_calls_the_model_as_it_likes() -> None:
    """Twice, with keyword arguments, without gradients, and with a loss that needs a part of the outputs."""
    data = TensorDataset(*sentences(9))
    model = sharded(two_heads())
    trainer = CallsTwice(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(data, 2, per_device_batch_size=4)
    assert trainer.num_updates_completed == 4
