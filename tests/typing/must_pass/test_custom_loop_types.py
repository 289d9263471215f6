"""The type of a run: that of its model and of its batches, inferred where nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, assert_type

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_core import AnyTrainer, Run, Update
from tests.typing.vocabulary import Batch, ForAnyTrainer, Net, collate, make_data, make_optimizer


def test_a_run_is_one_of_its_model_and_its_batches() -> None:
    """The class of the model comes from the model, that of the batches from what makes them."""
    model = Net()
    run = Run(model, make_optimizer(model), make_data(), num_epochs=1, collate_fn=collate, callbacks=[ForAnyTrainer])

    assert_type(run, Run[Net, Batch])
    assert_type(run.model, Net)
    assert_type(run.model.head, nn.Linear)
    assert_type(run.get_model(), Net)
    assert_type(run.batches(), Iterator[Batch])
    assert_type(run.updates(), Iterator[Update[Batch]])
    assert_type(run.evaluation_batches(make_data()), Iterator[Batch])
    assert run.model is model


def test_the_block_and_the_loops_keep_the_types() -> None:
    """In the body, an epoch is a number, and a batch what the loader makes."""
    model = Net()
    with Run(model, make_optimizer(model), make_data(), num_epochs=1, collate_fn=collate) as run:
        assert_type(run, Run[Net, Batch])
        for epoch in run.epochs():
            assert_type(epoch, int)
            for update in run.updates():
                assert_type(update, Update[Batch])
                for batch in update:
                    assert_type(batch, Batch)
                    update.backward(run.model(batch.pixels).sum())
                update.step()
            for batch in run.evaluation_batches(make_data()):
                assert_type(batch, Batch)
                run.log("mean", run.model(batch.pixels).mean())
    assert_type(run.gather(torch.ones(1)), Tensor)


def test_a_run_without_annotations() -> None:
    """What makes no batches of a known type makes batches of any type."""
    model = Net()
    run = Run(model, make_optimizer(model), make_data(), num_epochs=1)

    assert_type(run, Run[Net, Any])


def test_a_run_of_several_models() -> None:
    """They come back by name, as modules."""
    first, second = Net(), Net()
    models, optimizers = {"first": first, "second": second}, {"first": make_optimizer(first)}
    run = Run(models, optimizers, make_data(), num_epochs=1)

    assert_type(run, Run[nn.Module, Any])
    assert_type(run.models, Mapping[str, nn.Module])
    assert_type(run.optimizers, Mapping[str, Optimizer])


def test_a_run_is_a_trainer_for_callbacks_and_helpers() -> None:
    """Functions that take any trainer take a run."""

    def describe(trainer: AnyTrainer) -> str:
        return trainer.describe_run()

    def train(run: Run[Net, Batch]) -> Net:
        return run.model

    model = Net()
    run = Run(model, make_optimizer(model), make_data(), num_epochs=1, collate_fn=collate)
    assert describe(run)
    assert train(run) is model
