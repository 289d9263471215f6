"""Runs whose states have a second home in an object store: resumed from there, on any machine, to the last bit."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from typing_extensions import override

from pa_checkpoint import Folder, RemoteFolder
from pa_checkpoint._remote_folder import ObjectStore, ObjectStoreError
from pa_core import (
    AnyTrainer,
    CheckpointError,
    SaveTrainingStateCallback,
    TrainerCallback,
    TrainingPreempted,
    distributed,
)
from pa_core.callbacks.uploads import Uploads
from pa_core.training_state import downloaded_states
from tests.launching import Launch
from tests.support.callbacks import CallAt
from tests.support.faulty_store import Faults, FaultyFileSystem, Refused, store_url, use_faults
from tests.support.pa_core.training_states.small_runs import InterruptAt, Interrupted, make_trainer, train
from tests.support.pa_core.training_states.small_runs import updates_in as updates_on_disk

SUPPORT = Path(__file__).parents[4] / "tests" / "support" / "pa_core" / "training_states"


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """What goes wrong in the stores of a test: nothing, unless it says so; what fails is tried again at once."""
    monkeypatch.setattr("pa_checkpoint._remote_folder.PAUSES", (0.0,) * 3)
    yield use_faults(Faults())
    use_faults(Faults())


def saving(folder: Path, url: str, **options: Any) -> SaveTrainingStateCallback:
    """A callback that saves after every third update, and sends what it saves."""
    settings: dict[str, Any] = {"save_every_n_steps": 3, "max_checkpoints": 2, "upload_to": url, **options}
    return SaveTrainingStateCallback(folder, **settings)


def updates_in(url: str) -> list[int]:
    """The updates after which the states in a store were saved, oldest first."""
    return [state.update for state in RemoteFolder(url).states()]


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_run_continues_on_another_machine(shared_tmp_path: Path) -> None:
    """From the store alone, to the same end, bit for bit, as the same run; as many states stay there as on the disk."""
    url = store_url(shared_tmp_path / "store")
    expected = train(make_trainer())
    with pytest.raises(Interrupted):
        train(make_trainer(saving(shared_tmp_path / "first", url), InterruptAt("on_optimizer_step_end", 8)))
    names = {state.key for state in RemoteFolder(url).states()}
    assert updates_in(url) == [3, 6]

    machine = shared_tmp_path / "second"
    trainer = make_trainer(saving(machine, url, asynchronous=True))
    assert train(trainer, resume_from=url, resume_missing="start") == expected
    assert trainer.resume_from == machine
    end = trainer.num_updates_completed
    assert {state.key for state in RemoteFolder(url).states()} == names
    assert updates_in(url) == updates_on_disk(machine) == [end // 3 * 3, end]


class LoseStoreFrom(TrainerCallback):
    """Has every request refused from an update on, and until another one."""

    def __init__(self, faults: Faults, first: int, last: int = 10**6) -> None:
        self.faults, self.first, self.last = ref(faults), first, last  # a store is no state of a callback

    @override
    def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
        faults = self.faults()
        assert faults is not None
        faults.broken = self.first <= update < self.last


def test_a_state_that_was_not_sent_before_the_kill_is_not_lost(tmp_path: Path, faults: Faults) -> None:
    """On the machine that has it, the run continues from it, and sends it."""
    url, states = store_url(tmp_path / "store"), tmp_path / "states"
    expected = train(make_trainer())

    class LoseStore(LoseStoreFrom):
        @override
        def on_optimizer_step_end(self, trainer: AnyTrainer, update: int, **kwargs: Any) -> None:
            while update == 4 and updates_in(url) != [3]:  # a thread sends it
                time.sleep(0.01)
            super().on_optimizer_step_end(trainer, update, **kwargs)

    with pytest.raises(Interrupted) as interrupted:
        train(make_trainer(LoseStore(faults, 5), saving(states, url), InterruptAt("on_optimizer_step_end", 7)))
    assert any("was not sent" in note for note in interrupted.value.__notes__)
    faults.broken = False
    assert updates_in(url) == [3]

    resumed = make_trainer(saving(states, url), InterruptAt("on_train_step_start", 6))
    with pytest.raises(Interrupted):
        train(resumed, resume_from=url)
    assert updates_in(url) == [3, 6]
    assert train(make_trainer(saving(states, url)), resume_from=url) == expected


@pytest.mark.parametrize("is_reached", [True, False], ids=["half sent", "nothing sent"])
def test_a_run_that_was_killed_before_its_first_state_was_sent_is_not_lost(
    tmp_path: Path, faults: Faults, *, is_reached: bool
) -> None:
    """The store knows the run from its start."""
    url, states = store_url(tmp_path / "store"), tmp_path / "states"

    def lose_store(_: AnyTrainer) -> None:
        faults.broken = not is_reached

    callbacks = [saving(states, url), CallAt("on_train_step_start", lose_store, 0)]
    with pytest.raises(Interrupted):
        train(make_trainer(*callbacks, InterruptAt("on_optimizer_step_end", 4)))
    faults.broken = False
    shutil.rmtree(tmp_path / "store" / "states", ignore_errors=True)
    resumed = make_trainer(saving(states, url), InterruptAt("on_train_step_start", 0))
    with pytest.raises(Interrupted):
        train(resumed, resume_from=url, resume_missing="start")
    assert resumed.num_updates_completed == 3
    assert updates_in(url) == [3]


def test_the_run_that_was_started_last_is_the_one_that_is_resumed(tmp_path: Path) -> None:
    """Of several in a store, each on a machine that has nothing of the others; all of their states stay."""
    url = store_url(tmp_path / "store")
    train(make_trainer(saving(tmp_path / "first", url)), num_epochs=2)
    train(make_trainer(saving(tmp_path / "second", url)), num_epochs=1)
    assert updates_in(url) == [12, 14, 6, 7]
    resumed = make_trainer()
    train(resumed, num_epochs=1, resume_from=url)
    assert resumed.num_updates_completed == 7


def test_a_damaged_state_in_the_store_is_passed_over(tmp_path: Path) -> None:
    """With a warning that names it and says why; from the one before it the run comes to the same end."""
    url = store_url(tmp_path / "store")
    expected = train(make_trainer())
    with pytest.raises(Interrupted):
        train(make_trainer(saving(tmp_path / "first", url), InterruptAt("on_optimizer_step_end", 8)))
    largest = max((tmp_path / "store" / "files").glob("*/*"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    largest.write_bytes(largest.read_bytes()[:-1] + b"?")
    with pytest.warns(UserWarning, match=r"step_6 in faulty://.* is skipped: .* other bytes"):
        assert train(make_trainer(saving(tmp_path / "second", url)), resume_from=url) == expected
    assert sorted(RemoteFolder(url).states(), key=lambda state: state.age)[-1].update == 21


def test_one_state_of_a_store_is_loaded_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a folder of one's own, into one for temporary files, where one state at a time stays."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    url, states = store_url(tmp_path / "store"), tmp_path / "states"
    train(make_trainer(saving(states, url, max_checkpoints=None, save_at_end=False)), num_epochs=1)
    trainer = make_trainer(seed=2)
    assert trainer.load_training_state(f"{url}/step_3")["current_epoch"] == 1
    assert trainer.load_training_state(url)["current_epoch"] == 1
    again = make_trainer(seed=3)
    train(again, num_epochs=1, resume_from=f"{url}/step_3")
    assert again.num_updates_completed == 7

    train(make_trainer(saving(states, url, max_checkpoints=None)), num_epochs=1, resume_from=url)
    assert updates_in(url) == [3, 6, 7]
    trainer.load_training_state(url)
    kept = (tmp_path / "temporary").glob("pa_core_states_*/*/*")
    assert sorted(path.name for path in kept) == ["final", "step_3"]  # of the store, and of one state


def test_a_store_that_fails_is_not_taken_for_one_whose_states_are_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run does not continue from what could be reached, but says what could not."""
    url = store_url(tmp_path / "store")
    train(make_trainer(saving(tmp_path / "states", url)), num_epochs=1)

    def refuse(*_: object, **__: object) -> None:
        raise Refused("try again later")

    monkeypatch.setattr(FaultyFileSystem, "get_file", refuse)
    with pytest.raises(ObjectStoreError, match="Refused"):
        train(make_trainer(), resume_from=url)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_store_that_cannot_be_used_is_an_error_before_the_first_step(shared_tmp_path: Path, faults: Faults) -> None:
    """On all processes; no time is lost."""
    faults.broken = True
    trainer = make_trainer(saving(shared_tmp_path / "states", store_url(shared_tmp_path / "store")))
    with pytest.raises(CheckpointError, match="object store"):
        train(trainer)
    assert trainer.num_updates_completed == 0
    with pytest.raises(CheckpointError, match="object store"):
        train(make_trainer(), resume_from=store_url(shared_tmp_path / "store"), resume_missing="start")


