"""The search for a learning rate: what it tries, what it suggests, and that it leaves nothing behind."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from typing_extensions import TypeVar, override

from pa_core import ArgumentTypeError, ConfigurationError, Trainer, UnsupportedConfigurationError
from pa_core.testing import RecordingCallback
from pa_schedulers import LearningRateCurve, LearningRateLoss, find_learning_rate
from tests.support.held_state import make


def samples() -> TensorDataset:
    """Points of three classes that a network of two layers tells apart."""
    points = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(points, points[:, :3].argmax(dim=1))


TrainerT = TypeVar("TrainerT", bound="Trainer[Any, Any, Any, Any]", default="Trainer[Any, Any, Any, Any]")


def make_trainer(
    kind: type[TrainerT] = Trainer,  # type: ignore[assignment]  # mypy forgets the default of the variable
    *callbacks: Any,
    rates: tuple[float, float] = (1e-3, 1e-2),
) -> TrainerT:
    """A trainer with all that a run changes: buffers, dropout, a stateful optimizer of two groups."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    body, head = nn.Linear(8, 16), nn.Linear(16, 3)
    model = nn.Sequential(body, nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), head)
    groups = [{"params": body.parameters(), "lr": rates[0]}, {"params": head.parameters(), "lr": rates[1]}]
    return kind(model, nn.CrossEntropyLoss(), AdamW(groups, lr=1.0), callbacks=callbacks)


