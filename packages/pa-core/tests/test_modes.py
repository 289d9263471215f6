"""Which parts of a model are in training mode while it trains: those that the script has not put into eval mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import DEFAULT_CALLBACKS, StepBasedEvaluationCallback, Trainer
from pa_core.testing import make_regression
from tests.support.callbacks import AlsoAt, CallAt
from tests.support.pa_core.entries import ENTRIES, train

DATA = make_regression(16)


class Pretrained(nn.Module):
    """A layer with dropout and statistics, which loading leaves in eval mode, as transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: nn.Module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

    @classmethod
    def from_pretrained(cls) -> Pretrained:
        """Return a layer that was trained before."""
        return cls().eval()

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs


def network() -> nn.Sequential:
    """A network with a batch norm that the script keeps as it is."""
    torch.default_generator.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    model[1].eval()
    return model


def modes(model: nn.Module) -> list[bool]:
    """Which modules are in training mode."""
    return [module.training for module in model.modules()]


def test_a_part_that_the_script_keeps_in_eval_mode_stays_there() -> None:
    """In all epochs, after each evaluation, also within an epoch: its statistics never move."""
    model, seen = network(), list[list[bool]]()
    note = CallAt("on_train_step_start", lambda trainer: seen.append(modes(trainer.get_model())))
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), [note, StepBasedEvaluationCallback(1)])
    trainer.train(DATA, 3, eval_dataset=DATA)
    assert seen == [[True, True, False, True, True]] * 6
    assert torch.equal(model[1].running_mean, torch.zeros(4))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # a buffer
    trainer.evaluate(DATA)
    assert modes(model) == seen[0]


def test_trainer_and_custom_loop_agree() -> None:
    """The same weights and statistics to the last bit."""
    states: list[list[Tensor]] = []
    for entry in ENTRIES:
        model = network()
        torch.manual_seed(1)
        train(entry, model, SGD(model.parameters(), lr=0.1), DATA, 2)
        states.append(list(model.state_dict().values()))
    assert all(map(torch.equal, *states))


def test_a_model_that_is_in_eval_mode_as_a_whole_is_trained() -> None:
    """As documented, its ``train()`` is called; parts of an added module keep their mode."""
    whole = Pretrained.from_pretrained()
    head = nn.Sequential(nn.Linear(4, 1), nn.BatchNorm1d(1).eval())

    class WithHead(Trainer[Any]):
        @override
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            loss = nn.functional.mse_loss(self.modules["head"](self.model(batch[0])), batch[1])
            assert modes(whole) == [True] * 5
            assert modes(head) == [True, True, False]
            return {"loss": loss, "model_outputs": None, "batch_size": len(batch[0])}

    trainer = WithHead(whole, None, SGD(whole.parameters(), lr=0.1), callbacks=[])
    trainer.add_module("head", head, SGD(head.parameters(), lr=0.1))
    trainer.train(DATA, 2)


def test_a_callback_decides_as_well() -> None:
    """What a callback puts into eval mode in the course of the run stays there, until it puts it back."""
    model, seen = network(), list[bool]()

    def switch(trainer: Any) -> None:
        model[1].train(trainer.num_epochs_completed == 2)

    note = CallAt("on_train_step_start", lambda _trainer: seen.append(model[1].training))
    callbacks = [note, AlsoAt("on_training_run_epoch_end", switch)]
    Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks).train(DATA, 3, eval_dataset=DATA)
    assert seen == [False] * 4 + [True] * 2


@pytest.mark.parametrize("frozen", [False, True])
def test_a_part_that_loading_has_left_in_eval_mode_is_named(frozen: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """A pretrained part that trains without its dropout is warned of once; a frozen one is as it should be."""
    model = nn.Sequential(Pretrained.from_pretrained().requires_grad_(not frozen), nn.Linear(4, 1))
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=DEFAULT_CALLBACKS)
    if frozen:
        trainer.train(DATA, 1)
    else:
        with pytest.warns(UserWarning, match=r"model\.0, a Pretrained, is trained in evaluation mode.*Call train\(\)"):
            trainer.train(DATA, 1)
    assert not any(module.training for module in model[0].modules())
    assert ("; 0 in evaluation mode" in capsys.readouterr().out) is not frozen
