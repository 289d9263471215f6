"""What the pages on differences from the original say of numbers that events and steps pass on: a test for each row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import default_collate
from typing_extensions import override

from pa_core import AnyTrainer
from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import StepBasedEvaluationCallback, TrainerCallback
from tests.small_runs import make_trainer, samples


def test_epoch_number() -> None:
    """When an epoch has ended, the history still says its number; the next one begins after the event."""
    seen: list[tuple[str, int]] = []

    class Note(TrainerCallback):
        @override
        def on_train_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            seen.append(("start", trainer.run_history.current_epoch))

        @override
        def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            seen.append(("end", trainer.run_history.current_epoch))

        @override
        def on_training_run_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            seen.append(("run", trainer.run_history.current_epoch))

    make_trainer(Trainer, Note).train(samples(4), 2)
    assert seen == [("start", 1), ("end", 1), ("start", 2), ("end", 2), ("run", 3)]


def test_evaluate_after_training() -> None:
    """The evaluation collates as the training did, and the run config is then that of the evaluation."""
    collated: list[int] = []

    def collate(items: list[Any]) -> Any:
        collated.append(len(items))
        return default_collate(items)

    trainer = make_trainer()
    trainer.train(samples(4), 3, per_device_batch_size=2, collate_fn=collate)
    of_training = trainer.run_config
    collated.clear()
    trainer.evaluate(samples(4), per_device_batch_size=4)
    assert collated == [4]
    assert of_training.num_epochs == 3
    config = trainer.run_config
    assert (config.num_epochs, config.eval_per_device_batch_size, config.num_update_steps_per_epoch) == (1, 4, 0)


def test_is_intermediate() -> None:
    """The argument is there in evaluations within an epoch, where it is True, and in no others."""
    passed: list[dict[str, Any]] = []

    class Note(TrainerCallback):
        @override
        def on_eval_epoch_start(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            passed.append(kwargs)

        @override
        def on_eval_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            passed.append(kwargs)

    trainer = make_trainer(Trainer, StepBasedEvaluationCallback(1), Note)
    trainer.train(samples(4), 1, eval_dataset=samples(4), per_device_batch_size=2)
    trainer.evaluate(samples(4))
    assert [one.get("is_intermediate") for one in passed] == [True] * 2 + [None] * 4


def gradient_of(divides_by_all: bool) -> Tensor:
    """The gradient of one update of two batches, by a loss over items that is divided in one way or the other."""
    gradients: list[Tensor] = []

    class OverItems(Trainer):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            outputs = self.model(batch[0])
            total = ((outputs - batch[1]) ** 2).sum()
            loss = total / (8 if divides_by_all else 4)
            return {"loss": loss, "model_outputs": outputs, "batch_size": 4, "num_items_in_batch": 4}

        @override
        def optimizer_step(self) -> None:
            gradients.append(self.model.get_parameter("weight").grad.clone())  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]  # it has one here

    trainer = make_trainer(OverItems)
    trainer.train(
        samples(8),
        1,
        per_device_batch_size=4,
        gradient_accumulation_steps=2,
        train_dataloader_kwargs={"shuffle": False},
    )
    (gradient,) = gradients
    return gradient


def test_divided_loss() -> None:
    """The mean of a batch and its number of items make the mean over all; what is that already is divided again."""
    model = make_trainer().model
    inputs, targets = samples(8).tensors
    ((model(inputs) - targets) ** 2).mean().backward()
    expected = model.get_parameter("weight").grad
    assert expected is not None
    assert torch.allclose(gradient_of(divides_by_all=False), expected)
    assert gradient_of(divides_by_all=True).tolist() == [pytest.approx((expected / 2)[0].tolist())]