class NotesRates(Trainer[Any, Any, Any, Any]):
    """Prints the rates of both groups in each step; a list of them would be what it was before the search."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        sys.stdout.write(f"rates {' '.join(str(group['lr']) for group in self.optimizer.param_groups)}\n")
        output: dict[str, Any] = super().calculate_train_batch_loss(batch)
        return output


def contents(trainer: Trainer[Any, Any, Any, Any]) -> list[Tensor]:
    """Every tensor of the model and of its optimizer."""
    of_optimizer = [value for state in trainer.optimizer.state.values() for value in state.values()]
    return [*trainer.get_model().state_dict().values(), *of_optimizer]


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
@pytest.mark.parametrize("has_trained", [False, True], ids=["before the first run", "between two runs"])
def test_a_run_after_a_search_is_the_run_without_it(has_trained: bool) -> None:
    """To the last bit: weights, buffers, optimizer, scheduler, history and all random numbers."""
    ended: list[tuple[str, float, float, float]] = []
    for searches in (False, True):
        trainer = make_trainer()
        if has_trained:
            trainer.train(samples(), 1, create_scheduler_fn=lambda optimizer: StepLR(optimizer, 50))
        scheduler, history = trainer.scheduler, trainer.run_history
        if searches:
            found = find_learning_rate(trainer, samples(), per_device_batch_size=16, num_updates=30)
            assert len(found.rows) > 10
            assert trainer.scheduler is scheduler
            assert trainer.run_history is history
        assert [group["lr"] for group in trainer.optimizer.param_groups] == [1e-3, 1e-2]
        trainer.train(samples(), 2, samples(), per_device_batch_size=16)
        ended.append((trainer.fingerprint(), torch.rand(()).item(), random.random(), np.random.random()))

    assert ended[0] == ended[1]


@pytest.mark.needs_cuda
@pytest.mark.parametrize("has_trained", [False, True])
def test_a_run_on_cuda_after_a_search_is_the_run_without_it(has_trained: bool) -> None:
    """The draws of the device are restored too."""
    assert make_trainer().device.type == "cuda"
    test_a_run_after_a_search_is_the_run_without_it(has_trained)


def test_a_trainer_tells_of_its_run_and_not_of_a_search(tmp_path: Path) -> None:
    """It evaluates on the data of its run, and saves a training state of it, as if nothing had been between."""
    trainer = make_trainer()
    find_learning_rate(trainer, samples(), num_updates=3)
    assert trainer.num_updates_completed == 0
    trainer.train(samples(), 1, samples(), per_device_batch_size=16)
    config = trainer.run_config
    find_learning_rate(trainer, samples(), num_updates=3)
    assert trainer.run_config is config
    assert (trainer.num_epochs_completed, trainer.num_updates_completed) == (1, 6)
    trainer.save_training_state(tmp_path / "state")
    trainer.evaluate()

    resumed = make_trainer()
    resumed.train(samples(), 2, samples(), per_device_batch_size=16, resume_from=tmp_path / "state")
    whole = make_trainer()
    whole.train(samples(), 2, samples(), per_device_batch_size=16)
    assert resumed.fingerprint() == whole.fingerprint()


def test_rates_grow_by_the_same_factor_and_groups_keep_their_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """From the lowest to the highest, each for one update, however many batches it has."""
    trainer = make_trainer(NotesRates)

    found = find_learning_rate(
        trainer,
        samples(),
        lowest=1e-6,
        highest=1e-2,
        num_updates=5,
        per_device_batch_size=8,
        gradient_accumulation_steps=2,
    )

    rates = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
    assert [row.rate for row in found.rows] == pytest.approx(rates)
    printed = [line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.startswith("rates")]
    expected = [pytest.approx([rate / 10, rate]) for rate in rates for _ in range(2)]
    assert [[*map(float, line)] for line in printed] == expected


@pytest.mark.runs_on("one_process", "two_ranks", "bf16")
def test_the_suggestion_trains_and_a_hundred_times_as_much_does_not() -> None:
    """It lies a tenth below the rate with the lowest loss; the search ends soon after the loss has grown too much."""
    trainer = make_trainer()
    found = find_learning_rate(trainer, samples(), per_device_batch_size=16)
    assert all(np.isfinite(row.loss) for row in found.rows)
    lowest = min(found.rows, key=lambda row: row.smoothed)
    assert found.suggestion == lowest.rate / 10
    on_all = trainer.gather(torch.tensor([[row.loss for row in found.rows]], dtype=torch.float64))
    assert (on_all == on_all[0]).all()

    losses: dict[int, float] = {}
    for factor in (1, 100):
        trainer = make_trainer(rates=(factor * found.suggestion, factor * found.suggestion))
        trainer.train(samples(), 5, per_device_batch_size=16)
        losses[factor] = float(trainer.run_history.get_latest_metric("train_loss_epoch"))
    assert losses[1] < 0.8 < losses[100]


def test_a_search_ends_when_the_loss_diverges() -> None:
    """What comes after would be wasted; a loss that is not finite is no row."""
    model = nn.Linear(8, 1)
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=1.0), callbacks=[])
    points = torch.randn(96, 8)

    found = find_learning_rate(trainer, TensorDataset(points, points[:, :1]), highest=1e30)

    assert len(found.rows) < 50
    assert all(np.isfinite(row.loss) for row in found.rows)


def test_callbacks_of_the_trainer_are_not_called() -> None:
    """A search saves nothing, prints nothing and sends nothing to a tracker."""
    recorder = RecordingCallback()
    trainer = make_trainer(Trainer, recorder)
    recorder.events.clear()

    find_learning_rate(trainer, samples(), num_updates=3)

    assert recorder.events == []
    assert trainer.callback_handler.callbacks == [recorder]


def test_a_step_that_fails_leaves_everything_as_it_was() -> None:
    """An exception that ends the search leaves no trace of it in weights and optimizer."""

    class Fails(Trainer[Any, Any, Any, Any]):
        num_updates = 0

        @override
        def optimizer_step(self) -> None:
            self.num_updates += 1
            if self.num_updates == 3:
                raise RuntimeError("the step failed")
            super().optimizer_step()

    trainer = make_trainer(Fails)
    before = [tensor.clone() for tensor in contents(trainer)]
    with pytest.raises(RuntimeError, match="the step failed"):
        find_learning_rate(trainer, samples())
    assert all(torch.equal(first, second) for first, second in zip(before, contents(trainer), strict=True))


@pytest.mark.parametrize(
    ("losses", "advice"),
    [([3.0, 2.0, 1.0], "greater `highest`"), ([1.0, 2.0, 3.0], "smaller `lowest`"), ([1.0], "smaller `lowest`")],
    ids=["still falling", "rising at once", "one row"],
)
def test_losses_without_a_lowest_one_between_suggest_nothing(losses: list[float], advice: str) -> None:
    """Instead of a rate that means nothing, there is advice how to search again; the rows stay."""
    curve = LearningRateCurve([LearningRateLoss(10.0**power, loss, loss) for power, loss in enumerate(losses)])
    with pytest.raises(ConfigurationError, match=advice):
        _ = curve.suggestion


def test_a_curve_without_losses_says_so(tmp_path: Path) -> None:
    """It is neither drawn nor suggests a rate."""
    with pytest.raises(ConfigurationError, match="got no rows"):
        _ = LearningRateCurve([]).suggestion
    with pytest.raises(ConfigurationError, match="got no rows"):
        LearningRateCurve([]).plot(tmp_path / "curve.png")


class SetsRates(Trainer[Any, Any, Any, Any]):
    """Makes a schedule of its own, whatever it is given."""

    @override
    def create_scheduler(self) -> Any:
        return StepLR(self.optimizer, 10)


@pytest.mark.parametrize(
    ("trainer", "arguments", "message"),
    [
        (make_trainer, {"lowest": 0.1, "highest": 0.1}, r"lowest=0\.1, highest=0\.1"),
        (make_trainer, {"lowest": 0.0}, "lowest=0.0"),
        (make_trainer, {"highest": "1"}, "highest='1'"),
        (make_trainer, {"num_updates": 1}, "num_updates must be .* got 1"),
        (lambda: make_trainer(rates=(0.0, 0.0)), {}, "all 0"),
        (lambda: make_trainer(SetsRates), {}, "sets its learning rates itself"),
    ],
    ids=["no range", "zero", "no number", "one update", "no ratio", "rates of its own"],
)
def test_what_cannot_work_is_refused(trainer: Any, arguments: dict[str, Any], message: str) -> None:
    """Each error names what was given."""
    with pytest.raises(ConfigurationError, match=message):
        find_learning_rate(trainer(), samples(), **arguments)


def test_a_loss_that_is_never_finite_is_told() -> None:
    """Instead of a curve without rows."""
    trainer = make_trainer()
    points = TensorDataset(torch.full((16, 8), torch.nan), torch.zeros(16, dtype=torch.long))
    before = [tensor.clone() for tensor in contents(trainer)]
    with pytest.raises(ConfigurationError, match="infinite in the first update"):
        find_learning_rate(trainer, points)
    assert all(torch.equal(first, second) for first, second in zip(before, contents(trainer), strict=True))


def test_a_model_without_its_parameters_is_refused() -> None:
    """Those of lazy modules come with the first batch, and have no values before."""
    model = nn.LazyLinear(3)
    trainer = Trainer(model, nn.CrossEntropyLoss(), SGD(model.parameters(), lr=0.1), callbacks=[])
    with pytest.raises(UnsupportedConfigurationError, match="lazy modules"):
        find_learning_rate(trainer, samples())


def test_a_reproducible_trainer_is_refused() -> None:
    """The batches of a search follow the number of processes."""
    model = nn.Linear(8, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=[], reproducible="any_processes")
    with pytest.raises(UnsupportedConfigurationError, match="without reproducible"):
        find_learning_rate(trainer, samples())


def test_a_model_in_place_of_a_trainer_is_refused() -> None:
    """With an error that says what is expected."""
    with pytest.raises(ArgumentTypeError, match="trainer of type Linear"):
        find_learning_rate(cast("Trainer", nn.Linear(8, 3)), samples())


def test_an_optimizer_that_is_made_later_is_refused() -> None:
    """Its groups are not known before a run."""

    def make_optimizer(model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=0.1)

    trainer = Trainer(nn.Linear(8, 3), nn.CrossEntropyLoss(), None, callbacks=[], create_optimizer_fn=make_optimizer)
    with pytest.raises(UnsupportedConfigurationError, match="made when a run starts"):
        find_learning_rate(trainer, samples())


def test_the_curve_is_drawn_with_its_suggestion(tmp_path: Path) -> None:
    """For light and dark pages; a curve that suggests nothing is drawn too, and shows why."""
    rows = [LearningRateLoss(10.0**power, loss, loss) for power, loss in ((-3, 2.0), (-2, 1.0), (-1, 3.0))]
    light = LearningRateCurve(rows).plot(tmp_path / "figures" / "light.svg").read_text()
    dark = LearningRateCurve(rows).plot(tmp_path / "dark.svg", dark=True).read_text()
    assert {"learning rate", "smoothed", "suggestion 0.001"} <= set(re.findall(r"<!-- (.*?) -->", light))
    assert "fill: #131416" in dark
    falling = LearningRateCurve(rows[:2]).plot(tmp_path / "falling.svg").read_text()
    assert "suggestion" not in falling


def test_only_the_picture_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, drawing says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    curve = LearningRateCurve([LearningRateLoss(0.1, 1.0, 1.0)])
    with pytest.raises(ImportError, match=re.escape('pip install "pa-schedulers[plot]"')):
        curve.plot(tmp_path / "curve.png")


@pytest.mark.parametrize(
    ("way", "place"),
    [
        *(("plain_tensor", "model"), ("numpy_array", "dataset"), ("closure", "hook")),
        *(("attribute", "loss_func"), ("deque_of_tensors", "step")),
    ],
)
def test_state_beside_parameters_is_restored(way: str, place: str) -> None:
    """Plain tensors of a model, what a dataset counts, and variables that a hook changes."""
    searched = make(way, place)
    find_learning_rate(searched.trainer, searched.arguments["train_dataset"], num_updates=4)
    after_search = searched.weights_after()
    assert make(way, place).weights_after() == after_search


class RunningLoss(nn.Module):
    """A loss function that has a parameter, and a buffer that no state dict has."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.num_calls = 0
        self.register_buffer("mean", torch.zeros(()), persistent=False)

    @override
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(outputs * self.scale, targets)
        self.num_calls += 1
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        return loss / (1 + self.mean + self.num_calls)


