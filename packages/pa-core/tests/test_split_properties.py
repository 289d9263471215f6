"""Whatever the split, an update is that of the single large batch, and an evaluation counts each sample once."""

from __future__ import annotations

import copy
from itertools import islice, zip_longest
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy
from typing_extensions import override

from pa_core import AnyTrainer, BatchOutput, BatchOutputError, Trainer, TrainerCallback, distributed, gather_objects
from pa_core.testing import make_classification, make_regression
from tests.support.loops import in_double, network, optimizer_of, train_by_hand, updates_of
from tests.support.models import weights_of

on_one_and_two_ranks = pytest.mark.runs_on("one_process", "two_ranks")


@on_one_and_two_ranks
@settings(max_examples=40)
@given(
    num_samples=st.integers(2, 40),
    batch_size=st.integers(1, 7),
    accumulation=st.integers(1, 5),
    kind=st.sampled_from(["sgd", "adam"]),
    clip=st.sampled_from(["no", "value", "norm"]),
    epochs=st.integers(1, 3),
    max_updates=st.none() | st.integers(1, 6),
)
def test_any_split_makes_the_updates_of_the_large_batch(
    num_samples: int, batch_size: int, accumulation: int, kind: str, clip: str, epochs: int, max_updates: int | None
) -> None:
    """Random sizes, accumulation, clipping and limits move the weights as whole batches of one process do."""
    data = in_double(make_regression(num_samples))
    clip_value, clip_norm = {"no": (None, None), "value": (0.05, None), "norm": (None, 0.3)}[clip]
    model = network()
    by_hand = copy.deepcopy(model)
    trainer = Trainer(model, nn.MSELoss(), optimizer_of(kind, model), callbacks=[])
    torch.manual_seed(1)
    trainer.train(
        data,
        epochs,
        per_device_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
        gradient_clip_value=clip_value,
        gradient_clip_norm=clip_norm,
        max_num_train_steps=max_updates,
    )
    config = trainer.run_config
    whole_batches = updates_of(data, config.seed, config.num_epochs, config.train_total_batch_size)
    updates = list(islice(whole_batches, max_updates))
    train_by_hand(by_hand, optimizer_of(kind, by_hand), updates, clip_norm=clip_norm, clip_value=clip_value)
    assert trainer.num_updates_completed == len(updates)
    assert torch.allclose(weights_of(model), weights_of(by_hand), rtol=0, atol=1e-12)


class Evaluated(TrainerCallback):
    """Collects the inputs of an evaluation from all ranks, and their accuracy."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.accuracy = MulticlassAccuracy(num_classes=3, average="micro")

    @override
    def on_eval_step_end(
        self, trainer: AnyTrainer, batch: list[Tensor], batch_output: BatchOutput, **kwargs: Any
    ) -> None:
        self.inputs.append(batch[0])
        self.accuracy.update(batch_output["model_outputs"], batch[1])

    @override
    def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        of_ranks = gather_objects(self.inputs)
        self.inputs = [inputs for step in zip_longest(*of_ranks) for inputs in step if inputs is not None]


@on_one_and_two_ranks
@pytest.mark.parametrize("batch_size", range(1, 10))
def test_evaluations_of_all_sizes_are_those_of_one_process(batch_size: int) -> None:
    """In batches of 1 to 9: count, order, loss and accuracy are those of the whole dataset.

    For each number of samples that takes up to three steps: all that the last step can be, after none, one and two.
    """
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    for num_samples in range(2, max(12, 3 * batch_size * distributed.num_processes()) + 1):
        data = in_double(make_classification(num_samples))
        inputs, targets = data.tensors
        with torch.no_grad():
            logits = model(inputs)
        loss = nn.functional.cross_entropy(logits, targets).item()
        accuracy = (logits.argmax(1) == targets).double().mean().item()
        seen = Evaluated()
        trainer = Trainer(model, nn.CrossEntropyLoss(), None, callbacks=[seen])
        trainer.evaluate(data, per_device_batch_size=batch_size)
        where = f"{num_samples} samples in batches of {batch_size}"
        assert torch.equal(torch.cat(seen.inputs), inputs), where
        assert trainer.run_history.get_latest_metric("evaluation_loss") == pytest.approx(loss, rel=1e-12), where
        assert seen.accuracy.compute().item() == pytest.approx(accuracy, abs=1e-6), where


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


def token_mean(model: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    """The mean loss over all real tokens."""
    outputs: Tensor = model(tokens.unsqueeze(-1)).squeeze(-1)
    return (outputs.pow(2) * mask).sum() / mask.sum().clamp(min=1)


@on_one_and_two_ranks
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
    data, model = rows(num_samples), network(1)
    by_hand = copy.deepcopy(model)
    trainer = TokenTrainer(model, None, optimizer_of(kind, model), callbacks=[])
    torch.manual_seed(4)
    trainer.train(
        data, 2, per_device_batch_size=batch_size, gradient_accumulation_steps=accumulation, gradient_clip_norm=0.5
    )
    config = trainer.run_config
    updates = updates_of(data, config.seed, 2, config.train_total_batch_size)
    train_by_hand(by_hand, optimizer_of(kind, by_hand), updates, token_mean, clip_norm=0.5)
    assert torch.allclose(weights_of(model), weights_of(by_hand), rtol=0, atol=1e-12 if kind == "sgd" else 1e-9)


@on_one_and_two_ranks
def test_reported_losses_are_means_over_tokens() -> None:
    """Training and evaluation report the mean over all tokens of the epoch, not that of the batches."""
    data, model = rows(13), network(1)
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
    model = network(1)
    trainer = TokenTrainer(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.least_items = 0
    trainer.evaluate(TensorDataset(inputs, mask), per_device_batch_size=2)
    expected = token_mean(model, inputs, mask).item()
    assert trainer.run_history.get_latest_metric("evaluation_loss") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("uncounted", "message"), [(1, "every step"), (0, "in this step, but not in earlier steps")])
def test_counting_in_some_steps_only_is_refused(uncounted: int, message: str) -> None:
    """A run cannot weigh some updates by items and others by samples without saying so."""

    class Sometimes(TokenTrainer):
        @override
        def calculate_train_batch_loss(self, batch: list[Tensor]) -> Any:
            output: dict[str, Any] = {**super().calculate_train_batch_loss(batch)}
            if self.num_updates_completed == uncounted:
                del output["num_items_in_batch"]
            return output

    model = network(1)
    trainer = Sometimes(model, None, SGD(model.parameters(), lr=0.1), callbacks=[])
    with pytest.raises(BatchOutputError, match=message):
        trainer.train(rows(8), 1, per_device_batch_size=2)
