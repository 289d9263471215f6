"""Models that are pushed to the Hugging Face Hub, here a small server: what arrives, and what happens if not."""

from __future__ import annotations

import importlib.metadata
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from typing_extensions import override

from pa_callbacks_extra import PushToHubCallback, push_to_hub
from pa_core import (
    AnyTrainer,
    ConfigurationError,
    NonFiniteLossError,
    Run,
    SaveBestModelCallback,
    SaveTrainingStateCallback,
    TerminateOnNaNCallback,
    Trainer,
    TrainerCallback,
    UnsupportedConfigurationError,
    gather_objects,
)
from pa_core.distributed import rank
from pa_core.testing import make_regression
from tests.launching import Launch
from tests.support.pa_callbacks_extra.hub_server import Hub, Repository, serving

DATA = make_regression(32)
REPO = "me/digits"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub to which this process and its children push, from an empty folder."""
    monkeypatch.chdir(tmp_path)
    with serving() as hub:
        for name, value in hub.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        yield hub


def make_trainer(*callbacks: TrainerCallback, rate: float = 0.05) -> Trainer[nn.Linear]:
    """A trainer of a linear model, the same one on every call, whose loss falls in each epoch."""
    torch.default_generator.manual_seed(0)
    model = nn.Linear(4, 1)
    return Trainer(model, nn.MSELoss(), SGD(model.parameters(), lr=rate), callbacks=callbacks)


def train(*callbacks: TrainerCallback, epochs: int = 2, rate: float = 0.05) -> Trainer[nn.Linear]:
    """Train such a trainer."""
    trainer = make_trainer(*callbacks, rate=rate)
    trainer.train(DATA, epochs, DATA)
    return trainer


def weights_on(hub: Hub, launch: Launch) -> dict[str, Tensor]:
    """The weights that the code on the card loads, in a program that has only the code of the model."""
    card = hub.repositories[REPO].files["README.md"].decode()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    before, after = "import torch\nmodel = torch.nn.Linear(4, 1)\n", '\ntorch.save(model.state_dict(), "loaded.pt")\n'
    assert launch(before + code + after).status == 0
    weights: dict[str, Tensor] = torch.load(launch.folder / "loaded.pt", weights_only=True)
    return weights


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    """Assert that two models have the same weights, bit for bit."""
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_finished_run_is_on_the_hub(hub: Hub, launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    """The weights can be loaded with the code on the card, which says what a user has to know; nothing stays here."""
    trainer = train(PushToHubCallback(REPO, config={"hidden": 16}))
    repository = hub.repositories[REPO]
    assert repository.private
    assert repository.files.keys() == {"README.md", "model.safetensors", "settings.json"}
    assert_same(weights_on(hub, launch), trainer.get_model().state_dict())
    card = repository.files["README.md"].decode()
    assert f"| eval_loss_epoch | {trainer.run_history.get_latest_metric('eval_loss_epoch'):.6g} |" in card
    assert f"`{trainer.fingerprint()}`" in card
    assert "| num_epochs | 2 |" in card
    settings = json.loads(repository.files["settings.json"])
    assert (settings["hidden"], settings["train_total_batch_size"]) == (16, 8)
    assert f"Pushed the model to {hub.url}/{REPO}/commit/1" in capsys.readouterr().out
    assert [*Path("hub").rglob("*.safetensors")] == []


def test_the_best_model_is_pushed_at_the_end(hub: Hub, launch: Launch) -> None:
    """Where a run loads its best model at the end, the weights and the metrics on the Hub are those of its epoch."""
    worse = TrainWorse(in_epoch=2)
    trainer = train(worse, PushToHubCallback(REPO), SaveBestModelCallback("best.pt"), epochs=3)
    assert_same(weights_on(hub, launch), torch.load("best.pt", weights_only=True)["model_state_dict"])
    first, *_ = trainer.run_history.get_metric_values("eval_loss_epoch")
    card = hub.repositories[REPO].files["README.md"].decode()
    assert "from epoch 1: the best eval_loss_epoch" in card
    assert f"| eval_loss_epoch | {first:.6g} |" in card


class TrainWorse(TrainerCallback):
    """Spoils the weights in an epoch."""

    def __init__(self, in_epoch: int) -> None:
        self.in_epoch = in_epoch

    @override
    def on_train_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        if trainer.run_history.current_epoch >= self.in_epoch:
            weights = trainer.get_model().state_dict()["weight"]
            weights += 10


class At(TrainerCallback):
    """Calls functions at the end of epochs, when everything else of an epoch has happened."""

    def __init__(self, functions: Mapping[int, Callable[[], object]]) -> None:
        self.functions = functions

    @override
    def on_training_run_epoch_end(self, trainer: AnyTrainer, **kwargs: Any) -> None:
        self.functions.get(trainer.run_history.current_epoch, lambda: None)()


def test_of_models_that_wait_only_the_newest_is_pushed(hub: Hub, launch: Launch) -> None:
    """Each better model is pushed while the training continues; one that waits makes room for a better one."""
    is_sending, goes_on = threading.Event(), threading.Event()

    def commit() -> None:
        is_sending.set()
        assert goes_on.wait(30)

    hub.before["commit"] = commit
    push = PushToHubCallback(REPO, "best", time_limit=60)
    at = At({1: lambda: is_sending.wait(30), 4: goes_on.set})
    trainer = train(SaveBestModelCallback("best.pt"), push, at, epochs=4)
    assert hub.repositories[REPO].commits == ["Best model, from epoch 1", "Best model, from epoch 4"]
    assert_same(weights_on(hub, launch), trainer.get_model().state_dict())
    assert [*Path("hub").rglob("*.safetensors")] == []


@pytest.mark.parametrize(
    ("repo_id", "token", "says"),
    [
        (REPO, "hf_wrong", "Invalid user token"),
        (REPO, "", "token"),
        ("others/digits", "hf_writes", "403"),
        ("others/taken", "hf_writes", "403"),
        ("me/public", "hf_writes", "exists and is public"),
    ],
)
def test_a_run_that_cannot_be_pushed_does_not_start(
    hub: Hub, repo_id: str, token: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong token, no token, or a repository of others raises an error that says what to do, before the training."""
    hub.repositories |= {"others/taken": Repository(private=False), "me/public": Repository(private=False)}
    monkeypatch.setenv("HF_TOKEN", token)
    trainer = make_trainer(PushToHubCallback(repo_id))
    with pytest.raises(ConfigurationError, match=says) as caught:
        trainer.train(DATA, 1)
    assert "hf auth login" in str(caught.value)
    assert trainer.num_updates_completed == 0


