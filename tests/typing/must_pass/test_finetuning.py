"""The types of freezing and unfreezing."""

from __future__ import annotations

from typing import assert_type

from torch import nn
from torch.optim import AdamW

from pa_core import Trainer, TrainerCallback
from pa_finetuning import GradualUnfreezing, ModelFreezer, TrainerLike
from tests.typing.vocabulary import Net, make_data


class Unfreeze(GradualUnfreezing, TrainerCallback):
    """Gradual unfreezing, as a callback."""


def test_unfreezing_is_a_callback_of_every_trainer() -> None:
    """What it reads of a trainer is a protocol, which every trainer of ours meets."""

    def read(trainer: TrainerLike) -> int:
        return trainer.run_history.current_epoch

    net = Net()
    freezer = ModelFreezer(net)
    freezer.freeze()
    optimizer = AdamW(freezer.get_parameter_groups(0.1, include_frozen=True))
    trainer = Trainer(net, nn.CrossEntropyLoss(), optimizer, callbacks=[Unfreeze(freezer)])
    trainer.train(make_data(), num_epochs=2)

    assert_type(trainer, Trainer[Net])
    assert read(trainer) == 3
