"""What the trainer leaves alone in a frozen model: weights, statistics and the state of the optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from typing_extensions import override

from pa_core import AnyTrainer, Trainer, TrainerCallback
from pa_finetuning import ModelFreezer
from tests.support.models import weights_of
from tests.support.pa_finetuning.conv_net import changed, entries_below
from tests.support.pa_finetuning.in_trainer.fine_tuning import make_images, make_model

pytestmark = pytest.mark.runs_on("one_process", "two_ranks", "bf16")


class EvaluateInMidEpoch(TrainerCallback):
    """Evaluates after the first update of each epoch, and goes on training."""

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        if update % 2:
            trainer.run_evaluation_epoch(is_intermediate=True)


@pytest.mark.parametrize("make_optimizer", [partial(SGD, momentum=0.9), Adam, AdamW])
def test_what_is_frozen_stays_bit_identical(make_optimizer: Callable[..., Optimizer]) -> None:
    """Momentum, weight decay, batches and evaluations in mid-epoch change no frozen weight and no frozen statistics."""
    images = make_images(16)
    model = make_model()
    optimizer = make_optimizer(model.parameters(), lr=0.1, weight_decay=0.1)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[EvaluateInMidEpoch])
    settings: dict[str, Any] = {"num_epochs": 2, "eval_dataset": images, "per_device_batch_size": 4}
    trainer.train(images, **settings)
    freezer = ModelFreezer(model, freeze_batch_norms=True)

    freezer.freeze(set_modules_as_eval=True)
    before, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()["state"])
    trainer.train(images, **settings, gradient_clip_norm=1.0)
    assert changed(before, model) == {"2.weight", "2.bias"}
    in_order = [name for name, _ in model.named_parameters()]
    for number, of_parameter in optimizer.state_dict()["state"].items():
        kept = all(torch.equal(value, state[number][name]) for name, value in of_parameter.items() if value is not None)
        assert kept == in_order[number].startswith(("0.", "1."))

    freezer.unfreeze(1, 1)
    before = copy.deepcopy(model.state_dict())
    trainer.train(images, **settings)
    assert changed(before, model) >= (entries_below(model, "1") | entries_below(model, "2")) - {"1.0.bias"}
    assert changed(before, model).isdisjoint(entries_below(model, "0"))
    assert torch.equal(trainer.gather(weights_of(model)[None])[0], weights_of(model))
