"""States that are written while training continues: nothing but what was there after the update gets into them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import AnyTrainer, Run, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.storage import read_state
from pa_core.storage.late_copies import LateCopies

SAMPLES = TensorDataset(torch.randn(96, 256, generator=torch.Generator().manual_seed(0)), torch.arange(96) % 4)


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 4))


class _Recorder(TrainerCallback):
    """Keeps the weights after each update, which the states are to have; changes them in the course of a step."""

    def __init__(self, change: Callable[[nn.Module, int], object] = lambda model, step: None) -> None:
        self.weights: dict[int, Tensor] = {}
        self.moments: dict[int, Tensor] = {}
        self.change = change

    @override
    def on_train_step_end(self, trainer: AnyTrainer, batch: Any, batch_output: Any, **kwargs: Any) -> None:
        self.change(trainer.get_model(), trainer.num_updates_completed)

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        self.weights[update] = trainer.get_model().get_parameter("0.weight").detach().clone()
        moments = trainer.optimizer.state_dict()["state"][0]["exp_avg"]
        self.moments[update] = moments.clone()


@pytest.fixture
def copied_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the background copy nothing, so that all is left to those who are about to change the weights."""
    complete = LateCopies._complete  # pyright: ignore[reportPrivateUsage]  # the part of both threads

    def complete_on_main_thread(copies: LateCopies) -> None:
        if threading.current_thread() is threading.main_thread():
            complete(copies)
        copies._are_complete.wait()  # pyright: ignore[reportPrivateUsage]  # as above

    monkeypatch.setattr(LateCopies, "_complete", complete_on_main_thread)


def _train(folder: Path, recorder: _Recorder) -> None:
    model = _model()
    save = SaveTrainingStateCallback(folder, save_every_n_steps=1, save_at_end=False, asynchronous=True)
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters()), callbacks=[recorder, save])
    trainer.train(SAMPLES, 2, per_device_batch_size=16)


def _require_exact_states(folder: Path, recorder: _Recorder, updates: set[int]) -> None:
    found: set[int] = set()
    for path in folder.glob("*_*"):
        state = read_state(path)
        update = int(state.summary["update"] or 0)
        found.add(update)
        assert state.parts["models"]["model"]["weights"]["0.weight"].equal(recorder.weights[update])
        moments = state.parts["optimizers"]["optimizer"]["state"]["state"][0]["exp_avg"]
        assert moments.equal(recorder.moments[update])
    assert found == updates


@pytest.mark.usefixtures("copied_last")
def test_a_state_is_that_of_its_update(tmp_path: Path) -> None:
    """However late the copy is made, the next optimizer step waits for it."""
    recorder = _Recorder()
    _train(tmp_path, recorder)
    _require_exact_states(tmp_path, recorder, set(range(1, 13)))


@pytest.mark.usefixtures("copied_last")
@pytest.mark.parametrize("through", ["data", "no_grad"])
def test_what_the_forward_pass_changes_is_copied_at_once(tmp_path: Path, through: str) -> None:
    """Weights that each step changes on its own, noted by torch or not, are saved as they were after the update."""

    def change(model: nn.Module, _step: int) -> None:
        weight = model.get_parameter("0.weight")
        with torch.no_grad():
            (weight.data if through == "data" else weight).mul_(0.5)

    recorder = _Recorder(change)
    _train(tmp_path, recorder)
    _require_exact_states(tmp_path, recorder, set(range(1, 13)))


@pytest.mark.usefixtures("copied_last")
@pytest.mark.parametrize("through", ["data", "no_grad"])
def test_a_state_that_cannot_be_copied_any_more_is_not_written(tmp_path: Path, through: str) -> None:
    """If weights change once where they never did, that state is left out, with a warning; others are exact."""

    def change(model: nn.Module, step: int) -> None:
        weight = model.get_parameter("0.weight")
        if step == 4:
            with torch.no_grad():
                (weight.data if through == "data" else weight).mul_(0.5)

    recorder = _Recorder(change)
    with pytest.warns(UserWarning, match="A training state is not saved"):
        _train(tmp_path, recorder)
    _require_exact_states(tmp_path, recorder, set(range(1, 13)) - {4})


@pytest.mark.usefixtures("copied_last")
def test_what_a_callback_changes_after_an_epoch_is_not_in_the_state_before(tmp_path: Path) -> None:
    """The state of the last update of an epoch is that of the update, whatever the events after it do."""

    class Halve(_Recorder):
        @override
        def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
            trainer.get_model().get_parameter("0.weight").data.mul_(0.5)

    recorder = Halve()
    _train(tmp_path, recorder)
    _require_exact_states(tmp_path, recorder, set(range(1, 13)))


@pytest.mark.usefixtures("copied_last")
def test_a_loop_of_ones_own_waits_with_each_of_its_optimizers(tmp_path: Path) -> None:
    """Whichever optimizer steps first, the copy is complete by then."""
    models = {"first": _model(), "second": _model()}
    optimizers = {name: torch.optim.AdamW(model.parameters()) for name, model in models.items()}
    save = SaveTrainingStateCallback(tmp_path, save_every_n_steps=1, save_at_end=False, asynchronous=True)
    weights: dict[int, Tensor] = {}
    with Run(models, optimizers, SAMPLES, num_epochs=1, per_device_batch_size=16, callbacks=[save]) as run:
        for update in run.updates():
            for inputs, targets in update:
                for name, model in models.items():
                    update.backward(nn.functional.cross_entropy(model(inputs), targets), model=name)
            for name in ("second", "first"):
                update.step(name)
            weights[update.number] = models["second"].get_parameter("0.weight").detach().clone()
    for number, weight in weights.items():
        state = read_state(tmp_path / f"step_{number}")
        assert state.parts["models"]["second"]["weights"]["0.weight"].equal(weight)


def test_two_threads_share_the_copying() -> None:
    """Whoever waits for the copies helps, and both return when all is copied."""
    sources = [torch.randn(2**22) for _ in range(4)]
    copies = [torch.zeros_like(source) for source in sources]
    late = LateCopies(list(zip(sources, copies, strict=True)))
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(late.wait()))
    thread.start()
    assert late.finish()
    thread.join()
    assert results == [True]
    assert all(source.equal(copy) for source, copy in zip(sources, copies, strict=True))