def test_without_an_answer_only_a_resumed_run_starts(hub: Hub) -> None:
    """A new run raises an error if the Hub cannot be reached; a resumed one warns, and pushes in the end."""
    hub.statuses["whoami"] = [500] * 10
    with pytest.raises(UnsupportedConfigurationError, match="does not answer"):
        train(PushToHubCallback(REPO))
    hub.statuses.clear()
    train(SaveTrainingStateCallback("states", save_every_n_epochs=1), PushToHubCallback(REPO), epochs=1)
    hub.statuses["whoami"] = [500] * 10
    trainer = make_trainer(SaveTrainingStateCallback("states", save_every_n_epochs=1), PushToHubCallback(REPO))
    with pytest.warns(UserWarning, match="does not answer"):
        trainer.train(DATA, 2, DATA, resume_from="states")
    hub.statuses.clear()
    assert hub.repositories[REPO].commits == ["Model after update 4", "Model after update 8"]
    trainer.train(DATA, 2, DATA, resume_from="states")  # which is complete
    assert hub.requests["commit"] == 2


def test_a_push_that_fails_ends_no_run(hub: Hub, launch: Launch) -> None:
    """A push is tried again until its limit; then a warning names the command that pushes the files later."""
    hub.statuses["commit"] = [500]
    train(PushToHubCallback(REPO))
    assert len(hub.repositories[REPO].commits) == 1
    hub.statuses["commit"] = [500] * 100
    with pytest.warns(UserWarning, match="500") as warned:
        trainer = train(PushToHubCallback(REPO, time_limit=2), rate=0.1)
    assert trainer.num_epochs_completed == 2
    (code,) = re.findall(r'python -c "(.*)"', str(warned[-1].message))
    hub.statuses.clear()
    assert launch(code).status == 0
    assert len(hub.repositories[REPO].commits) == 2
    assert_same(weights_on(hub, launch), trainer.get_model().state_dict())


