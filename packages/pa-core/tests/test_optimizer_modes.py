"""Optimizers with `train()` and `eval()` of their own: which weights are trained, evaluated, saved and exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pa_core import (
    AnyTrainer,
    Run,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    TrainerCallback,
)
from tests.support.callbacks import CallAt
from tests.support.pa_core import entries
from tests.support.pa_core.entries import Entry
from tests.support.schedule_free import Averaging

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(24, 3, generator=GENERATOR)
DATA = TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True) + 0.1 * torch.randn(24, 1, generator=GENERATOR))
LOSS = nn.MSELoss()
BATCH = 4


def network() -> nn.Linear:
    """The same model each time."""
    torch.default_generator.manual_seed(0)
    return nn.Linear(3, 1)


def by_hand(epochs: int) -> list[dict[str, Tensor]]:
    """The averages after each epoch of a plain loop."""
    model = network()
    optimizer = Averaging(model.parameters())
    averages = list[dict[str, Tensor]]()
    for _ in range(epochs):
        optimizer.train()
        for inputs, targets in zip(*(torch.split(tensor, BATCH) for tensor in DATA.tensors), strict=True):
            LOSS(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.eval()
        averages.append({name: value.clone() for name, value in model.state_dict().items()})
    return averages


def loss_of(weights: dict[str, Tensor]) -> float:
    """What an evaluation of some weights gives."""
    model = network()
    model.load_state_dict(weights)
    with torch.no_grad():
        return float(LOSS(model(DATA.tensors[0]), DATA.tensors[1]))


def assert_close(weights: Any, expected: dict[str, Tensor]) -> None:
    """Compare weights by name."""
    torch.testing.assert_close({name: value.detach().cpu() for name, value in weights.items()}, expected)


def save_each_epoch(folder: Path) -> CallAt:
    """Saves a checkpoint and an export in the middle of the run."""

    def save(trainer: AnyTrainer) -> None:
        trainer.save_checkpoint(folder / f"{trainer.run_history.current_epoch}.pt", save_per_node=False)
        trainer.save_model(folder / f"{trainer.run_history.current_epoch}")

    return CallAt("on_train_epoch_end", save)


def train(
    *callbacks: TrainerCallback, epochs: int = 3, entry: Entry = "Trainer", evaluates: bool = True, **arguments: Any
) -> Any:
    """Train in the order of the samples."""
    model = network()
    options: dict[str, Any] = {
        "per_device_batch_size": BATCH,
        "train_dataloader_kwargs": {"shuffle": False},
        **arguments,
    }
    data = DATA if evaluates else None
    return entries.train(
        entry, model, Averaging(model.parameters()), DATA, epochs, callbacks=callbacks, eval_dataset=data, **options
    )


@entries.on_both_entries
def test_what_is_evaluated_saved_and_exported_is_the_average(entry: Entry, tmp_path: Path) -> None:
    """In a run and after it: evaluations, checkpoints, exports, and the model itself."""
    averages = by_hand(3)
    trainer = train(save_each_epoch(tmp_path), entry=entry)
    losses = [loss_of(average) for average in averages]
    assert list(trainer.run_history.get_metric_values("eval_loss_epoch")) == pytest.approx(losses)
    for epoch, average in enumerate(averages, start=1):
        file = torch.load(tmp_path / f"{epoch}.pt", weights_only=True)
        assert_close(file["model_state_dict"], average)
        assert_close(load_file(tmp_path / f"{epoch}" / "model.safetensors"), average)
    assert_close(trainer.model.state_dict(), averages[-1])


def test_a_custom_loop_saves_the_average_after_an_evaluation(tmp_path: Path) -> None:
    """Also where the script saves a checkpoint itself, and not in a callback."""
    averages, model = by_hand(2), network()
    with Run(
        model,
        Averaging(model.parameters()),
        DATA,
        num_epochs=2,
        per_device_batch_size=BATCH,
        train_dataloader_kwargs={"shuffle": False},
    ) as run:
        for epoch in run.epochs():
            for inputs, targets in run.batches():
                run.backward(LOSS(run.model(inputs), targets))
                run.step()
            for inputs, targets in run.evaluation_batches(DATA):
                run.log("loss", LOSS(run.model(inputs), targets))
            assert run.run_history.get_latest_metric("eval_loss_epoch") == pytest.approx(loss_of(averages[epoch]))
            run.save_checkpoint(tmp_path / f"{epoch}.pt")
    assert_close(model.state_dict(), averages[1])
    for epoch, average in enumerate(averages):
        assert_close(torch.load(tmp_path / f"{epoch}.pt", weights_only=True)["model_state_dict"], average)


def test_the_best_model_and_predictions_are_of_the_average(tmp_path: Path) -> None:
    """And so is what ``evaluate()`` says of it."""
    averages, best = by_hand(3), SaveBestModelCallback(tmp_path / "best.pt")
    trainer = train(best)
    assert_close(trainer.model.state_dict(), averages[(best.best.epoch or 0) - 1])
    assert trainer.evaluate(DATA)["evaluation_loss"] == pytest.approx(min(map(loss_of, averages)))
    with torch.no_grad():
        expected = trainer.model(DATA.tensors[0])
    torch.testing.assert_close(torch.cat(list(trainer.predict(DATA, 8))), expected)


def test_evaluations_and_checkpoints_leave_the_training_as_it_is(tmp_path: Path) -> None:
    """To the last bit: the weights of the training are kept, and not computed back."""
    often = train(save_each_epoch(tmp_path), StepBasedEvaluationCallback(1), sanity_eval_steps=1)
    alone = train(evaluates=False)
    assert torch.equal(often.model.weight, alone.model.weight)


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    """States hold the weights of the training."""
    expected = train(SaveTrainingStateCallback(tmp_path, save_every_n_steps=2, max_checkpoints=None)).model
    states = sorted(tmp_path.glob("[!.]*"))
    assert len(states) > 5
    for state in states[::2]:
        resumed = train(resume_from=state).model
        assert torch.equal(resumed.weight, expected.weight), state


def test_a_second_run_and_a_loaded_checkpoint_are_trained_on(tmp_path: Path) -> None:
    """Training mode comes back with the next run, and after a checkpoint was loaded in the middle of one."""
    trainer = train(save_each_epoch(tmp_path))
    trainer.train(DATA, 1, DATA, per_device_batch_size=BATCH)
    load = CallAt("on_train_epoch_start", lambda one: one.load_checkpoint(tmp_path / "2.pt"))
    resumed = train(load, epochs=1)
    assert_close(resumed.model.state_dict(), by_hand(3)[2])
