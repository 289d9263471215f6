"""Evaluations of a sharded model are those of one process, whatever the sizes, and however uneven the loaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_core.types import SizedIterable
from tests.support.sharded_models import TinyTransformer, sentences, sharded, tiny_transformer

pytestmark = pytest.mark.runs_on("two_ranks")

SIZES, BATCH_SIZES = (2, 3, 8, 13), (1, 2, 5)


class Predictions(TrainerCallback):
    """Brings the predictions of all processes together, in the order of the dataset."""

    def __init__(self) -> None:
        self.gathered: list[Tensor] = []

    @override
    def on_eval_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.gathered.append(trainer.gather(batch_output["model_outputs"]))


class CountsErrors(Trainer):
    """Logs a metric of its own in each evaluation step."""

    @override
    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        self.log("errors", (output["model_outputs"].argmax(-1) != batch[1]).double().mean())
        return output


class OwnBatches:
    """No ``DataLoader``: one more batch on each following process."""

    def __len__(self) -> int:
        return 1 + 2 * dist.get_rank()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (sentences(3, seed=10 * dist.get_rank() + number) for number in range(len(self)))


def all_own_batches() -> tuple[Tensor, Tensor]:
    """Those of both processes."""
    batches = [sentences(3, seed=seed) for seed in (0, 10, 11, 12)]
    words, classes = zip(*batches, strict=True)
    return torch.cat(words), torch.cat(classes)


class OwnLoader(CountsErrors):
    """Evaluates batches of its own."""

    @override
    def create_eval_dataloader(
        self, batch_size: int, eval_dl_kwargs: dict[str, Any] | None = None
    ) -> SizedIterable[Any]:
        return OwnBatches()


def expected_metrics(model: TinyTransformer, words: Tensor, classes: Tensor) -> tuple[Tensor, float, float]:
    """The predictions, the loss and the share of errors of one process, in one batch."""
    with torch.no_grad():
        logits = model(words)
    loss = nn.functional.cross_entropy(logits, classes).item()
    return logits, loss, (logits.argmax(-1) != classes).double().mean().item()


def test_every_sample_counts_once() -> None:
    """The loss, a logged metric and gathered predictions, for many sizes of the dataset and of its batches."""
    model, plain, predictions = sharded(tiny_transformer()), tiny_transformer(), Predictions()
    trainer = CountsErrors(model, nn.CrossEntropyLoss(), None, callbacks=[predictions])
    for size in SIZES:
        for batch_size in BATCH_SIZES:
            words, classes = sentences(size, seed=size)
            predictions.gathered.clear()
            trainer.evaluate(TensorDataset(words, classes), batch_size)
            logits, loss, errors = expected_metrics(plain, words, classes)
            latest = trainer.run_history.get_latest_metric
            torch.testing.assert_close(torch.cat(predictions.gathered), logits, rtol=0, atol=1e-12)
            assert latest("evaluation_loss") == pytest.approx(loss, abs=1e-7)
            assert latest("evaluation_errors") == pytest.approx(errors, abs=1e-7)


def test_loaders_of_different_lengths() -> None:
    """Of a custom loader, each process evaluates its own batches; one without any calls the model for the others."""
    model, plain = sharded(tiny_transformer()), tiny_transformer()
    trainer = OwnLoader(model, nn.CrossEntropyLoss(), None, callbacks=[])
    trainer.evaluate(TensorDataset(*sentences(4)))
    _, loss, errors = expected_metrics(plain, *all_own_batches())
    assert trainer.run_history.get_latest_metric("evaluation_loss") == pytest.approx(loss, abs=1e-7)
    assert trainer.run_history.get_latest_metric("evaluation_errors") == pytest.approx(errors, abs=1e-7)