def test_a_state_that_cannot_be_sent_is_warned_of_and_the_run_continues(tmp_path: Path, faults: Faults) -> None:
    """The warning comes with the next state; a store that is back has the newest ones in the end."""
    url = store_url(tmp_path / "store")
    trainer = make_trainer(SLOWLY, LoseStoreFrom(faults, 4, 8), saving(tmp_path / "states", url))
    with pytest.warns(UserWarning, match="step_6.*Refused: try again later.*the run continues") as warned:
        train(trainer, num_epochs=2)
    assert len(warned) == 1
    assert updates_in(url) == updates_on_disk(tmp_path / "states") == [12, 14]


SLOWLY = CallAt("on_optimizer_step_end", lambda _: time.sleep(0.03))
"""Leaves the thread that sends states time for all of its attempts."""


def test_the_last_state_of_a_run_is_sent_again_before_the_run_ends(
    tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that was away for a moment has it; nothing is warned of."""
    retry = Uploads.retry

    def come_back(uploads: Uploads) -> None:
        faults.broken = False
        retry(uploads)

    monkeypatch.setattr(Uploads, "retry", come_back)
    callback = saving(tmp_path / "states", store_url(tmp_path / "store"), save_every_n_steps=None)
    train(make_trainer(LoseStoreFrom(faults, 5), callback), num_epochs=1)
    assert updates_in(store_url(tmp_path / "store")) == [7]


def test_the_end_of_a_run_says_that_its_last_state_was_not_sent(tmp_path: Path, faults: Faults) -> None:
    """After another attempt. It is on the disk, and a later start of the script sends it."""
    url = store_url(tmp_path / "store")
    trainer = make_trainer(SLOWLY, LoseStoreFrom(faults, 5), saving(tmp_path / "states", url))
    with pytest.warns(UserWarning, match="was not sent") as warned:
        train(trainer, num_epochs=1)
    assert [name in str(one.message) for name, one in zip(("step_6", "final"), warned, strict=True)] == [True, True]
    assert updates_on_disk(tmp_path / "states") == [6, 7]
    faults.broken = False
    train(make_trainer(saving(tmp_path / "states", url)), num_epochs=1, resume_from=url)
    assert updates_in(url) == [6, 7]


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_state_that_cannot_be_sent_ends_the_run_where_that_is_asked_for(
    shared_tmp_path: Path, faults: Faults
) -> None:
    """On all processes; states on the disk stay whole."""
    callback = saving(shared_tmp_path / "states", store_url(shared_tmp_path / "store"), upload_errors="raise")
    with pytest.raises(CheckpointError, match="was not sent to the object store"):
        train(make_trainer(LoseStoreFrom(faults, 2), SLOWLY, callback))
    assert [record.problem for record in Folder(shared_tmp_path / "states").records()] == [None] * len(
        updates_on_disk(shared_tmp_path / "states")
    )


@pytest.mark.runs_on("one_process", "two_ranks")
def test_a_preempted_run_ends_when_its_state_is_sent(shared_tmp_path: Path, faults: Faults) -> None:
    """However slow the store is, on all processes, and whatever signals follow."""
    faults.rates, faults.seconds = {"slow": 1.0}, 0.02

    def preempt(_: AnyTrainer) -> None:
        if distributed.rank() == 0:
            os.kill(os.getpid(), signal.SIGUSR1)

    url = store_url(shared_tmp_path / "store")
    callback = saving(shared_tmp_path / "states", url, stop_on_signals=("SIGUSR1",), save_every_n_steps=None)
    with pytest.raises(TrainingPreempted):
        train(make_trainer(callback, CallAt("on_optimizer_step_end", preempt, 4)))
    assert [update in (4, 5) for update in updates_in(url)] == [True]


def test_a_slow_store_does_not_hold_up_training(tmp_path: Path, faults: Faults) -> None:
    """States wait their turn; those that would not stay are not sent, and none is removed from the disk before."""
    faults.rates, faults.seconds = {"slow": 1.0}, 0.03
    url, ended = store_url(tmp_path / "store"), list[float]()
    measure = CallAt("on_training_run_end", lambda _: ended.append(time.monotonic()))
    train(make_trainer(saving(tmp_path / "states", url, save_every_n_steps=1), measure), num_epochs=1)
    waited = time.monotonic() - ended[0]
    assert updates_in(url) == [7, 7]
    assert updates_on_disk(tmp_path / "states") == [7, 7]
    assert waited > 0.3
    manifests = [name for name in faults.sent if name.endswith(".json")]
    assert len(manifests) < 6


@pytest.mark.runs_on("two_ranks")
def test_each_machine_fetches_the_state_that_it_lacks(shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that the first machine has not sent yet."""
    url, states = store_url(shared_tmp_path / "store"), shared_tmp_path / "states"
    expected = train(make_trainer())
    with pytest.raises(Interrupted):
        train(make_trainer(saving(states, url, max_checkpoints=None), InterruptAt("on_optimizer_step_end", 8)))
    if distributed.rank() == 0:
        store = RemoteFolder(url)
        state = store.states()[-1]
        ObjectStore(url).remove(f"states/{state.object_name}")
    torch.distributed.barrier()

    fetched: list[Path] = []
    digest = downloaded_states._digest  # pyright: ignore[reportPrivateUsage]  # there is one disk
    fetch = RemoteFolder.fetch

    def digest_on_this_machine(path: Path) -> str:
        return digest(path) if distributed.rank() == 0 or path in fetched else ""

    def note_fetched(*arguments: Any, **options: Any) -> Any:
        found = fetch(*arguments, **options)
        fetched.extend([found[0]] if distributed.rank() else [])
        return found

    monkeypatch.setattr(downloaded_states, "_digest", digest_on_this_machine)
    monkeypatch.setattr(RemoteFolder, "fetch", note_fetched)
    assert train(make_trainer(saving(states, url)), resume_from=url) == expected
    assert len(fetched) == distributed.rank()


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_killed_run_continues_from_what_was_sent(launch: Launch) -> None:
    """On another machine too, out of an unreliable store, after each of 3 kills; `nox -s upload_kills` kills 200."""
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    launched = launch(SUPPORT / "kills_during_uploads.py", "3", "3", env=path)

    assert launched.status == 0
    assert "3 kills" in launched.output
