"""A sharded model is frozen and unfrozen as a whole one is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from torch.utils.data import TensorDataset

from pa_core import Trainer
from pa_finetuning import ModelFreezer
from tests.support.pa_finetuning.in_trainer.fine_tuning import Unfreezing
from tests.support.sharded_models import sentences, sharded, tiny_transformer, whole_weights

DATA = TensorDataset(*sentences(24))


def trained(*, shard: bool) -> tuple[nn.Module, list[int]]:
    """A model whose groups were unfrozen one after another, and what was still frozen after each run."""
    model = tiny_transformer()
    if shard:
        sharded(model)
    freezer = ModelFreezer(model)
    freezer.freeze()
    groups = freezer.get_parameter_groups(freezer.get_learning_rates(0.05), include_frozen=True)
    trainer = Trainer(model, nn.CrossEntropyLoss(), AdamW(groups), callbacks=[Unfreezing(freezer)])
    frozen: list[int] = []
    for num_epochs in (2, 3):
        trainer.train(DATA, num_epochs, per_device_batch_size=4, eval_dataset=DATA)
        frozen.append(sum(not one.requires_grad for one in model.parameters()))
    return trainer.get_model(), frozen


@pytest.mark.runs_on("two_ranks")
def test_groups_are_unfrozen_as_those_of_a_whole_model() -> None:
    """Stage by stage, with the rates of the groups, to the same weights; also after evaluations."""
    (model, frozen), (whole, expected) = trained(shard=True), trained(shard=False)
    assert frozen == expected
    assert frozen[0] > frozen[1]
    torch.testing.assert_close(whole_weights(model), whole_weights(whole), rtol=0, atol=1e-10)
