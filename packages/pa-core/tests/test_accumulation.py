"""The weights of batches in an update, by samples and by items such as tokens, on every split."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import BatchOutput, BatchOutputError, Trainer
from tests.support.loops import optimizer_of, updates_of
from tests.support.models import weights_of

LENGTH = 6


class TokenTrainer(Trainer[nn.Module, list[Tensor], BatchOutput]):
    """Each sample is a row of tokens, of which a mask tells the real ones; the loss is the mean over those."""

    least_items = 1

    @override
    def calculate_train_batch_loss(self, batch: list[Tensor]) -> BatchOutput:
        tokens, mask = batch
        outputs = self.model(tokens.unsqueeze(-1)).squeeze(-1)
        items = int(mask.sum().item())
        loss = (outputs.pow(2) * mask).sum() / max(items, self.least_items)
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(tokens), "num_items_in_batch": items}

    @override
    def calculate_eval_batch_loss(self, batch: list[Tensor]) -> BatchOutput:
        return self.calculate_train_batch_loss(batch)


def rows(num_samples: int) -> TensorDataset:
    """Rows of very different numbers of real tokens, some without any."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randn(num_samples, LENGTH, generator=generator, dtype=torch.float64)
    lengths = torch.randint(LENGTH + 1, (num_samples, 1), generator=generator)
    return TensorDataset(tokens, (torch.arange(LENGTH) < lengths).double())


def network() -> nn.Module:
    """A small network over single tokens in double precision."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def token_mean(model: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    """The mean loss over all real tokens."""
    outputs: Tensor = model(tokens.unsqueeze(-1)).squeeze(-1)
    return (outputs.pow(2) * mask).sum() / mask.sum().clamp(min=1)


@pytest.mark.runs_on("one_process", "two_ranks")
@settings(max_examples=40)
@given(
    num_samples=st.integers(2, 30),
    batch_size=st.integers(1, 5),
    accumulation=st.integers(1, 4),
    kind=st.sampled_from(["sgd", "adam"]),
)
def test_an_update_is_that_of_the_mean_over_all_its_tokens(
    num_samples: int, batch_size: int, accumulation: int, kind: str
) -> None:
    """However tokens are spread over batches and ranks, weights move by the mean over the tokens of the update."""
    data, model = rows(num_samples), network()
    by_hand = copy.deepcopy(model)
    trainer = TokenTrainer(model, None, optimizer_of(kind, model), callbacks=[])
    torch.manual_seed(4)
    trainer.train(
        data, 2, per_device_batch_size=batch_size, gradient_accumulation_steps=accumulation, gradient_clip_norm=0.5
    )
    config = trainer.run_config
    optimizer = optimizer_of(kind, by_hand)
    for tokens, mask in updates_of(data, config.seed, 2, config.train_total_batch_size):
        torch.autograd.backward(token_mean(by_hand, tokens, mask))
        nn.utils.clip_grad_norm_(by_hand.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    assert torch.allclose(weights_of(model), weights_of(by_hand), rtol=0, atol=1e-12 if kind == "sgd" else 1e-9)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_reported_losses_are_means_over_tokens() -> None:
    """Training and evaluation report the mean over all tokens of the epoch, not that of the batches."""
    data, model = rows(13), network()
    expected = token_mean(model, *data.tensors).item()
    trainer = TokenTrainer(model, None, SGD(model.parameters(), lr=0.0), callbacks=[])
    trainer.train(data, 1, data, per_device_batch_size=2, gradient_accumulation_steps=2)
    assert trainer.run_history.get_latest_metric("train_loss_epoch") == pytest.approx(expected, rel=1e-12)
    assert trainer.run_history.get_latest_metric("eval_loss_epoch") == pytest.approx(expected, rel=1e-12)


def test_a_batch_without_items_counts_for_nothing() -> None:
    """Its loss is the mean over nothing, which is not a number; the mean of the others is."""
    inputs, mask = rows(6).tensors
    mask = mask.clone()
    mask[2:4] = 0
    model = network()
    trainer = TokenTrainer(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.least_items = 0
    trainer.evaluate(TensorDataset(inputs, mask), per_device_batch_size=2)
    expected = token_mean(model, inputs, mask).item()
    assert trainer.run_history.get_latest_metric("evaluation_loss") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("uncounted", "message"), [(1, "every step"), (0, "in this step, and none in earlier ones")])
def test_counting_in_some_steps_only_is_refused(uncounted: int, message: str) -> None:
    """A run cannot weigh some updates by items and others by samples without saying so."""

    class Sometimes(TokenTrainer):
        @override
        def calculate_train_batch_loss(self, batch: list[Tensor]) -> Any:
            output: dict[str, Any] = {**super().calculate_train_batch_loss(batch)}
            if self.num_updates_completed == uncounted:
                del output["num_items_in_batch"]
            return output

    model = network()
    trainer = Sometimes(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    with pytest.raises(BatchOutputError, match=message):
        trainer.train(rows(8), 1, per_device_batch_size=2)
