"""The types of the names of pytorch-accelerated: those of the objects that they lead to."""

from __future__ import annotations

from typing import assert_type

from torch import nn

import pa_core
import pa_finetuning
from pytorch_accelerated import Trainer, TrainerPlaceholderValues, notebook_launcher
from pytorch_accelerated.callbacks import SaveBestModelCallback, TrainerCallback
from pytorch_accelerated.finetuning import ModelFreezer
from pytorch_accelerated.run_config import TrainerRunConfig
from pytorch_accelerated.schedulers import CosineLrScheduler
from pytorch_accelerated.tracking import InMemoryRunHistory, RunHistory
from pytorch_accelerated.utils import ModelEma
from tests.typing.vocabulary import Net, make_optimizer


def test_a_name_leads_to_the_type_of_its_own_package() -> None:
    """A checker sees one class under both names."""
    net = Net()
    trainer = Trainer(net, nn.CrossEntropyLoss(), make_optimizer(net), callbacks=[TrainerCallback])

    assert_type(trainer, pa_core.Trainer[Net])
    assert_type(trainer.run_config, TrainerRunConfig)
    assert_type(trainer.run_history, RunHistory)
    assert_type(ModelEma(net).module, Net)
    assert_type(InMemoryRunHistory(), pa_core.InMemoryRunHistory)
    assert_type(ModelFreezer(net).get_layers(), list[pa_finetuning.Layer])
    assert_type(CosineLrScheduler(trainer.optimizer, 2, 3), CosineLrScheduler)
    assert_type(SaveBestModelCallback(), pa_core.SaveBestModelCallback)
    epochs: int = TrainerPlaceholderValues.NUM_EPOCHS
    assert epochs is pa_core.TrainerPlaceholderValues.NUM_EPOCHS
    assert notebook_launcher is pa_core.notebook_launcher