HANGING = """
import torch
from torch import nn
from pa_callbacks_extra import PushToHubCallback
from pa_core import Trainer
from pa_core.testing import make_regression
from safetensors.torch import save_file

def add(folder):
    save_file({"more": torch.ones(1)}, folder / "more.safetensors")

model = nn.Linear(4, 1)
push = PushToHubCallback("me/digits", add_files=add, time_limit=2)
trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[push])
trainer.train(make_regression(32), 1)
print("goes on")
"""


def test_a_run_does_not_wait_for_a_hub_that_hangs(hub: Hub, launch: Launch) -> None:
    """After the limit the script continues and its process ends, although uploads of several files are under way."""
    hub.before["put"] = hub.end.wait
    began = time.monotonic()
    launched = launch(HANGING)
    assert launched.status == 0
    assert "2 seconds" in launched.output
    assert "goes on" in launched.output
    assert time.monotonic() - began < 30
    assert hub.requests["put"] == 2


KILLED = """
import os, signal, sys, time
from pathlib import Path
import torch
from torch import nn
from pa_callbacks_extra import PushToHubCallback
from pa_core import SaveBestModelCallback, SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.testing import make_regression

class Kill(TrainerCallback):
    def on_training_state_saved(self, trainer, path, update, **kwargs):
        if len(sys.argv) > 2 and update == 8:  # the second epoch is over
            while not Path("is_sending").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

torch.default_generator.manual_seed(0)
model = nn.Linear(4, 1)
callbacks = [
    SaveBestModelCallback("best.pt"), PushToHubCallback("me/digits", sys.argv[1]),
    SaveTrainingStateCallback("states", save_every_n_epochs=1), Kill(),
]
trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.05), callbacks=callbacks)
data = make_regression(32)
trainer.train(data, 3, data, resume_from="states", resume_missing="start")
"""


def test_a_killed_run_pushes_what_is_not_on_the_hub(hub: Hub, launch: Launch, tmp_path: Path) -> None:
    """The push that a kill cut off is done by the resumed run, once, and a run that is complete pushes nothing more."""
    folder = tmp_path / "hub" / "me--digits"
    was_cut_off = threading.Event()

    def commit() -> None:
        if not (folder / "update_4").exists():  # the second commit
            Path(tmp_path, "is_sending").touch()
            hub.statuses["commit"] = [500]
            hub.end.wait(1)
            was_cut_off.set()

    hub.before["commit"] = commit
    assert launch(KILLED, "best", "killed").status == -9
    assert was_cut_off.wait(30)
    messages = hub.repositories[REPO].commits
    assert messages == ["Best model, from epoch 1"]
    assert (folder / "update_8").exists()
    hub.before.clear()
    assert launch(KILLED, "best").status == 0
    assert messages in (
        [f"Best model, from epoch {epoch}" for epoch in (1, 2, 3)],
        [f"Best model, from epoch {epoch}" for epoch in (1, 3)],  # if the third was there before
    )
    number = len(messages)
    assert launch(KILLED, "best").status == 0
    assert len(messages) == number


def test_what_people_write_on_the_card_stays(hub: Hub) -> None:
    """A push replaces the generated part of the card, and weights of other files, and nothing else."""
    files = {
        "README.md": b"---\nlicense: mit\n---\nMine.\n",
        "model-00001-of-00002.safetensors": b"",
        "LICENSE": b"MIT",
    }
    hub.repositories[REPO] = Repository(files=dict(files))
    train(PushToHubCallback(REPO))
    repository = hub.repositories[REPO]
    assert repository.files.keys() == {"LICENSE", "README.md", "model.safetensors", "settings.json"}
    first = repository.files["README.md"]
    assert first.startswith(files["README.md"] + b"\n<!-- pa: begin")
    repository.files["README.md"] = first + b"\nMore of mine.\n"
    trainer = train(epochs=3)
    push_to_hub(trainer, REPO)
    second = repository.files["README.md"].decode()
    assert second.startswith(files["README.md"].decode())
    assert second.endswith("<!-- pa: end -->\n\nMore of mine.\n")
    assert second.count(trainer.fingerprint()) == 1
    assert "| num_epochs | 2 |" not in second