class Counts(Trainer[Any, Any, Any, Any]):
    """Makes each step depend on the number of steps before it."""

    steps = 0

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        self.steps += 1
        output: dict[str, Any] = super().calculate_train_batch_loss(batch)
        return {**output, "loss": output["loss"] / self.steps}


def test_what_no_state_dict_has_is_as_before() -> None:
    """A loss function with parameters, attributes of modules and of the trainer, gradients, generators of a loader."""
    ended: list[list[Tensor]] = []
    for searches in (False, True):
        torch.manual_seed(0)
        model, loss_func = nn.Linear(8, 3), RunningLoss()
        parameters = [*model.parameters(), *loss_func.parameters()]
        trainer = Counts(model, loss_func, SGD(parameters, lr=0.1), callbacks=[])
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
        sampler = RandomSampler(samples(), generator=generators[0])
        loader = DataLoader(samples(), 16, sampler=sampler, generator=generators[1])
        if searches:
            buffer, step = loss_func.mean, trainer.optimizer.step.__func__  # type: ignore[attr-defined]  # a method
            find_learning_rate(trainer, loader, num_updates=10, per_device_batch_size=16)
            assert loss_func.mean is buffer
            assert trainer.optimizer.step.__func__ is step  # type: ignore[attr-defined]  # a method
        trainer.train(loader, 2)
        drawn = [torch.rand(1, generator=generator) for generator in generators]
        ended.append([*(one.detach().clone() for one in parameters), loss_func.mean, *drawn])
    assert all(torch.equal(first, second) for first, second in zip(*ended, strict=True))
