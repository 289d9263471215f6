"""A frozen model in a plain accelerate loop, as a user without our trainer writes it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pa_finetuning import ModelFreezer


def make_model() -> nn.Sequential:
    """A convolutional network of three groups, the same on every rank."""
    torch.default_generator.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)),
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(4, 2),
    )


def train(accelerator: Any, model: nn.Module, frozen: nn.Module, epochs: int) -> None:
    """Train with accelerate, and check in each epoch that what is frozen is in eval mode when it is used."""
    generator = torch.Generator().manual_seed(0)
    images = TensorDataset(torch.randn(24, 1, 6, 6, generator=generator), torch.arange(24) % 2)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=0.1, weight_decay=0.1)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(images, batch_size=4))
    for _ in range(epochs):
        model.train()
        assert not any(module.training for module in frozen.modules())
        for inputs, targets in batches:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
            optimizer.step()
        model.eval()


def changed(before: dict[str, Tensor], model: nn.Module) -> set[str]:
    """The groups with an entry that is not bit-identical to the one before."""
    return {name[0] for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


@pytest.mark.runs_on("two_ranks", "bf16")
def test_frozen_groups_stay_bit_identical_in_each_stage() -> None:
    """Trained in two stages, only what is trainable changes, and equally on all ranks."""
    from accelerate import Accelerator

    accelerator: Any = Accelerator()
    model = make_model()
    freezer = ModelFreezer(model, freeze_batch_norms=True)

    freezer.freeze(set_modules_as_eval=True)
    before = copy.deepcopy(model.state_dict())
    train(accelerator, model, frozen=model[0], epochs=2)
    assert changed(before, model) == {"2"}

    freezer.unfreeze(1, 1)
    before = copy.deepcopy(model.state_dict())
    train(accelerator, model, frozen=model[0], epochs=2)
    assert changed(before, model) == {"1", "2"}

    for parameter in model.parameters():
        of_all_ranks: Tensor = accelerator.gather(parameter.detach()[None])
        assert torch.equal(of_all_ranks, parameter.detach().expand_as(of_all_ranks))
