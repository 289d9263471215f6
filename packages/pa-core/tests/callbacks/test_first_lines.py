"""What the first lines of a run say: what it trains, where it writes, and which callbacks it lacks."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from torch import nn
from torch.optim import SGD

from pa_core import (
    DEFAULT_CALLBACKS,
    PrintProgressCallback,
    ProgressBarCallback,
    Run,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    TerminateOnNaNCallback,
    Trainer,
)
from pa_core.callbacks import CallbackLike
from pa_core.testing import make_regression

DATA = make_regression(16)


def three_layers() -> nn.Sequential:
    """20, 20 and 5 parameters."""
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))


def first_lines(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The first two lines of what was printed."""
    first, second, *_ = capsys.readouterr().out.splitlines()
    return first, second


def test_a_head_that_no_optimizer_has_is_named_and_frozen_layers_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    """The one was forgotten, the others are meant not to be trained."""
    model = three_layers()
    optimizer = SGD(model[1].parameters(), lr=0.1)
    trainer = Trainer(model, nn.MSELoss(), optimizer)
    trainer.train(DATA, 1)
    names = "0.weight, 0.bias and 2 more (25, not frozen)"
    assert first_lines(capsys)[1] == f"Trains 20 of 45 parameters; no optimizer has {names}"
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    trainer.train(DATA, 1)
    assert first_lines(capsys)[1] == "Trains 20 of 45 parameters (25 frozen)"


def test_everything_that_is_trained_beside_the_model_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Modules that were added, and a parameter that two layers share is one."""
    model, added = three_layers(), nn.Linear(1, 1)
    model[1].weight = model[0].weight
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1))
    trainer.add_module("added", added, SGD(added.parameters(), lr=0.1))
    trainer.train(DATA, 1)
    assert first_lines(capsys)[1] == "Trains all 31 parameters"


def test_the_first_lines_say_what_an_update_is_made_of_and_where_the_run_writes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The batches that are accumulated, and the files and folders of all callbacks."""
    model, best, states = nn.Linear(4, 1), tmp_path / "best.pt", tmp_path / "states"
    callbacks: list[CallbackLike] = [*DEFAULT_CALLBACKS, SaveBestModelCallback(best), SaveTrainingStateCallback(states)]
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=callbacks)
    trainer.train(DATA, 1, DATA, per_device_batch_size=2, gradient_accumulation_steps=4)
    first, second = first_lines(capsys)
    assert first.startswith("Training starts: 1 epoch of 2 updates, 8 samples per update (4 batches of 2); 1 process")
    assert second == f"Trains all 5 parameters; writes to {best}, {states}"


def test_a_loop_of_the_script_says_the_same_of_its_models(capsys: pytest.CaptureFixture[str]) -> None:
    """A model that has no optimizer by intent, such as a copy of another one, is not taken for forgotten."""
    models = {"online": nn.Linear(4, 1), "target": nn.Linear(4, 1)}
    optimizers = {"online": SGD([models["online"].weight], lr=0.1)}
    with Run(models, optimizers, DATA, num_epochs=1, callbacks=[PrintProgressCallback]) as run:
        for inputs, targets in run.batches():
            run.backward(nn.functional.mse_loss(models["online"](inputs), targets))
            run.step()
    assert first_lines(capsys)[1] == (
        "Trains 4 of 5 parameters; no optimizer has online.bias (1, not frozen); no TerminateOnNaNCallback"
    )


def test_a_parameter_that_two_models_share_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    """As the encoder of two heads, each of them a model with the encoder in it; an optimizer of one of them has it."""
    encoder = nn.Linear(4, 4)
    models = {name: nn.Sequential(encoder, nn.Linear(4, 1)) for name in ("first", "second")}
    optimizers = {"first": SGD(models["first"].parameters(), lr=0.1)}
    optimizers["second"] = SGD(models["second"][1].parameters(), lr=0.1)
    with Run(models, optimizers, DATA, num_epochs=1, callbacks=[PrintProgressCallback]) as run:
        for inputs, targets in run.batches():
            for name, model in models.items():
                run.backward(nn.functional.mse_loss(model(inputs), targets), model=name)
                run.step(name)
    assert first_lines(capsys)[1] == "Trains all 30 parameters; no TerminateOnNaNCallback"


def test_updates_out_of_a_batch_are_counted_as_the_most_that_there_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    """How many the loop makes of each batch, and of how many samples, only the loop knows."""
    model = nn.Linear(4, 1)
    show, batch_size = [PrintProgressCallback], 8
    optimizer = SGD(model.parameters(), lr=0.1)
    with Run(
        model, optimizer, DATA, num_epochs=1, per_device_batch_size=batch_size, max_updates_per_batch=3, callbacks=show
    ) as run:
        for batch in run.batches():
            for inputs, targets in run.batches([batch]):
                run.backward(nn.functional.mse_loss(model(inputs), targets))
                run.step()
    assert first_lines(capsys)[0].startswith("Training starts: 1 epoch of at most 6 updates, 8 samples per batch; ")


def test_lazy_layers_are_not_left_out_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    """How many parameters they have shows only in the first forward pass."""
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    trainer = Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1))
    trainer.train(DATA, 1)
    assert first_lines(capsys)[1] == "Trains all 4 parameters, and 2 tensors of sizes that are not known yet"


def test_a_list_without_any_default_callback_is_warned_of(tmp_path: Path) -> None:
    """Whoever names one of them knows that the list replaces them, and so does whoever passes an empty one."""
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    best = SaveBestModelCallback(tmp_path / "best.pt")
    with pytest.warns(UserWarning, match=r"callbacks=\[\*DEFAULT_CALLBACKS, \.\.\.\]") as warned:
        Trainer(model, nn.MSELoss(), optimizer, callbacks=[best])
    assert [one.filename for one in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(model, nn.MSELoss(), optimizer, callbacks=[])
        Trainer(model, nn.MSELoss(), optimizer, callbacks=[best, TerminateOnNaNCallback])
        Trainer(model, nn.MSELoss(), optimizer, callbacks=[ProgressBarCallback])
        Trainer(model, nn.MSELoss(), None, callbacks=[best])
