"""What beginners get wrong: one clear error each, whose advice is right, since the script runs once it was followed."""

from __future__ import annotations

import builtins
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD
from torch.utils.data import TensorDataset
from typing_extensions import override

import pa_core
from pa_core import ExplainedError, MoveModulesToDeviceCallback, Trainer
from tests.support.pa_core.common_errors import BEGINNING, MISTAKES


def run_script(text: str) -> dict[str, Any]:
    """Run a script in this process, and return its names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "script.py", "exec"), names)  # scripts of our own
    return names


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gives_one_clear_error_whose_advice_is_right(name: str) -> None:
    """The error names what was given, torch's own in its notes, and the script runs with what it advises."""
    mistake = MISTAKES[name]
    with pytest.raises(getattr(pa_core, mistake.error, None) or getattr(builtins, mistake.error)) as caught:
        run_script(mistake.broken)

    error = caught.value
    if isinstance(error, ExplainedError) and error.given:
        given = error.given
        assert error.do == mistake.do
        assert str(error).splitlines()[1].startswith("  given: ")
    else:
        given = "\n".join([str(error), *getattr(error, "__notes__", [])])
        assert mistake.do in given
    for part in mistake.given:
        assert part in given

    trainer = next((value for value in run_script(mistake.mended).values() if isinstance(value, Trainer)), None)
    if trainer is not None:
        assert math.isfinite(trainer.run_history.get_latest_metric("train_loss_epoch"))


class Squeezed(nn.Linear):
    """Returns outputs without any dimension of size 1, that of the samples included."""

    @override
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).squeeze()


@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("loss_func", [nn.MSELoss(), nn.HuberLoss(), functional.l1_loss], ids=["mse", "huber", "l1"])
def test_a_batch_of_one_sample_may_lack_the_dimension_of_the_samples(loss_func: Any, width: int) -> None:
    """A model that squeezes its outputs returns such: each output is still compared with its own target."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(5, 4), torch.randn(5, width)
    model = Squeezed(4, width)
    expected = loss_func(model(inputs), targets.squeeze()).item()
    trainer = Trainer(model, loss_func, SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.evaluate(TensorDataset(inputs, targets), per_device_batch_size=1)
    assert trainer.run_history.get_latest_metric("evaluation_loss") == pytest.approx(expected)


@pytest.mark.needs_cuda
@pytest.mark.parametrize("callbacks", [[], [MoveModulesToDeviceCallback]])
def test_a_loss_on_another_device_names_the_callback_that_moves_it(callbacks: list[Any]) -> None:
    """The trainer moves the model; weights of the loss are moved by one of the default callbacks."""
    names = run_script(BEGINNING + "model = nn.Linear(4, 3)")
    loss_func = nn.CrossEntropyLoss(weight=torch.ones(3))
    trainer = Trainer(names["model"], loss_func, SGD(names["model"].parameters(), lr=0.1), callbacks)
    data = TensorDataset(names["inputs"], names["classes"])
    if callbacks:
        trainer.train(data, 1)
        return
    with pytest.raises(RuntimeError) as caught:
        trainer.train(data, 1)
    assert any("MoveModulesToDeviceCallback" in note for note in caught.value.__notes__)