def test_more_files_and_only_trained_weights(hub: Hub, launch: Launch) -> None:
    """A function adds files, its error is a warning, and frozen weights can be left out."""

    def add(folder: Path) -> None:
        (folder / "labels.txt").write_text("cat")

    trainer = make_trainer()
    with pytest.raises(ConfigurationError, match="Nothing has been trained"):
        push_to_hub(trainer, REPO)
    trainer.get_model().bias.requires_grad_(False)
    trainer.train(DATA, 1)
    push_to_hub(trainer, REPO, add_files=add, trainable_only=True)
    repository = hub.repositories[REPO]
    assert repository.files["labels.txt"] == b"cat"
    assert torch.equal(weights_on(hub, launch)["weight"], trainer.get_model().weight)
    assert b"bias" not in repository.files["model.safetensors"]
    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        train(PushToHubCallback(REPO, add_files=lambda folder: 1 // 0))
    assert len(repository.commits) == 1


def test_a_model_of_a_run_that_failed_is_not_pushed(hub: Hub) -> None:
    """Neither after a loss that is not finite, of which a warning tells, nor after an error."""
    with pytest.warns(UserWarning, match="a loss was not finite"), pytest.raises(NonFiniteLossError):
        train(TerminateOnNaNCallback(), PushToHubCallback(REPO), rate=1e30)
    with pytest.raises(ZeroDivisionError):
        train(PushToHubCallback(REPO), At({1: lambda: 1 // 0}))
    assert hub.repositories[REPO].commits == []


def test_custom_loops_push_too(hub: Hub, launch: Launch) -> None:
    """At the end of its block, a run of a custom loop pushes its model."""
    model = nn.Linear(4, 1)
    push = PushToHubCallback(REPO)
    run = Run(model, SGD(model.parameters(), lr=0.1), DATA, num_epochs=1, per_device_batch_size=8, callbacks=[push])
    with run:
        for _ in run.epochs():
            for update in run.updates():
                for inputs, targets in update:
                    update.backward(nn.functional.mse_loss(run.model(inputs), targets))
                update.step()
    assert_same(weights_on(hub, launch), model.state_dict())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repo_id", "digits"),
        ("repo_id", "a/b/c"),
        ("when", "always"),
        ("private", "no"),
        ("time_limit", 0),
        ("folder", "s3://bucket"),
    ],
)
def test_bad_arguments_are_refused(name: str, value: Any) -> None:
    """The constructor names an argument that cannot be used."""
    arguments: dict[str, Any] = {"repo_id": REPO, name: value}
    with pytest.raises(ConfigurationError, match=f"^{name} must be"):
        PushToHubCallback(**arguments)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An old package, a folder that does not exist, and no callback that knows the best model are errors."""
    with pytest.raises(ConfigurationError, match="no SaveBestModelCallback before it"):
        train(PushToHubCallback(REPO, "best"), SaveBestModelCallback(tmp_path / "best.pt"))
    with pytest.raises(ConfigurationError, match="There is no folder"):
        push_to_hub(tmp_path / "missing", REPO)

    def version(name: str) -> str:
        return "1.33.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(UnsupportedConfigurationError, match=r"pa-callbacks-extra\[hub\]"):
        PushToHubCallback(REPO)


@pytest.mark.runs_on("two_ranks")
def test_only_the_first_process_pushes(shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On several processes, one talks to the Hub, all get its errors, and the model is that of one process."""
    with serving() as hub:
        environment = gather_objects(hub.environment(shared_tmp_path / "home"))[0]
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(shared_tmp_path)
        with pytest.raises(ConfigurationError, match="403"):
            train(PushToHubCallback("others/digits"))
        trainer = train(SaveBestModelCallback("best.pt"), PushToHubCallback(REPO))
        url = push_to_hub(trainer, REPO)
        if rank() == 0:
            assert url
            assert hub.requests["whoami"] == 3
            assert_same(weights_on(hub, Launch(shared_tmp_path)), trainer.get_model().state_dict())
        else:
            assert not url
            assert not hub.requests
        trainer.wait_for_everyone()
