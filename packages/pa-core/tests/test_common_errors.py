"""What beginners get wrong: one clear error each, whose advice is right; and messages that name what is meant."""

from __future__ import annotations

import builtins
import math
import os
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD
from torch.utils.data import Dataset, TensorDataset
from typing_extensions import override

import pa_core
from pa_core import (
    ExplainedError,
    MetricNotFoundError,
    MoveModulesToDeviceCallback,
    NonFiniteLossError,
    SaveBestModelCallback,
    StopTrainingError,
    TerminateOnNaNCallback,
    Trainer,
)
from pa_core.distributed import rank
from pa_core.errors import EmptyDatasetError
from pa_core.testing import make_regression
from tests.support.callbacks import AlsoAt, CallAt
from tests.support.pa_core.common_errors import BEGINNING, MISTAKES
from tests.support.trainers import linear_trainer


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


DATA = make_regression(16)


def test_an_empty_evaluation_set_is_named() -> None:
    """Of several, in training and in an evaluation alone."""
    sets = {"val": DATA, "test": TensorDataset(torch.zeros(0, 4), torch.zeros(0, 1))}
    with pytest.raises(EmptyDatasetError, match=r'0 samples, .* It was passed as eval_dataset\["test"\]'):
        linear_trainer().train(DATA, 1, sets)
    with pytest.raises(EmptyDatasetError, match=r'0 samples, .* It was passed as dataset\["test"\]'):
        linear_trainer().evaluate(sets)
    with pytest.raises(EmptyDatasetError, match=r"0 samples, .* It was passed as train_dataset"):
        linear_trainer().train(sets["test"], 1)


@pytest.mark.parametrize(
    ("watched", "evaluated"),
    [("eval_loss", DATA), ("train_loss", DATA), ("eval_val_loss", {"val": DATA})],
)
def test_a_watched_loss_without_its_ending_is_told_before_the_first_epoch(
    watched: str, evaluated: Any, tmp_path: Any
) -> None:
    """With the name that was meant; nothing is said where a callback records the name."""
    trainer = linear_trainer(SaveBestModelCallback(tmp_path / "best.pt", watch_metric=watched))
    match = f"Correct the name: watch_metric='{watched}_epoch'"
    with (
        pytest.warns(UserWarning, match=f"pass watch_metric='{watched}_epoch'"),
        pytest.raises(MetricNotFoundError, match=match),
    ):
        trainer.train(DATA, 1, evaluated)


@pytest.mark.parametrize(
    ("model", "inputs", "advice"),
    [
        (nn.Linear(4, 1).double(), torch.zeros(8, 4), r"float64\), or the model, model\.to\(torch\.float32\)"),
        (nn.Linear(4, 1), torch.zeros(8, 4).double(), r"float32\), or the model, model\.to\(torch\.float64\)"),
        (nn.Linear(4, 1).bfloat16(), torch.zeros(8, 4), r"inputs\.to\(torch\.bfloat16\)"),
        (nn.Linear(4, 1), torch.zeros(8, 4).long(), r"inputs\.to\(torch\.float32\)\."),
        (nn.Embedding(4, 1), torch.zeros(8, 4), r"inputs\.long\(\) for indices"),
    ],
)
def test_an_input_of_another_dtype_than_the_layer(model: nn.Module, inputs: Tensor, advice: str) -> None:
    """What to convert to which dtype follows from both."""
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    with pytest.raises((RuntimeError, TypeError)) as caught:
        trainer.train(TensorDataset(inputs, torch.zeros(8, 1)), 1)
    assert any(re.search(advice, note) for note in caught.value.__notes__)


@pytest.mark.runs_on("two_ranks")
def test_the_reason_for_which_another_process_stops_is_known_to_all() -> None:
    """Of a request, and of a loss that is not finite."""
    reasons: list[str] = []

    def stop(_trainer: Any) -> None:
        if rank() == 1:
            raise StopTrainingError("the disk of this machine is slow")

    trainer = linear_trainer(CallAt("on_train_step_end", stop))
    noted = AlsoAt("on_training_run_end", lambda one: reasons.append(str(one._session.rank_sync.stop)))
    trainer.callback_handler.add_callback(noted)
    trainer.train(DATA, 1, per_device_batch_size=2)
    expected = "the disk of this machine is slow"
    assert reasons == [expected if rank() == 1 else f"Rank 1 requested a stop: {expected}"]

    inputs, targets = DATA.tensors
    targets = torch.where(torch.arange(16)[:, None] == 2, torch.nan, targets)  # a sample of rank 1
    trainer = linear_trainer(TerminateOnNaNCallback)
    with pytest.raises(NonFiniteLossError) as caught:
        trainer.train(
            TensorDataset(inputs, targets), 1, per_device_batch_size=2, train_dataloader_kwargs={"shuffle": False}
        )
    holds = "loss=nan at batch 1 of epoch 1, batch[1] holds nan in sample 0 of the batch, number 2 of the dataset"
    assert holds in caught.value.given
    assert caught.value.given.startswith("on rank 1: ") == (rank() == 0)


class EndsItsWorker(Dataset[tuple[Tensor, Tensor]]):
    """Has a sample that ends the process that fetches it, as a crash in native code does."""

    def __len__(self) -> int:
        return 16

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == 9:
            os._exit(3)
        return torch.zeros(4), torch.zeros(1)


def test_a_worker_that_dies_is_told_with_its_samples() -> None:
    """Torch says which process it was; a note says of which samples a batch was awaited."""
    trainer = linear_trainer()
    options: dict[str, Any] = {"num_workers": 1, "shuffle": False, "prefetch_factor": 1}
    with pytest.raises((RuntimeError, ConnectionError, EOFError)) as caught:
        trainer.train(EndsItsWorker(), 1, per_device_batch_size=4, train_dataloader_kwargs=options)
    notes = "\n".join(caught.value.__notes__)
    assert "[8, 9, 10, 11]" in notes or "[4, 5, 6, 7]" in notes
    assert "num_workers=0" in notes
