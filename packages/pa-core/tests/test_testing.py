"""What authors of callbacks test with: small models and data, and a callback that notes everything."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from pa_core import Trainer
from pa_core.any_trainer import EVENT_NAMES
from pa_core.testing import RecordingCallback, TinyClassifier, make_classification, make_regression


def trainer_with(*callbacks: Any) -> Trainer[TinyClassifier]:
    """A trainer with these callbacks only."""
    model = TinyClassifier()
    return Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=callbacks)


def test_a_run_is_recorded_event_by_event_with_its_arguments() -> None:
    """Names in their order, and beside each what it was called with."""
    recorder = RecordingCallback()
    trainer_with(recorder).train(make_classification(16), 1, make_classification(4), per_device_batch_size=8)

    assert recorder.events == [
        "on_init_end",
        "on_prepare_start",
        "on_training_run_start",
        "on_train_epoch_start",
        *["on_train_step_start", "on_train_step_end", "on_optimizer_step_end"] * 2,
        "on_train_epoch_end",
        "on_eval_epoch_start",
        "on_eval_step_start",
        "on_eval_step_end",
        "on_eval_epoch_end",
        "on_training_run_epoch_end",
        "on_training_run_end",
    ]
    assert len(recorder.arguments) == len(recorder.events)
    by_event = dict(zip(recorder.events, recorder.arguments, strict=True))
    assert by_event["on_optimizer_step_end"] == {"update": 2}
    assert set(by_event["on_train_step_end"]) == {"batch", "batch_output", "step"}
    assert by_event["on_train_step_end"]["step"] == 2
    assert by_event["on_eval_step_end"]["batch_output"]["batch_size"] == 4
    assert by_event["on_train_epoch_end"] == {}


def test_every_event_is_recorded_and_none_is_shared_between_recorders() -> None:
    """Each recorder has a list of its own, copies included."""
    one, other = RecordingCallback(), RecordingCallback()
    for event in sorted(EVENT_NAMES):
        getattr(one, event)(None, note=event)
    assert one.events == sorted(EVENT_NAMES)
    assert one.arguments == [{"note": event} for event in one.events]
    assert (other.events, other.arguments) == ([], [])

    twin = copy.deepcopy(one)
    twin.on_init_end(trainer_with())
    assert (len(one.events), len(twin.events)) == (len(EVENT_NAMES), len(EVENT_NAMES) + 1)


@pytest.mark.parametrize("make", [make_classification, make_regression])
def test_data_follows_from_its_seed_alone(make: Any) -> None:
    """The same seed gives the same data, another one other data, and no global generator is touched."""
    before = torch.get_rng_state()
    one, same, other = make(10, 3, seed=1), make(10, 3, seed=1), make(10, 3, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(one, TensorDataset)
    assert len(one) == 10
    assert one.tensors[0].shape == (10, 3)
    assert all(map(torch.equal, one.tensors, same.tensors))
    assert not torch.equal(one.tensors[0], other.tensors[0])


@pytest.mark.parametrize("batch_norm", [True, False])
def test_the_model_has_the_sizes_asked_for(batch_norm: bool) -> None:
    """Features, classes, hidden units, and buffers where they are wanted."""
    model = TinyClassifier(5, 2, hidden=7, batch_norm=batch_norm)
    assert model(torch.zeros(3, 5)).shape == (3, 2)
    assert model.layers[0].out_features == 7
    assert bool(list(model.buffers())) is batch_norm
